"""Matrices in the block formats of GGUF, and products with them from the packed bytes."""

from pallas_kernels.quant_matmul.api import explain, quant_matmul
from pallas_kernels.quant_matmul.formats import FORMATS, BlockFormat
from pallas_kernels.quant_matmul.fused import quant_matmuls, quant_swiglu
from pallas_kernels.quant_matmul.layouts import dequantize, prepare, take_rows
from pallas_kernels.quant_matmul.qtensor import Activations, QTensor, from_blocks

__all__ = [
    "FORMATS",
    "Activations",
    "BlockFormat",
    "QTensor",
    "dequantize",
    "explain",
    "from_blocks",
    "prepare",
    "quant_matmul",
    "quant_matmuls",
    "quant_swiglu",
    "take_rows",
]
