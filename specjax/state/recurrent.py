"""State of gated delta net layers and its rollback, in two strategies behind one contract.

A committed state has `conv_window()` and `matrix_state()` and takes new tokens in two ways:

- `extend(...)`: all valid tokens are final (prefill); returns the outputs and the next committed state;
- `verify(...)`: some of the last tokens may be taken back; returns the outputs and a *window*, whose
  `commit(n)` gives the committed state after the first n of them.

A row's first token was chosen already, and always stays. `Replay` keeps the state of the last commit and the records of
the window's tokens, and applies the accepted ones on commit. `Snapshot` writes the state after each of the window's
newest tokens and on commit only remembers which one counts. Both start from zeros and agree to rounding; see the tests.

`head_map` says which key head the value head j reads: "tiled" is j % Hk, "grouped" is j // (Hv / Hk).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from pallas_kernels import causal_conv1d, gated_delta
from specjax.state.content import Content
from specjax.state.part import Part

RollbackStrategy = Literal["replay", "snapshot"]


class DeltaInputs(NamedTuple):
    """What one call feeds to the gated delta rule.

    q, k are L2-normalised [B, T, Hk, Dk]; v is [B, T, Hv, Dv]; g (log decay) and beta are [B, T, Hv].
    """

    q: Float[Array, "B T Hk Dk"]
    k: Float[Array, "B T Hk Dk"]
    v: Float[Array, "B T Hv Dv"]
    g: Float[Array, "B T Hv"]
    beta: Float[Array, "B T Hv"]


class _Sum(Part):
    """What both strategies have in common as a part of the state: the tokens are summed up."""

    @property
    def cannot_shift(self) -> str:
        """None of the tokens can be taken out of the sum."""
        return "its recurrent layers (gated delta nets) hold all tokens in one sum, from which none can be taken out"


def _contents(state: RecurrentState, row: int, length: int) -> tuple[Content, ...]:
    """The committed matrix, and the last inputs of the convolution that are of tokens."""
    matrix, inputs = (np.asarray(x[row]) for x in (state.matrix_state(), state.conv_window()))
    positions = length - len(inputs) + np.arange(len(inputs))
    tokens = positions >= 0
    return (
        Content(("recurrent state",), np.array([length - 1]), matrix[None], has_heads=True),
        Content(("inputs of the convolution",), positions[tokens], inputs[tokens]),
    )


def _segments(heads: int, key_width: int, value_width: int, channels: int, head_map: gated_delta.HeadMap) -> tuple:
    """Value heads in blocks, one for each value head of a key head; and queries, keys and such values in channels.

    A part of the model has the value heads that read its key heads.
    """
    keys = (channels - heads * value_width) // 2
    blocks = 1 if head_map == "grouped" else heads // (keys // key_width)
    counts = (heads // blocks,) * blocks
    return counts, (keys, keys, *(count * value_width for count in counts))


class _Whole:
    """A window that holds all it needs: a trial that goes on from it leaves it as it is."""

    def continued(self, later: RecurrentState) -> Self:
        del later
        return self


@struct.dataclass
class ReplayState(_Sum):
    """The committed state: matrix [B, Hv, Dk, Dv] and the last W - 1 inputs of the convolution, both float32."""

    matrix: Float[Array, "B Hv Dk Dv"]
    window: Float[Array, "B W-1 C"]
    head_map: gated_delta.HeadMap = struct.field(pytree_node=False)

    def contents(self, row: int, length: int) -> tuple[Content, ...]:
        """The committed state, whichever strategy keeps it."""
        return _contents(self, row, length)

    def segments(self) -> Any:
        """Blocks of value heads, and what the convolution reads."""
        _, heads, key_width, value_width = self.matrix.shape
        counts, channels = _segments(heads, key_width, value_width, self.window.shape[-1], self.head_map)
        return jax.tree.unflatten(jax.tree.structure(self), (counts, channels))

    def conv_window(self) -> Float[Array, "B W-1 C"]:
        """The last W - 1 committed inputs of the convolution."""
        return self.window

    def matrix_state(self) -> Float[Array, "B Hv Dk Dv"]:
        """The matrix after the last committed token."""
        return self.matrix

    def extend(
        self, x: DeltaInputs, conv_inputs: Float[Array, "B P C"], n_valid: Int[Array, "B"]
    ) -> tuple[Float[Array, "B T Hv Dv"], ReplayState]:
        """Process `n_valid` final tokens per row. `conv_inputs` is the window followed by the new inputs."""
        out, matrix = gated_delta.prefill(*x, self.matrix, n_valid=n_valid, head_map=self.head_map)
        window = causal_conv1d.window_at(conv_inputs, n_valid, self.window.shape[1])
        return out, ReplayState(matrix, window, self.head_map)

    def verify(
        self, x: DeltaInputs, conv_inputs: Float[Array, "B P C"], n_valid: Int[Array, "B"]
    ) -> tuple[Float[Array, "B T Hv Dv"], ReplayWindow | KeptToken]:
        """Process tokens that may be taken back: all but the first of each row."""
        if x.q.shape[1] == 1:
            out, after = self.extend(x, conv_inputs, n_valid)
            return out, KeptToken(after)
        out, records = gated_delta.verify(*x, self.matrix, n_valid=n_valid, head_map=self.head_map)
        return out, ReplayWindow(self.matrix, records, conv_inputs, self.window.shape[1], self.head_map)


@struct.dataclass
class KeptToken(_Whole):
    """A window of one token per row or none: nothing can be taken back, and the state is passed over once."""

    after: ReplayState

    def commit(self, n: Int[Array, "B"]) -> ReplayState:
        """The state after the window's token, in rows that had one."""
        return self.after


@struct.dataclass
class ReplayWindow(_Whole):
    """The last committed matrix, and what is needed to apply the window's tokens to it."""

    matrix: Float[Array, "B Hv Dk Dv"]
    records: gated_delta.Records
    conv_inputs: Float[Array, "B P C"]
    width: int = struct.field(pytree_node=False)
    head_map: gated_delta.HeadMap = struct.field(pytree_node=False)

    def commit(self, n: Int[Array, "B"]) -> ReplayState:
        """The state after the first n tokens of the window, 0 <= n <= T."""
        return ReplayState(
            matrix=gated_delta.commit(self.matrix, self.records, n, head_map=self.head_map),
            window=causal_conv1d.window_at(self.conv_inputs, n, self.width),
            head_map=self.head_map,
        )


@struct.dataclass
class SnapshotState(_Sum):
    """R snapshot slots per row, of which `slot` names the committed one.

    Attributes:
        slots: slot 0 is the newest state, slot s the state s tokens back.
        slot: which slot is committed.
        conv_inputs: the last inputs of the convolution; the committed window starts at `offset`.
    """

    slots: Float[Array, "B R Hv Dk Dv"]
    slot: Int[Array, "B"]
    conv_inputs: Float[Array, "B W-1+R C"]
    offset: Int[Array, "B"]
    head_map: gated_delta.HeadMap = struct.field(pytree_node=False)

    def segments(self) -> Any:
        """Blocks of value heads, and what the convolution reads."""
        _, _, heads, key_width, value_width = self.slots.shape
        counts, channels = _segments(heads, key_width, value_width, self.conv_inputs.shape[-1], self.head_map)
        return jax.tree.unflatten(jax.tree.structure(self), (counts, (), channels, ()))

    @property
    def _width(self) -> int:
        return self.conv_inputs.shape[1] - self.slots.shape[1]

    def contents(self, row: int, length: int) -> tuple[Content, ...]:
        """The committed state, whichever strategy keeps it."""
        return _contents(self, row, length)

    def conv_window(self) -> Float[Array, "B W-1 C"]:
        """The last W - 1 committed inputs of the convolution."""
        return causal_conv1d.window_at(self.conv_inputs, self.offset, self._width)

    def matrix_state(self) -> Float[Array, "B Hv Dk Dv"]:
        """The matrix after the last committed token."""
        return jnp.take_along_axis(self.slots, self.slot[:, None, None, None, None], axis=1)[:, 0]

    def extend(
        self, x: DeltaInputs, conv_inputs: Float[Array, "B P C"], n_valid: Int[Array, "B"]
    ) -> tuple[Float[Array, "B T Hv Dv"], SnapshotState]:
        """Process `n_valid` final tokens per row; the result stands in slot 0."""
        out, matrix = gated_delta.prefill(*x, self.matrix_state(), n_valid=n_valid, head_map=self.head_map)
        window = causal_conv1d.window_at(conv_inputs, n_valid, self._width)
        zero = jnp.zeros_like(self.slot)
        inputs = jnp.zeros_like(self.conv_inputs).at[:, : self._width].set(window)
        return out, SnapshotState(self.slots.at[:, 0].set(matrix), zero, inputs, zero, self.head_map)

    def verify(
        self, x: DeltaInputs, conv_inputs: Float[Array, "B P C"], n_valid: Int[Array, "B"]
    ) -> tuple[Float[Array, "B T Hv Dv"], SnapshotWindow]:
        """Process up to R tokens that may be taken back.

        Raises:
            ValueError: the call has more tokens than there are slots.
        """
        tokens, slots = x.q.shape[1], self.slots.shape[1]
        if tokens > slots:
            raise ValueError(f"a window of {tokens} tokens needs {tokens} snapshot slots; this state has {slots}")
        out, new_slots = gated_delta.verify_snapshots(
            *x, self.slots, self.slot, n_valid=n_valid, head_map=self.head_map
        )
        padded = jnp.pad(conv_inputs, ((0, 0), (0, slots - tokens), (0, 0)))
        return out, SnapshotWindow(new_slots, self.slot, padded, n_valid, self.head_map)


@struct.dataclass
class SnapshotWindow(_Whole):
    """Snapshots after each of the window's tokens; rows without tokens keep their slots."""

    slots: Float[Array, "B R Hv Dk Dv"]
    slot: Int[Array, "B"]
    conv_inputs: Float[Array, "B W-1+R C"]
    n_valid: Int[Array, "B"]
    head_map: gated_delta.HeadMap = struct.field(pytree_node=False)

    def commit(self, n: Int[Array, "B"]) -> SnapshotState:
        """The state after the first n tokens: 1 <= n <= n_valid, or n = 0 in rows that had no token."""
        slot = jnp.where(self.n_valid > 0, self.n_valid - n, self.slot)
        return SnapshotState(self.slots, slot, self.conv_inputs, n, self.head_map)


RecurrentState = ReplayState | SnapshotState


def zeros(
    strategy: RollbackStrategy,
    *,
    batch: int,
    rows: int,
    value_heads: int,
    key_width: int,
    value_width: int,
    conv_channels: int,
    conv_width: int,
    head_map: gated_delta.HeadMap = "tiled",
) -> RecurrentState:
    """The state before the first token; `rows` is R, the most tokens of a `verify` call (snapshots only)."""
    matrix = (value_heads, key_width, value_width)
    if strategy == "replay":
        return ReplayState(
            matrix=jnp.zeros((batch, *matrix), jnp.float32),
            window=jnp.zeros((batch, conv_width - 1, conv_channels), jnp.float32),
            head_map=head_map,
        )
    if strategy == "snapshot":
        return SnapshotState(
            slots=jnp.zeros((batch, rows, *matrix), jnp.float32),
            slot=jnp.zeros((batch,), jnp.int32),
            conv_inputs=jnp.zeros((batch, conv_width - 1 + rows, conv_channels), jnp.float32),
            offset=jnp.zeros((batch,), jnp.int32),
            head_map=head_map,
        )
    raise ValueError(f"rollback strategy {strategy!r} is unknown; known are 'replay' and 'snapshot'")
