"""Teacher-forced forward passes over whole sequences, for training."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.models.protocol import FeatureRequest, Params
from specjax.models.qwen3_5.config import Qwen35Config
from specjax.models.qwen3_5.mtp import Qwen35MTP
from specjax.models.qwen3_5.target import Qwen35Target
from specjax.state import KVCache, SequenceState


def training_forward(
    config: Qwen35Config, params: Params, tokens: Int[Array, "B T"], mtp_steps: int
) -> tuple[Float[Array, "B T V"], tuple[Float[Array, "B T V"], ...]]:
    """Logits of the trunk and of `mtp_steps` chained steps of the MTP head, all predicting tokens[:, p + 1] in row p.

    Step 1 reads the trunk's hidden state of position p - 1; step j reads step j - 1's hidden state instead, as
    drafting does, so rows p < j - 1 mean nothing. The head trains on frozen hidden states and on a frozen embedding
    and output head: it learns to predict the trunk, and the trunk is not bent towards it.
    """
    batch, length = tokens.shape
    target = Qwen35Target(config)
    zero = jnp.zeros((batch,), jnp.int32)
    full = zero + length
    layers = target.init_layers(batch, length, rows=1, rollback="replay")
    output, _ = target.extend(
        params, tokens, full, SequenceState(layers, None, zero), request=FeatureRequest(final_hidden=True), rows="all"
    )
    assert output.logits is not None
    assert output.features.final_hidden is not None

    head = Qwen35MTP(config)
    frozen = {"target": jax.lax.stop_gradient(params["target"]), "mtp": params.get("mtp")}
    hidden = jax.lax.stop_gradient(output.features.final_hidden)
    positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    step_logits = []
    for _ in range(mtp_steps):
        before = jnp.pad(hidden[:, :-1], ((0, 0), (1, 0), (0, 0)))
        cache = KVCache.zeros(batch, length, config.num_kv_heads, config.head_width, jnp.float32)
        hidden, _ = head.run(frozen, tokens, before, positions, jnp.ones_like(tokens, bool), cache)
        step_logits.append(head.logits(frozen, hidden))
    return output.logits, tuple(step_logits)
