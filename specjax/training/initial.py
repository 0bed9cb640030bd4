"""Initial parameters of the Qwen3.5 family, in the layout that `specjax.models.qwen3_5` runs."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from specjax.models.qwen3_5.config import FULL_ATTENTION, Qwen35Config

INIT_SCALE = 0.02
"""Standard deviation of matrices; those that write to the residual stream get it divided by sqrt(2 L)."""

DECAY_RANGE = (1.0, 16.0)
"""-a is uniform in this range (Mamba-2, https://arxiv.org/abs/2405.21060, and its successors)."""

STEP_RANGE = (1e-3, 1e-1)
"""softplus(dt_bias) is log-uniform in this range (same source): heads that remember from ten to a thousand tokens."""


def initial_parameters(config: Qwen35Config, key: PRNGKeyArray) -> dict:
    """Random parameters for a dense config: `{"target": ..., "mtp": ...}`, float32; `mtp` only when it has the block.

    Raises:
        ValueError: for a mixture-of-experts config, which this trainer does not cover.
    """
    if config.moe is not None:
        raise ValueError("initial_parameters: the config has experts; only dense models are trained here")
    draw = _Draw(config, key)
    params = {"target": draw.target()}
    if config.mtp_layers:
        params["mtp"] = draw.mtp()
    return params


class _Draw:
    """Draws parameters in a fixed order, each from a key of its own."""

    def __init__(self, config: Qwen35Config, key: PRNGKeyArray) -> None:
        self.config = config
        self._key = key
        self._count = 0

    def next_key(self) -> PRNGKeyArray:
        self._count += 1
        return jax.random.fold_in(self._key, self._count)

    def matrix(self, rows: int, columns: int, residual: bool = False) -> dict[str, Float[Array, "rows columns"]]:
        scale = INIT_SCALE / math.sqrt(2 * self.config.num_layers) if residual else INIT_SCALE
        return {"weight": scale * jax.random.normal(self.next_key(), (rows, columns))}

    def target(self) -> dict:
        config = self.config
        layers = {f"layers_{i}": self.layer(kind) for i, kind in enumerate(config.layer_types)}
        head = {} if config.tied_embeddings else {"lm_head": self.matrix(config.vocab_size, config.width)}
        return {"embed": self.matrix(config.vocab_size, config.width), **layers, "norm": ones(config.width), **head}

    def mtp(self) -> dict:
        config = self.config
        params = {
            "enorm": ones(config.width),
            "hnorm": ones(config.width),
            "eh_proj": self.matrix(config.width, 2 * config.width),
            "block": self.layer(FULL_ATTENTION),
        }
        if config.mtp_own_norm:
            params["norm"] = ones(config.width)
        if config.mtp_own_embedding:
            params["embed"] = self.matrix(config.vocab_size, config.width)
        if config.mtp_own_output:
            params["lm_head"] = self.matrix(config.vocab_size, config.width)
        return params

    def layer(self, kind: str) -> dict:
        width = self.config.width
        mixer = {"attention": self.attention()} if kind == FULL_ATTENTION else {"delta_net": self.delta_net()}
        mlp_width = self.config.mlp_width
        mlp = {
            "gate_proj": self.matrix(mlp_width, width),
            "up_proj": self.matrix(mlp_width, width),
            "down_proj": self.matrix(width, mlp_width, residual=True),
        }
        return {"attn_norm": ones(width), "mlp_norm": ones(width), **mixer, "mlp": mlp}

    def attention(self) -> dict:
        config = self.config
        return {
            "q_proj": self.matrix(config.num_heads * 2 * config.head_width, config.width),
            "k_proj": self.matrix(config.num_kv_heads * config.head_width, config.width),
            "v_proj": self.matrix(config.num_kv_heads * config.head_width, config.width),
            "o_proj": self.matrix(config.width, config.num_heads * config.head_width, residual=True),
            "q_norm": ones(config.head_width),
            "k_norm": ones(config.head_width),
        }

    def delta_net(self) -> dict:
        config = self.config
        heads, value_width = config.linear_value_heads, config.linear_value_heads * config.linear_value_width
        low, high = map(math.log, STEP_RANGE)
        step = jnp.exp(jax.random.uniform(self.next_key(), (heads,), minval=low, maxval=high))
        bound = config.conv_width**-0.5
        return {
            "qkv_proj": self.matrix(config.conv_channels, config.width),
            "z_proj": self.matrix(value_width, config.width),
            "beta_proj": self.matrix(heads, config.width),
            "alpha_proj": self.matrix(heads, config.width),
            "conv": {
                "weight": jax.random.uniform(
                    self.next_key(), (config.conv_channels, config.conv_width), minval=-bound, maxval=bound
                )
            },
            "a": -jax.random.uniform(self.next_key(), (heads,), minval=DECAY_RANGE[0], maxval=DECAY_RANGE[1]),
            "dt_bias": step + jnp.log(-jnp.expm1(-step)),  # softplus of this is `step`
            "norm": ones(config.linear_value_width),
            "out_proj": self.matrix(config.width, value_width, residual=True),
        }


def ones(width: int) -> dict[str, Float[Array, " width"]]:
    """A norm weight that changes nothing."""
    return {"weight": jnp.ones((width,))}
