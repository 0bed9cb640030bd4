"""Training Step-3.5: chained MTP heads, each on what it is fed when it drafts."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pallas_kernels import cache_attention
from pallas_kernels.kv_formats import KVStore
from specjax.models.parts.paired import Pairs
from specjax.models.protocol import Params
from specjax.models.step3_5 import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    AttentionConfig,
    HeadConfig,
    LayerConfig,
    MoEConfig,
    Step35Config,
    Step35MTP,
    Step35Target,
    init_params,
)
from specjax.state import KVCache
from specjax.training.families.base import Family, Predictions, delayed, run_trunk, scale_residual_writers
from specjax.training.recipe import Recipe


def demo_config(vocab_size: int = 512) -> Step35Config:
    """About 0.85 M parameters: four layers, two of them sliding and one with experts, and three MTP heads."""
    full, sliding = LayerConfig(FULL_ATTENTION, sparse=False), LayerConfig(SLIDING_ATTENTION, sparse=False)
    return Step35Config(
        vocab_size=vocab_size,
        width=96,
        layers=(full, sliding, replace(sliding, sparse=True), full),
        head_width=16,
        full=AttentionConfig(num_heads=4, num_kv_heads=2, rope_width=8, rope_theta=10_000.0),
        sliding=AttentionConfig(num_heads=6, num_kv_heads=2, rope_width=16, rope_theta=10_000.0),
        window=24,
        mlp_width=192,
        moe=MoEConfig(4, 2, expert_width=64, shared_expert_width=96, selection_bias=False),
        heads=(HeadConfig(sliding), HeadConfig(sliding), HeadConfig(sliding)),
        context_length=1024,
    )


def initial(config: Step35Config, key: PRNGKeyArray) -> Params:
    """Random parameters to begin with."""
    return scale_residual_writers(init_params(config, key), config.num_layers)


@struct.dataclass
class ChainCache(KVCache):
    """What one head reads in the rounds from all positions of a text at once.

    In the round from position L head j is fed two sorts of rows (see `specjax.models.step3_5.drafter`): up to L the
    target's hidden states, and at L + i, for 1 <= i <= j, the hidden state that head i - 1 drafted from. Of the former
    all rounds share one row per position; of the latter each position has one row for every i, of the round from i
    positions before it. So j + 1 rows stand at each position: first all with the target's hidden states (i = 0), then
    those of i = 1, and so on. A row of i sees what has been committed in its own round, and its own round's rows.

    Attributes:
        sources: j + 1.
    """

    sources: int = struct.field(pytree_node=False, default=1)

    def append(
        self,
        k: Float[Array, "B T G N"],
        v: Float[Array, "B T G N"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
    ) -> ChainCache:
        """Hold the rows in the order they come in, whatever their positions; they come at once."""
        del positions, valid
        return replace(self, k=KVStore.of(k, "f32"), v=KVStore.of(v, "f32"))

    def attend(
        self, q: Float[Array, "B T H N"], positions: Int[Array, "B T"], *, scale: float
    ) -> Float[Array, "B T H N"]:
        """Attention of the head's rows; the arguments are those of `KVCache.attend`."""
        return cache_attention.attend_masked(q, self.k, self.v, self.visible(positions), scale=scale).astype(q.dtype)

    def visible(self, positions: Int[Array, "B T"]) -> Bool[Array, "B T T"]:
        """Which rows each row reads."""
        source = jnp.repeat(jnp.arange(self.sources), positions.shape[1] // self.sources)
        distance = positions[:, :, None] - positions[:, None, :]
        committed = (source == 0) & (distance >= source[:, None])
        behind = source[:, None] - source
        seen = committed | ((source > 0) & (behind >= 0) & (distance == behind))
        return seen if self.window is None else seen & (distance < self.window)


def predict(
    config: Step35Config, params: Params, tokens: Int[Array, "B T"], mtp_steps: int, mtp_sequences: int
) -> Predictions:
    """Logits of the trunk, and of the first `mtp_steps` heads on the first `mtp_sequences` rows.

    Raises:
        ValueError: there are not as many heads.
    """
    if mtp_steps > config.mtp_layers:
        raise ValueError(f"mtp_steps is {mtp_steps}, but each head makes one draft, and there are {config.mtp_layers}")
    trunk, drafter = run_trunk(Step35Target(config), params, tokens), Step35MTP(config)
    shared = {"target": jax.lax.stop_gradient(params["target"]), "mtp": params.get("mtp")}
    tokens, length = tokens[:mtp_sequences], tokens.shape[1]
    positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    sources, logits = [delayed(trunk.hidden[:mtp_sequences])], []
    for index in range(mtp_steps):
        count = len(sources)
        pairs = Pairs(
            tokens=jnp.tile(tokens, count),
            hidden=jnp.concatenate(sources, axis=1),
            positions=jnp.tile(positions, count),
            valid=jnp.ones((tokens.shape[0], count * length), bool),
        )
        layer = config.heads[index].layer
        nothing = KVStore.zeros((tokens.shape[0], 0, config.attention(layer).num_kv_heads, config.head_width), "f32")
        window = config.window if layer.attention == SLIDING_ATTENTION else None
        out, _ = drafter.run(
            shared, index, pairs, ChainCache(nothing, nothing, jnp.zeros((tokens.shape[0], 0)), window, count)
        )
        drafted_from = out[:, -length:]
        logits.append(drafter.logits(shared, index, drafted_from))
        sources.append(delayed(drafted_from))
    return Predictions(trunk.logits, tuple(logits))


FAMILY = Family(
    name="step3_5",
    description="Step-3.5-style model with three chained MTP heads, trained on the Python standard library",
    config_type=Step35Config,
    demo_config=demo_config(),
    recipe=Recipe(steps=600, batch_size=4, length=320),
    initial=initial,
    predict=predict,
)
