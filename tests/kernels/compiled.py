"""What tests call of the formats outside of a program, each as one program.

Called as they are, every operation of theirs is compiled by itself, which takes longer than all else in a test.
"""

import jax

from pallas_kernels import matmul
from pallas_kernels.kv_formats import KVStore
from pallas_kernels.matmul import planes

dequantize = jax.jit(matmul.dequantize)
prepare = jax.jit(matmul.prepare)
pack = jax.jit(planes.pack)
submatrix = jax.jit(matmul.submatrix)
take_rows = jax.jit(matmul.take_rows)

stored = jax.jit(KVStore.of, static_argnames="format")
decoded = jax.jit(KVStore.values)
rotated = jax.jit(KVStore.rotated)
