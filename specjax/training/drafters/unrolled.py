"""Keys and values of layers that are unrolled over all rows of a text at once, as drafting unrolls them from each row.

Step 0 is fed what the target made of a text, and is causal. Every later step stands for as many drafts, made after each
row: a row of it sees step 0 up to its own row, and of the steps since then its own row alone.

Source: "training-time test" of EAGLE-3, arXiv 2503.01840, section 3.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int


@struct.dataclass
class UnrolledCache:
    """What a layer is given in place of a `specjax.state.KVCache`.

    Attributes:
        steps: keys and values [B, T, G, N] of each step so far.
        window: how many positions a row sees, itself included; None for all.
    """

    steps: tuple[tuple[Float[Array, "B T G N"], Float[Array, "B T G N"]], ...] = ()
    window: int | None = struct.field(pytree_node=False, default=None)

    def rotating(self, frequencies: Float[Array, "pairs"]) -> UnrolledCache:
        """Itself: nothing is ever moved."""
        del frequencies
        return self

    def append(
        self,
        k: Float[Array, "B T G N"],
        v: Float[Array, "B T G N"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
    ) -> UnrolledCache:
        """The next step's keys and values."""
        del positions, valid
        return replace(self, steps=(*self.steps, (k.astype(jnp.float32), v.astype(jnp.float32))))

    def attend(
        self, q: Float[Array, "B T H N"], positions: Int[Array, "B T"], *, scale: float
    ) -> Float[Array, "B T H N"]:
        """Attention of the last step's rows."""
        del positions
        batch, rows, _, width = q.shape
        (k, v), later = self.steps[0], self.steps[1:]
        grouped = q.astype(jnp.float32).reshape(batch, rows, k.shape[2], -1, width) * scale
        behind = jnp.arange(rows)[:, None] - jnp.arange(rows)
        seen = behind >= 0
        if self.window is not None:
            seen &= behind + len(later) < self.window
        scores = jnp.where(seen, jnp.einsum("btgrn,bsgn->bgrts", grouped, k), -jnp.inf)
        own = [jnp.einsum("btgrn,btgn->bgrt", grouped, keys)[..., None] for keys, _ in later]
        weights = jax.nn.softmax(jnp.concatenate([scores, *own], axis=-1), axis=-1)
        out = jnp.einsum("bgrts,bsgn->btgrn", weights[..., :rows], v)
        for index, (_, values) in enumerate(later):
            out += jnp.einsum("bgrt,btgn->btgrn", weights[..., rows + index], values)
        return out.reshape(q.shape).astype(q.dtype)
