"""Logits that a request changes: a bias of single tokens, and penalties for tokens that its text has already.

Both are added to the target's logits before anything is chosen from them, and to the drafter's, so that its drafts go
on to be accepted. Penalties hang on how often the text has each token. Drafts count as soon as they are verified, and
are forgotten if they are taken back: only what was emitted is committed.

A batch in which no row asks for either carries None, and its program is the one without them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from specjax.decoding.arrays import to_device
from specjax.mesh.columns import own_columns, values_at

MOST_BIASES = 300
"""So many tokens of a row may have a bias. There is room for all of them, so that fewer or more compile nothing."""

NO_TOKEN = 2**31 - 1
"""Fills `LeaningRows.tokens`: no vocabulary has this id."""


@dataclass(frozen=True)
class Leaning:
    """What is added to the logits of a request.

    Attributes:
        bias: pairs of a token and a number that is added to its logit, in the order of the tokens.
        presence: subtracted from the logit of every token that the text has.
        frequency: subtracted from it as often as the text has the token.

    Raises:
        ValueError: a number is not finite, or too many tokens have a bias.
    """

    bias: tuple[tuple[int, float], ...] = ()
    presence: float = 0.0
    frequency: float = 0.0

    def __post_init__(self) -> None:
        if len(self.bias) > MOST_BIASES:
            raise ValueError(f"logit_bias has {len(self.bias)} tokens; give at most {MOST_BIASES}")
        for token, value in self.bias:
            if token < 0 or not math.isfinite(value):
                raise ValueError(
                    f"logit_bias adds {value} to token {token}; give ids of at least 0, and finite numbers: -100 is as"
                    " good as never"
                )
        for name in ("presence", "frequency"):
            if not math.isfinite(value := getattr(self, name)):
                raise ValueError(f"{name}_penalty is {value}; give a finite number, 0 for none")

    def __bool__(self) -> bool:
        """Whether it changes any logit."""
        return bool(self.bias or self.presence or self.frequency)


NO_LEANING = Leaning()


def pairs_of(bias: Any) -> tuple[tuple[int, float], ...]:
    """A bias as a value, from a dict or from pairs. In JSON the ids are texts.

    Raises:
        TypeError: it is something else.
    """
    try:
        pairs = list(bias.items()) if isinstance(bias, Mapping) else list(bias)
        whole = [(token if isinstance(token, str) else operator.index(token), value) for token, value in pairs]
        found = {int(token): float(value) for token, value in whole}
    except (TypeError, ValueError):
        found, pairs = {}, [bias]
    if len(found) != len(pairs):
        raise TypeError(f"logit_bias is {bias!r}; give a dict from ids of tokens to numbers")
    return tuple(sorted(found.items()))


@struct.dataclass
class LeaningRows:
    """The leanings of B rows.

    Attributes:
        tokens, values: the tokens with a bias and their biases, padded with `NO_TOKEN`.
        presence, frequency: see `Leaning`.
    """

    tokens: Int[Array, "B biases"]
    values: Float[Array, "B biases"]
    presence: Float[Array, "B"]
    frequency: Float[Array, "B"]

    @classmethod
    def of(cls, rows: Sequence[Leaning]) -> LeaningRows:
        """The arrays for these rows, on the default device."""
        tokens = np.full((len(rows), MOST_BIASES), NO_TOKEN, np.int32)
        values = np.zeros(tokens.shape, np.float32)
        for row, leaning in enumerate(rows):
            for place, pair in enumerate(leaning.bias):
                tokens[row, place], values[row, place] = pair
        penalties = (np.array([getattr(row, name) for row in rows], np.float32) for name in ("presence", "frequency"))
        return cls(*to_device((tokens, values, *penalties)))

    def offsets(self, counts: Int[Array, "B *T Va"]) -> Float[Array, "B *T V"]:
        """What is added to logits after texts that have each token so often. A part of a split model has its tokens."""
        size, ones = counts.shape[-1], (1,) * (counts.ndim - 2)
        rows = jnp.arange(len(self.tokens))[:, None]
        bias = jnp.zeros((len(self.tokens), size)).at[rows, self.tokens].set(self.values, mode="drop")
        presence, frequency = (each.reshape(-1, *ones, 1) for each in (self.presence, self.frequency))
        return own_columns(bias.reshape(-1, *ones, size) - frequency * counts - presence * (counts > 0))


def offset_after(leaning: Leaning, said: Sequence[int], vocab_size: int) -> Float[np.ndarray, "V"]:
    """What is added to the logits after a text has said these tokens, on the host."""
    counts = np.bincount(np.asarray(said, np.int64), minlength=vocab_size)
    return np.asarray(LeaningRows.of([leaning]).offsets(jnp.asarray(counts[None], jnp.int32)))[0]


def no_counts(batch: int, vocab_size: int) -> Int[Array, "B Va"]:
    """The counts of texts without a token."""
    return jnp.zeros((batch, vocab_size), jnp.int32)


def counted(
    counts: Int[Array, "B Va"] | None, tokens: Int[Array, "B R"], n: Int[Array, "B"]
) -> Int[Array, "B Va"] | None:
    """The counts after the first n of these tokens as well."""
    if counts is None:
        return None
    said = jnp.arange(tokens.shape[1]) < n[:, None]
    return counts.at[jnp.arange(len(tokens))[:, None], tokens].add(said.astype(jnp.int32))


def leaned(
    logits: Float[Array, "B R V"],
    rows: LeaningRows | None,
    counts: Int[Array, "B Va"] | None,
    drafts: Int[Array, "B K"],
) -> Float[Array, "B R V"]:
    """The target's logits as rows want them, after the text that was counted and after each of the drafts behind it."""
    if rows is None:
        return logits
    assert counts is not None, "rows that lean are counted"
    batch, count = drafts.shape
    places = jnp.arange(count + 1)
    before = (jnp.arange(count) < places[:, None]).astype(jnp.int32)
    where = jnp.arange(batch)[:, None, None], places[:, None], drafts[:, None]
    return logits + rows.offsets(jnp.repeat(counts[:, None], count + 1, axis=1).at[where].add(before))


def leaned_drafts(
    logits: Float[Array, "B M"], offsets: Float[Array, "B V"], tokens: Int[Array, "B Ma"] | None
) -> Float[Array, "B M"]:
    """A drafter's logits, of some tokens or all, with these offsets of the vocabulary."""
    return logits + (offsets if tokens is None else own_columns(values_at(offsets, tokens)))
