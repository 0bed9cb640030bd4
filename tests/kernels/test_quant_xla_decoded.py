"""The form for many rows on GPUs decodes whole matrices: both factors are rounded to bfloat16, whatever the format."""

import re
from functools import partial

import jax
import numpy as np
import pytest
from compiled import dequantize, pack
from test_quant_gpu_prefill import OFF, rounded
from test_quant_pallas_gpu import activations, matrix, off_by

from pallas_kernels.matmul import FORMATS, explain, quant_matmul, xla_decoded
from pallas_kernels.matmul.config import FEW_ROWS
from pallas_kernels.matmul.formats import tq_rotation, turned


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_multiplied_with_the_values_in_bfloat16(name: str) -> None:
    blocks = matrix(name, 40)
    x, values = activations(3, 7, blocks.width), dequantize(blocks)
    got = jax.jit(partial(quant_matmul, impl="xla_decoded"))(x, pack(blocks))
    if FORMATS[name].rotated:  # both factors are rounded in the other basis; the way there moves some over an edge
        x, values = (turned(each, tq_rotation().T) for each in (x, values))
    assert got.shape == (3, 7, 40)
    assert off_by(got, rounded(x), rounded(values)) <= (1e-4 if FORMATS[name].rotated else OFF)


def test_a_large_matrix_is_decoded_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = matrix("Q5_1", 300)
    x = np.array(activations(FEW_ROWS + 1, blocks.width))
    x[3] = np.nan
    monkeypatch.setattr(xla_decoded, "MOST_VALUES", 256 * blocks.width)
    got = np.asarray(jax.jit(partial(quant_matmul, impl="xla_decoded"))(x, pack(blocks)))
    others = np.arange(len(x)) != 3
    assert off_by(got[others], rounded(x[others]), rounded(dequantize(blocks))) <= OFF
    assert np.isnan(got[3]).all()


def test_it_is_what_gpus_take_for_many_rows_where_nothing_was_measured() -> None:
    blocks = matrix("Q8_0", 40)
    x, weight = activations(FEW_ROWS + 1, blocks.width), pack(blocks)
    assert re.search("xla_decoded +chosen", explain(x, weight, platform="gpu"))
    few = explain(x[:FEW_ROWS], weight, platform="gpu")
    assert re.search("xla_decoded +passed over: M=16 is at most 16", few)
    assert re.search("xla_dequant +chosen", few)
    assert re.search("xla_decoded +passed over: chosen on gpu only", explain(x, weight, platform="tpu"))
    with pytest.raises(ValueError, match="'xla_decoded' does not fit: reads the layout 'planes', see `prepare`"):
        quant_matmul(x, blocks, impl="xla_decoded")
