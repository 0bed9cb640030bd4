"""Gated delta net: linear attention with a decaying matrix state, corrected by the delta rule."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels import causal_conv1d
from pallas_kernels.rms_norm import l2_norm
from specjax.layers.linear import Linear, SummedLinear, apply_all
from specjax.layers.norm import RMSNorm
from specjax.state.recurrent import DeltaInputs, RecurrentState


class CausalConv(nn.Module):
    """The depthwise causal convolution's weight, [C, W]; applied with SiLU by `causal_conv1d`."""

    channels: int
    width: int

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T C"], window: Float[Array, "B W-1 C"]
    ) -> tuple[Float[Array, "B T C"], Float[Array, "B W-1+T C"]]:
        init = nn.initializers.uniform(scale=2 * self.width**-0.5)
        weight = self.param(
            "weight", lambda key, shape, dtype: init(key, shape, dtype) - self.width**-0.5,
            (self.channels, self.width), jnp.float32,
        )  # fmt: skip
        return causal_conv1d.causal_conv1d(x, weight, window, activation="silu")


class GatedDeltaNet(nn.Module):
    """One gated delta net layer.

    The state knows which key head each value head reads, see `specjax.state.recurrent`.

    Attributes:
        config: says Hk, Hv, Dk and Dv as `linear_key_heads`, `linear_value_heads`, `linear_key_width` and
            `linear_value_width`, W as `conv_width`, and `norm_eps` of the output norm and of the L2 norm of q and k;
            besides, in how many groups value heads stand side by side, as `value_groups`.

    Source: Yang et al., "Gated Delta Networks", arXiv 2412.06464; `Qwen3_5GatedDeltaNet` in transformers,
    `build_layer_attn_linear` in llama.cpp's `src/models/qwen35.cpp`.
    """

    config: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], n_valid: Int[Array, "B"], state: RecurrentState, *, rollback: bool
    ) -> tuple[Float[Array, "B T D"], Any]:
        """Process the first `n_valid` rows.

        Returns:
            The output and, with `rollback`, a window that can still be committed partly; without, the next state.
        """
        c, (batch, rows, width) = self.config, x.shape
        heads, value_width = c.linear_value_heads, c.linear_value_width
        keys, values = c.linear_key_heads * c.linear_key_width, heads * value_width
        qkv, z, beta, alpha = apply_all(
            x,
            Linear(2 * keys + values, name="qkv_proj"),
            Linear(values, name="z_proj"),
            Linear(heads, name="beta_proj"),
            Linear(heads, name="alpha_proj"),
        )
        z = z.reshape(batch, rows, heads, value_width)
        beta, alpha = jax.nn.sigmoid(beta.astype(jnp.float32)), alpha.astype(jnp.float32)
        decay = self.param("a", init_decay, (heads,), jnp.float32)
        dt_bias = self.param("dt_bias", init_dt_bias, (heads,), jnp.float32)
        g = decay * jax.nn.softplus(alpha + dt_bias)

        mixed, conv_inputs = CausalConv(2 * keys + values, c.conv_width, name="conv")(
            qkv.astype(jnp.float32), state.conv_window()
        )
        qk, v = jnp.split(mixed, [2 * keys], axis=-1)
        qk = l2_norm(qk.reshape(batch, rows, 2 * c.linear_key_heads, c.linear_key_width), epsilon=c.norm_eps)
        q, k = jnp.split(qk, 2, axis=2)
        inputs = DeltaInputs(
            q=q,
            k=k,
            v=v.reshape(batch, rows, heads, value_width),
            g=g,
            beta=beta,
        )
        step = state.verify if rollback else state.extend
        out, new_state = step(inputs, conv_inputs, n_valid)
        out = RMSNorm(c.norm_eps, name="norm")(out, gate=z)
        out_proj = SummedLinear(width, groups=c.value_groups, name="out_proj")
        return out_proj(out.reshape(batch, rows, values).astype(x.dtype)), new_state


def init_decay(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """-A with A uniform in (1, 16), the reference's initialisation away from its singular end."""
    return -jax.random.uniform(key, shape, dtype, 1.0, 16.0)


def init_dt_bias(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """The inverse softplus of a time step that is log-uniform in (0.001, 0.1), as in Mamba-2."""
    dt = jnp.exp(jax.random.uniform(key, shape, dtype, jnp.log(0.001), jnp.log(0.1)))
    return dt + jnp.log(-jnp.expm1(-dt))
