"""What the decoding loop knows of models: targets and drafters as frozen descriptions with pure methods.

A target or drafter is hashable (a static argument of jitted functions); parameters and state travel as pytrees.
`params` is always the whole tree, so that a drafter can share the target's embedding and output head.

One round, for a row whose state has `length` committed tokens and whose `pending` token has been chosen but not fed:

1. `drafter.propose(pending, K)` -> drafts d1..dK;
2. `target.verify([pending, d1..dK])` -> logits of every row, requested features, a window;
3. the loop accepts n of the drafts and chooses the next pending token;
4. `drafter.observe(tokens, features)` joins the window, and `specjax.state.commit(window, n + 1)` keeps the accepted
   tokens in every part of the state at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.state import KVTypes, Part, RollbackStrategy, SequenceState, SequenceWindow, Window

Params = dict[str, Any]
Rows = Literal["all", "last", "none"]


@dataclass(frozen=True)
class FeatureRequest:
    """Which of the target's internals a drafter reads; the target returns these and nothing else.

    Attributes:
        final_hidden: the hidden states that the output head reads (or what the family's head expects).
        layer_inputs: indices of layers whose input is wanted, from 0 to L; L stands for the output of the last layer,
            before the final norm.
    """

    final_hidden: bool = False
    layer_inputs: tuple[int, ...] = ()


class Features(NamedTuple):
    """Requested features of every row of a call; what was not asked for is None or ()."""

    final_hidden: Float[Array, "B T D"] | None = None
    layer_inputs: tuple[Float[Array, "B T D"], ...] = ()


class TargetOutput(NamedTuple):
    """Logits of the rows asked for, and the requested features of all rows.

    Attributes:
        logits: [B, T, V] for rows "all", [B, 1, V] for "last" (each row's last valid token), None for "none".
        features: see `Features`.
    """

    logits: Float[Array, "B rows V"] | None
    features: Features


class ModelConfig(Protocol):
    """What every family's config says."""

    @property
    def architecture(self) -> str:
        """The name of the architecture in GGUF files, such as "qwen35"."""
        ...

    @property
    def num_layers(self) -> int:
        """L, layers of the trunk."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int:
        """The longest sequence that the model was made for, in tokens."""
        ...


class Target(Protocol):
    """The model whose output must not change."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def width(self) -> int:
        """D, the width of its embeddings and hidden states."""
        ...

    @property
    def num_layers(self) -> int:
        """L, layers of the trunk."""
        ...

    @property
    def context_length(self) -> int:
        """The longest sequence that the model was made for, in tokens."""
        ...

    def shard(self, parts: int) -> Target:
        """The target of one of so many parts of the model, as each device of a mesh runs it.

        Its heads, hidden columns and logits are those of the part, in order of the parts; logits behind the end of the
        vocabulary are -inf. All else that goes in and out is whole, but for the state.

        Raises:
            ValueError: the model cannot be split so; the message lists what does not divide.
        """
        ...

    def init_layers(
        self, batch: int, capacity: int, *, rows: int, chunk: int, rollback: RollbackStrategy, kv_types: KVTypes
    ) -> tuple[Any, ...]:
        """The state of all layers before the first token.

        Args:
            batch, capacity: sequences, and positions of each.
            rows, chunk: the most tokens of a `verify` and an `extend` call; more are fed where no shape depends on it.
            rollback: strategy of recurrent layers.
            dtype: of KV caches.
        """
        ...

    def embed(self, params: Params, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        """What the tokens enter the first layer as, for drafters that share the embedding table."""
        ...

    def embedding_rows(self, params: Params, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        """Rows of the embedding table, before anything that the target does to them."""
        ...

    def norm(self, params: Params, hidden: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """The final norm, for drafters that share it."""
        ...

    def unembed(self, params: Params, normed: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of normed hidden states, for drafters that share the output head."""
        ...

    def head_paths(self) -> tuple[str, ...]:
        """Paths of the parameters that `unembed` multiplies with: matrices with a row for each token."""
        ...

    def extend(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        n_valid: Int[Array, "B"],
        state: SequenceState,
        *,
        request: FeatureRequest,
        rows: Rows,
    ) -> tuple[TargetOutput, SequenceState]:
        """Feed tokens that are final; the drafter's part of the state is passed through."""
        ...

    def verify(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        n_valid: Int[Array, "B"],
        state: SequenceState,
        *,
        request: FeatureRequest,
    ) -> tuple[TargetOutput, SequenceWindow]:
        """Feed tokens that may be taken back; logits of all rows. The window has no drafter part yet."""
        ...


class Drafted(NamedTuple):
    """A draft per row, as the choice of the next one wants to know it.

    Attributes:
        token: [B].
        grammar: [B], in which state of its grammar each row stood before it; None where no row has a grammar.
    """

    token: Int[Array, "B"]
    grammar: Int[Array, "B"] | None


class Choice(NamedTuple):
    """A drafted token per row, with what acceptance needs to know of it.

    Attributes:
        token: [B].
        logq: the log-probabilities that the token was drawn from, of the whole vocabulary; None when it was not drawn
            for rejection sampling.
        confidence: how sure the drafter is: its largest probability, before warping, or what a head says. It may depend
            on the drafts before this one, never on this one: to stop drafting because of the token that was *drawn*
            would bias rejection sampling.
        grammar: see `Drafted`.
    """

    token: Int[Array, "B"]
    logq: Float[Array, "B V"] | None
    confidence: Float[Array, "B"]
    grammar: Int[Array, "B"] | None = None

    @property
    def drafted(self) -> Drafted:
        """What the choice of the next draft wants to know."""
        return Drafted(self.token, self.grammar)


class ChooseDraft(Protocol):
    """Chooses a draft token from a drafter's logits and the position that the token will have."""

    def __call__(
        self,
        logits: Float[Array, "B M"],
        position: Int[Array, "B"],
        tokens: Int[Array, "B Ma"] | None = None,
        before: Drafted | None = None,
    ) -> Choice:
        """Choose a token per row.

        Args:
            logits: of M tokens; where the model is split, those of a part, see `specjax.mesh.columns.own_columns`.
            position: where the chosen token will stand.
            tokens: which tokens have been scored, each once, by all parts together; all others have probability 0.
                None: the whole vocabulary in order.
            before: the draft before it; None for the first draft of a round. Where a row has a grammar, it says which
                tokens may come next. A drafter that leaves it out has fewer drafts accepted, and is no less exact.
        """
        ...


class KeepGoing(Protocol):
    """Says which rows have a use for a further draft."""

    def __call__(self, confidence: Float[Array, "B"], made: Int[Array, ""] | int, drafter: int = 0) -> Bool[Array, "B"]:
        """Which rows go on after the `made`-th draft, which had this confidence.

        0 drafts, with confidence 1, ask which rows want a draft at all. A list of drafters asks for each by its number.
        """
        ...


class Proposal(NamedTuple):
    """K drafts per row.

    Attributes:
        tokens: [B, K].
        logq: [B, K, V] or None, see `Choice`.
        confidence: [B, K], see `Choice`.
        state: the drafter's state after drafting.
        made: [B], how many of the K columns are drafts, None for all; it must not depend on what was drawn.
        source: [B], by its number, which of several drafters made them; None for a drafter that is one. It is read for
            statistics only.
    """

    tokens: Int[Array, "B K"]
    logq: Float[Array, "B K V"] | None
    confidence: Float[Array, "B K"]
    state: Any
    made: Int[Array, "B"] | None = None
    source: Int[Array, "B"] | None = None

    @classmethod
    def sure(cls, tokens: Int[Array, "B K"], state: Any, made: Int[Array, "B"] | None = None) -> Proposal:
        """Drafts that are a function of the text: nothing was drawn, and each is as good as the others."""
        return cls(tokens, None, jnp.ones(tokens.shape, jnp.float32), state, made)

    @classmethod
    def drawn(cls, choices: Sequence[Choice], state: Any, made: Int[Array, "B"] | None = None) -> Proposal:
        """Drafts that were drawn one after the other: what `choose` returned for each of the K places."""
        columns: Choice = jax.tree.map(lambda *column: jnp.stack(column, axis=1), *choices)
        return cls(columns.token, columns.logq, columns.confidence, state, made)


class Drafter(Protocol):
    """Proposes tokens. Its state is a part of `SequenceState` and is committed with it.

    It is a hashable value without arrays in it: arrays are `parameters`. `specjax.models.parts.drafter.BaseDrafter` has
    answers for most of these questions.
    """

    def attach(self, target: Target) -> Drafter:
        """The drafter for this target.

        Raises:
            ValueError: it does not fit; the message says in what.
        """
        ...

    def parameters(self, target: Target) -> Params:
        """The parameters that it brings along, by names that the target's tree does not have; {} for none."""
        ...

    def shard(self, parts: int) -> Drafter:
        """The drafter of one of so many parts of the model, see `Target.shard`. Its logits are split as the target's.

        Raises:
            ValueError: it cannot be split; the message says why.
        """
        ...

    def head_paths(self) -> tuple[str, ...]:
        """Paths of the parameters that its logits are products with: matrices with a row for each token, in order.

        They are multiplied with by `as_weight`, see `pallas_kernels.matmul`. If that gives products with some of their
        rows only, the logits are those of these tokens, and `propose` works as before. A drafter without logits, such
        as n-grams, returns ().

        Raises:
            ValueError: the drafter does not say which they are, or no rows can be left out; the message says why.
        """
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """Who drafts, to be told to people: its class, or those of the drafters that it is made of."""
        ...

    @property
    def keeper(self) -> Drafter:
        """The drafter that its state belongs to, whose saved sessions it can go on with: itself, if it wraps none."""
        ...

    @property
    def request(self) -> FeatureRequest:
        """What it reads of the target."""
        ...

    @property
    def max_drafts(self) -> int | None:
        """The most drafts it can make in a round, or None."""
        ...

    def init_state(self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes) -> Part | None:
        """Its state before the first token, if it has one; the arguments are those of `Target.init_layers`."""
        ...

    def extend(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        features: Features,
        n_valid: Int[Array, "B"],
        state: Any,
        length: Int[Array, "B"],
    ) -> Any:
        """Take in final tokens and the target's features of them; `length` counts the tokens before them."""
        ...

    def narrowed(self, params: Params, state: Any, length: Int[Array, "B"], rows: int) -> Any:
        """The state with at most `rows` verified rows waiting in it, so that rounds of that many rows can follow."""
        ...

    def propose(
        self,
        params: Params,
        pending: Int[Array, "B"],
        state: SequenceState,
        *,
        num_drafts: int,
        choose: ChooseDraft,
        keep_going: KeepGoing,
    ) -> Proposal:
        """Draft `num_drafts` tokens after `pending`, which has position `state.length`.

        The drafter's own state is `state.drafter`; a drafter made for one target may also read that target's layers.

        Drafting may stop when no row keeps going, see `KeepGoing`, and need not begin if none wants a draft. Later
        columns then have confidence 0, and no row verifies them. The state is kept up in any case.
        """
        ...

    def observe(self, tokens: Int[Array, "B T"], features: Features, state: Any) -> Window | None:
        """Join a verified window: its tokens and the target's features of them, of which a part will be committed."""
        ...

    def hidden_norm(self, state: Any) -> Float[Array, "B"] | None:
        """For traces: the L2 norm of the hidden state that the next draft starts from, if it starts from one."""
        ...


@dataclass(frozen=True)
class FileDrafter:
    """How the model of a file of its own becomes a drafter.

    Attributes:
        part: which part of the file's parameter tree it needs.
        under: the branch of the target's tree that this part is put under; None for none.
        own_vocabulary: whether it has a vocabulary of its own, which must then be that of the target.
        attach: see `Drafter.attach`.
    """

    part: str
    under: str | None
    own_vocabulary: bool
    attach: Callable[[Target], Drafter]
