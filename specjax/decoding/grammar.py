"""Grammars on the device: which tokens may come next in each row.

A grammar is an automaton whose letters are tokens. Tokens that do the same in every state are one class, so that its
table is small however large the vocabulary is. The tables of all grammars in use lie one behind the other in one
array, and a row says which of them is its own. Another grammar is other data of the same program.

A row stands in a state: the one after its pending token. Every token that is emitted moves it on. Drafts that are not
accepted do not, so that the state commits and rolls back with the sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax.decoding.vocabulary import any_token, entries_at
from specjax.mesh.columns import own_columns, values_at
from specjax.models.protocol import Drafted

FORBIDDEN = -1
"""Stands in a table in place of the next state."""

LEAST_ENTRIES = 4096
"""Tables are padded to this number of entries times a power of 4, because each size is a program of its own."""


@dataclass(frozen=True, eq=False)
class Grammar:
    """An automaton over tokens; state 0 is the first. From every state some way leads to an end.

    Attributes:
        next: [states, classes] int32, the state after a token of each class, or `FORBIDDEN`.
        classes: [V] int32, the class of each token.
    """

    next: np.ndarray
    classes: np.ndarray

    def allowed(self, state: int) -> np.ndarray:
        """[V], which tokens may come next in a state."""
        return self.next[state, self.classes] != FORBIDDEN

    def after(self, tokens: Iterable[int], state: int = 0) -> int:
        """The state after some tokens.

        Raises:
            ValueError: one of them is not allowed where it stands.
        """
        for place, token in enumerate(tokens):
            state = int(self.next[state, self.classes[token]])
            if state == FORBIDDEN:
                raise ValueError(f"token {token}, number {place + 1} of the text, is not allowed by its grammar")
        return state

    @property
    def entries(self) -> int:
        """How many entries its table has."""
        return self.next.size

    def offset(self, state: int) -> int:
        """A state as rows have it: where its entries begin in the table."""
        return state * self.next.shape[1]


def places_for(count: int) -> int:
    """How many grammars there is room for where so many are used; number 0 is that of rows without one."""
    return 1 << count.bit_length()


@struct.dataclass
class GrammarTables:
    """The tables of several grammars. Number 0 is that of rows without a grammar, and allows everything.

    A state is the place where its entries begin, counted from the begin of its grammar.

    Attributes:
        next: the next state of each entry, or `FORBIDDEN`.
        begin: where the entries of each grammar begin.
        classes: of each grammar, the class of each token. A part of a split model has those of its own tokens.
    """

    next: Int[Array, "entries"]
    begin: Int[Array, "grammars"]
    classes: Int[Array, "grammars V"]

    def of_part(self) -> GrammarTables:
        """The tables as this part of a split model has them, from those of the whole model."""
        return replace(self, classes=own_columns(self.classes))

    def divisible(self, parts: int) -> GrammarTables:
        """The tables with as many tokens for each of so many parts of a model, see `specjax.mesh.columns`."""
        return replace(self, classes=jnp.pad(self.classes, ((0, 0), (0, -self.classes.shape[1] % parts))))

    @classmethod
    def of(cls, grammars: Sequence[Grammar | None], vocab_size: int, least: tuple[int, int] = (0, 0)) -> GrammarTables:
        """The tables of these grammars, the first of which becomes number 1, on the default device.

        Sizes are padded, so that other grammars of similar size fit the same programs.

        Args:
            grammars: None leaves a number free.
            vocab_size: V.
            least: a shape that the tables must have at least, so that programs which exist go on to fit.
        """
        sizes = [1, *(0 if grammar is None else grammar.entries for grammar in grammars)]
        entries = LEAST_ENTRIES
        while entries < sum(sizes):
            entries *= 4
        entries, places = max(entries, least[0]), max(places_for(len(grammars)), least[1])
        following = np.zeros(entries, np.int32)
        begin = np.zeros(places, np.int32)
        classes = np.zeros((places, vocab_size), np.int32)
        for number, grammar in enumerate(grammars, start=1):
            if grammar is None:
                continue
            begin[number] = sum(sizes[:number])
            width, own = grammar.next.shape[1], grammar.next.ravel()
            following[begin[number] :][: len(own)] = np.where(own == FORBIDDEN, FORBIDDEN, own * width)
            classes[number] = grammar.classes
        return cls(jnp.asarray(following), jnp.asarray(begin), jnp.asarray(classes))

    @property
    def shape(self) -> tuple[int, int]:
        """What programs depend on: entries, and grammars."""
        return self.next.size, self.begin.size


@struct.dataclass
class GrammarRows:
    """The grammars of B rows, and where each row stands.

    Attributes:
        which: the number of the row's grammar; 0 for none.
        state: after the pending token, see `GrammarTables`.
        masks_drafts: whether the drafter keeps to the grammar too, see `DraftConfig.masked`.
    """

    which: Int[Array, "B"]
    state: Int[Array, "B"]
    masks_drafts: Bool[Array, "B"]

    @classmethod
    def free(cls, batch: int) -> GrammarRows:
        """Rows of which none has a grammar."""
        return cls(jnp.zeros((batch,), jnp.int32), jnp.zeros((batch,), jnp.int32), jnp.ones((batch,), bool))


@struct.dataclass
class Constraint:
    """What the loop carries of grammars; a batch in which no row has one carries None."""

    tables: GrammarTables
    rows: GrammarRows

    def allowed(
        self, state: Int[Array, "B *T"], tokens: Int[Array, "B Ma"] | None = None
    ) -> Bool[Array, "B *T V"] | Bool[Array, "B M"]:
        """Which tokens may come next in states of each row: of the whole vocabulary, or of the tokens named.

        Where a model is split, a part has the answers for its columns of either.
        """
        classes = self.tables.classes[self.rows.which]
        if tokens is not None:
            classes = own_columns(values_at(classes, tokens))
        begin = self._begin(state) + state
        return self.tables.next[begin[..., None] + classes.reshape(len(classes), *(1,) * (state.ndim - 1), -1)] >= 0

    def before_draft(self, before: Drafted | None) -> Int[Array, "B"]:
        """Where the rows stand before a draft, which comes after another one or is the first of its round."""
        if before is None or before.grammar is None:
            return self.rows.state
        return self.after(before.grammar, before.token)

    def masked_drafts(
        self, logits: Float[Array, "B M"], state: Int[Array, "B"], tokens: Int[Array, "B Ma"] | None
    ) -> Float[Array, "B M"]:
        """A drafter's logits, of some tokens or all, -inf for those that may not come next.

        A drafter that knows none of the tokens that may come next drafts as it would without a grammar. That draft is
        refused by every acceptance rule, because its probability under the target is 0: nothing is biased.
        """
        allowed, free = self.allowed(state, tokens), ~self.rows.masks_drafts[:, None]
        if tokens is not None:  # of the whole vocabulary some token may always come next
            free |= ~any_token(allowed)
        return _only(logits, allowed | free)

    def after(self, state: Int[Array, "B"], token: Int[Array, "B"]) -> Int[Array, "B"]:
        """The state after one more token of each row; a token that may not come next leaves it as it is.

        What follows such a draft means nothing, but must be computed from some state.
        """
        own = entries_at(self.tables.classes, self.rows.which, token)
        following = self.tables.next[self._begin(state) + state + own]
        return jnp.where(following == FORBIDDEN, state, following)

    def window(self, drafts: Int[Array, "B K"]) -> GrammarWindow:
        """The states in which a round chooses tokens: after the pending token and after each draft."""
        states = [self.rows.state]
        for place in range(drafts.shape[1]):
            states.append(self.after(states[-1], drafts[:, place]))
        return GrammarWindow(self, jnp.stack(states, axis=1))

    def _begin(self, state: Int[Array, "B *T"]) -> Int[Array, "B *ones"]:
        return self.tables.begin[self.rows.which].reshape(-1, *(1,) * (state.ndim - 1))


class GrammarWindow(NamedTuple):
    """States of the verified rows, of which one will be kept, see `Constraint.window`."""

    constraint: Constraint
    states: Int[Array, "B R"]

    def masked(self, logits: Float[Array, "B R V"]) -> Float[Array, "B R V"]:
        """The target's logits, -inf for tokens that may not come next."""
        return _only(logits, self.constraint.allowed(self.states))

    def commit(self, n: Int[Array, "B"], last: Int[Array, "B"]) -> Constraint:
        """After n tokens were emitted: drafts, and the token `last`. A row with n = 0 stays where it was."""
        stood = jnp.take_along_axis(self.states, jnp.maximum(n - 1, 0)[:, None], axis=1)[:, 0]
        rows = self.constraint.rows
        state = jnp.where(n > 0, self.constraint.after(stood, last), rows.state)
        return replace(self.constraint, rows=replace(rows, state=state))


def _only(logits: Float[Array, "B *T M"], allowed: Bool[Array, "B *T M"]) -> Float[Array, "B *T M"]:
    """-inf where a token is not allowed. Should a model itself exclude all that are, they are equally probable."""
    return jnp.where(allowed, jnp.maximum(logits, jnp.finfo(logits.dtype).min), -jnp.inf)
