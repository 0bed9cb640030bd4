"""Products with matrices: of floats, in the block formats of GGUF from the packed bytes, and of experts."""

from pallas_kernels.matmul.api import explain, quant_matmul
from pallas_kernels.matmul.experts import experts, explain_experts
from pallas_kernels.matmul.floats import explain_float, float_matmul
from pallas_kernels.matmul.formats import FORMATS, BlockFormat
from pallas_kernels.matmul.fused import quant_matmuls, quant_swiglu
from pallas_kernels.matmul.layouts import ROWS_THAT_JOIN, dequantize, prepare, take_rows
from pallas_kernels.matmul.qtensor import Activations, QTensor, from_blocks
from pallas_kernels.matmul.swiglu import swiglu
from pallas_kernels.matmul.weights import (
    Activation,
    Blocks,
    FloatWeight,
    PackedWeight,
    Weight,
    as_weight,
    joined,
    leaves,
    products,
    submatrix,
    swiglu_products,
)

__all__ = [
    "FORMATS",
    "ROWS_THAT_JOIN",
    "Activation",
    "Activations",
    "BlockFormat",
    "Blocks",
    "FloatWeight",
    "PackedWeight",
    "QTensor",
    "Weight",
    "as_weight",
    "dequantize",
    "experts",
    "explain",
    "explain_experts",
    "explain_float",
    "float_matmul",
    "from_blocks",
    "joined",
    "leaves",
    "prepare",
    "products",
    "quant_matmul",
    "quant_matmuls",
    "quant_swiglu",
    "submatrix",
    "swiglu",
    "swiglu_products",
    "take_rows",
]
