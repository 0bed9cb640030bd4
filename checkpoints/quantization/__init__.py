"""Quantizing checkpoints: encoders of block formats, mixes of types, importance matrices."""

from checkpoints.quantization.encode import ENCODERS, EncodingError, encode
from checkpoints.quantization.imatrix import ImportanceMatrix, read_imatrix, write_imatrix
from checkpoints.quantization.plan import QuantizeOptions, TensorPlan, sizes_by_type
from checkpoints.quantization.quantize import Quantization, prepare

__all__ = [
    "ENCODERS",
    "EncodingError",
    "ImportanceMatrix",
    "Quantization",
    "QuantizeOptions",
    "TensorPlan",
    "encode",
    "prepare",
    "read_imatrix",
    "sizes_by_type",
    "write_imatrix",
]
