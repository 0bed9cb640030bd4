"""What tests call of the formats outside of a program, each as one program.

Called as they are, every operation of theirs is compiled by itself, which takes longer than all else in a test.
"""

from functools import partial

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
rotate = jax.jit(lambda kind, x: kind.rotate(x), static_argnums=0)
unrotate = jax.jit(lambda kind, x, width: kind.unrotate(x, width), static_argnums=(0, 2))


@partial(jax.jit, static_argnames=("k_type", "v_type"))
def stored_caches(k: jax.Array, v: jax.Array, k_type: str, v_type: str) -> tuple[KVStore, KVStore]:
    return KVStore.of(k, k_type), KVStore.of(v, v_type)


@jax.jit
def read_caches(k: KVStore, v: KVStore) -> tuple[list[jax.Array], list[jax.Array]]:
    """The vectors of keys and values, and these as they are kept."""
    return [store.values() for store in (k, v)], [store.rotated() for store in (k, v)]
