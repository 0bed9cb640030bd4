"""The implementations, in order of preference.

The Pallas kernels are tested under their interpreters, lowered for their platforms and compiled for TPUs, but not yet
measured on a device: they run when named. The kernels that jax ships are not used: those for TPU (flash, splash) take
masks that are known when a program is traced, or keys in pages of their own layout, and no quantized keys; cuDNN's
attention cannot even be lowered on a machine without it, and knows neither soft-cap nor sinks; that of Mosaic GPU takes
no lengths of sequences.
"""

from functools import partial

from pallas_kernels.dispatch import ANYWHERE, Implementation
from pallas_kernels.mosaic_gpu import on_hopper
from pallas_kernels.prefill_attention import pallas_gpu, pallas_tpu
from pallas_kernels.verify_attention import reference, xla_floats, xla_tiles
from pallas_kernels.verify_attention.implementations import quantized

IMPLEMENTATIONS = (
    Implementation("xla_floats", xla_floats.attend, ANYWHERE, quantized),
    Implementation("xla_tiles", xla_tiles.attend, ANYWHERE),
    Implementation("pallas_tpu", pallas_tpu.attend, unfit=pallas_tpu.unfit),
    Implementation("pallas_tpu_interpret", partial(pallas_tpu.attend, interpret=True), unfit=pallas_tpu.unfit),
    Implementation("pallas_gpu", pallas_gpu.attend, unfit=on_hopper(pallas_gpu.unfit)),
    Implementation("pallas_gpu_interpret", partial(pallas_gpu.attend, interpret=True), unfit=pallas_gpu.unfit),
    Implementation("reference", reference.attend),
)
