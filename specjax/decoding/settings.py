"""What a request wants of decoding: validated values on the host, and arrays with one entry a row on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple, get_args

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt

from specjax.decoding.arrays import to_device
from specjax.decoding.grammar import Grammar
from specjax.decoding.leaning import NO_LEANING, Leaning, LeaningRows

STOP_WIDTHS = (4, 16, 64, 256)
"""Stop tokens are padded to one of these counts, because each count is a program of its own."""

DrawingRule = Literal["coupled", "rejection", "block"]
RULES: tuple[DrawingRule, ...] = get_args(DrawingRule)
"""The rules of acceptance for rows that draw, see `specjax.decoding.acceptance`."""

NO_STOP = -1
"""Fills `RowSettings.stop_tokens`: no token has this id."""


@dataclass(frozen=True)
class SamplerConfig:
    """How a distribution is made from logits.

    temperature: divides the logits; 0 is greedy decoding, and the other settings then have no effect.
    top_k: keep the k most probable tokens; 0 keeps all.
    top_p: keep the smallest set of most probable tokens with total probability >= top_p; 1 keeps all.
    min_p: keep the tokens with probability >= min_p times the largest; 0 keeps all.

    Among equal logits the lower token id is kept first. Raises ValueError for a setting out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        t = self.temperature
        if not (t == 0 or 1e-6 <= t < math.inf):
            raise ValueError(f"temperature is {t}; give 0 for greedy decoding or a finite number of at least 1e-6")
        if not (isinstance(self.top_k, int) and self.top_k >= 0):
            raise ValueError(f"top_k is {self.top_k!r}; give the number of tokens to keep, or 0 to keep all")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; give a probability above 0 and up to 1 (1 keeps all tokens)")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p}; give a fraction from 0 to 1 (0 keeps all tokens)")

    @property
    def greedy(self) -> bool:
        """Whether the argmax is taken and nothing is drawn."""
        return self.temperature == 0


@dataclass(frozen=True)
class DraftConfig:
    """Draft length control.

    n_max: most drafts of a round; 0 is plain decoding.
    n_min: a draft shorter than this is dropped.
    p_min: drafting stops before the first token for which the drafter's confidence is below this.
    skip_streak: after this many drafting rounds in a row without an accepted draft, one round does not draft; 0 never
        skips.
    auto: how many are drafted, from 0 to n_max, is found while decoding: what gives most tokens a second.
    masked: whether drafts keep to the grammar of the text, if it has one. Without it fewer of them are accepted.

    Raises ValueError for a setting out of its range.
    """

    n_max: int = 3
    n_min: int = 0
    p_min: float = 0.0
    skip_streak: int = 0
    auto: bool = False
    masked: bool = True

    def __post_init__(self) -> None:
        for name in ("n_max", "n_min", "skip_streak"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 0):
                raise ValueError(f"{name} is {value!r}; give an integer of at least 0")
        if self.n_min > self.n_max:
            raise ValueError(
                f"n_min is {self.n_min} but n_max is {self.n_max}: every draft would be dropped; lower n_min"
            )
        if self.auto and self.n_min:
            raise ValueError(f"n_min is {self.n_min}, but with auto fewer drafts may be best; leave n_min or auto out")
        if not 0 <= self.p_min <= 1:
            raise ValueError(f"p_min is {self.p_min}; give a probability from 0 to 1 (0 never stops)")

    def check_lossless(self, *, drawn: bool) -> None:
        """Raise ValueError if these settings would bias the acceptance of drafts that are `drawn` at random.

        With p_min, whether a second draft follows depends on the first one. To drop the first for want of a second
        (n_min of 2 or more) is then to look at the token and throw it away, which neither rejection sampling nor block
        verification corrects. Drafts that are a function of the context (greedy or coupled) cannot be biased this way.
        """
        if drawn and self.p_min > 0 and self.n_min > 1:
            raise ValueError(
                f"n_min={self.n_min} with p_min={self.p_min} would bias rejection sampling and block verification: a"
                " drawn draft would be dropped because of its value; set n_min to 0 or 1, or p_min to 0, or use the"
                " coupled rule"
            )


@dataclass(frozen=True)
class Settings:
    """What one request wants.

    Attributes:
        sampler: how its logits become a distribution.
        draft: how many tokens are drafted for it.
        seed: of its random draws, from 0 to 2**32 - 1.
        stop_tokens: tokens that end its text; the token itself is still emitted.
        grammar: which tokens may follow each other; None allows all. `RowSettings` does not have it, see `Constraint`.
        rule: how drafts are accepted, where the program leaves this to its rows.
        scored: whether log-probabilities are recorded, where the program records any.
        leaning: what is added to its logits.
        drafters: the numbers, from 0 to 30, of those drafters of a list that may draft for it; None for all of them.

    Raises:
        ValueError: the seed or the number of a drafter is out of its range, or a stop token is negative.
    """

    sampler: SamplerConfig = SamplerConfig()
    draft: DraftConfig = DraftConfig()
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()
    grammar: Grammar | None = None
    rule: DrawingRule = "rejection"
    scored: bool = True
    leaning: Leaning = NO_LEANING
    drafters: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed is {self.seed}; it must be from 0 to 2**32 - 1")
        if any(token < 0 for token in self.stop_tokens):
            raise ValueError(f"stop_tokens are {self.stop_tokens}; token ids are at least 0")
        if self.drafters is not None and not set(self.drafters) <= set(range(31)):
            raise ValueError(f"drafters are {self.drafters}; give numbers from 0 to 30, or None for all drafters")

    @property
    def drafter_bits(self) -> int:
        """Bit n says whether the n-th drafter of a list may draft, from 0 on. A drafter that is one is the first."""
        return -1 if self.drafters is None else sum(1 << number for number in set(self.drafters))


@struct.dataclass
class RowSettings:
    """The settings of B rows. Whatever they say, the program is the same, but for what `Room` says.

    Attributes:
        temperature, top_k, top_p: see `SamplerConfig`.
        min_score: the logarithm of `SamplerConfig.min_p`, -inf where that is 0.
        seed: of random draws.
        n_drafts, n_min, p_min, skip_streak: see `DraftConfig`, whose `n_max` is called n_drafts here: 0 up to the
            program's K.
        drafters: see `Settings.drafter_bits`.
        rule: the number of the rule in `RULES`; it counts where the program leaves this to its rows.
        scored: whether log-probabilities are recorded, where the program records any.
        stop_tokens: tokens that end the row, padded with `NO_STOP`.
        leaning: what is added to logits; None if no row asks for it.
    """

    temperature: Float[Array, "B"]
    top_k: Int[Array, "B"]
    top_p: Float[Array, "B"]
    min_score: Float[Array, "B"]
    seed: UInt[Array, "B"]
    n_drafts: Int[Array, "B"]
    n_min: Int[Array, "B"]
    p_min: Float[Array, "B"]
    skip_streak: Int[Array, "B"]
    drafters: Int[Array, "B"]
    rule: Int[Array, "B"]
    scored: Bool[Array, "B"]
    stop_tokens: Int[Array, "B M"]
    leaning: LeaningRows | None = None

    @classmethod
    def of(cls, rows: Sequence[Settings], *, room: Room | None = None) -> RowSettings:
        """The arrays for these rows, on the default device.

        Args:
            rows: what each of them wants.
            room: what there is room for; by default what they want.

        Raises:
            ValueError: a row wants more than there is room for.
        """
        width, leans = Room.of(rows) if room is None else room
        if not leans and any(row.leaning for row in rows):
            raise ValueError("a row has a bias or penalties, but there is room for none")
        stops = np.full((len(rows), width), NO_STOP, np.int32)
        for stop, row in zip(stops, rows, strict=True):
            if len(row.stop_tokens) > width:
                raise ValueError(f"a row has {len(row.stop_tokens)} stop tokens, but there is room for {width}")
            stop[: len(row.stop_tokens)] = row.stop_tokens
        numbers = {
            "temperature": (np.float32, [row.sampler.temperature for row in rows]),
            "top_k": (np.int32, [min(row.sampler.top_k, 2**31 - 1) for row in rows]),
            "top_p": (np.float32, [row.sampler.top_p for row in rows]),
            # On the host, in double precision: the device's logarithm may differ in the last place.
            "min_score": (np.float32, [math.log(p) if (p := row.sampler.min_p) else -math.inf for row in rows]),
            "seed": (np.uint32, [row.seed for row in rows]),
            "n_drafts": (np.int32, [row.draft.n_max for row in rows]),
            "n_min": (np.int32, [row.draft.n_min for row in rows]),
            "p_min": (np.float32, [row.draft.p_min for row in rows]),
            "skip_streak": (np.int32, [row.draft.skip_streak for row in rows]),
            "drafters": (np.int32, [row.drafter_bits for row in rows]),
            "rule": (np.int32, [RULES.index(row.rule) for row in rows]),
            "scored": (np.bool_, [row.scored for row in rows]),
        }
        arrays: dict[str, np.ndarray] = {name: np.array(values, dtype) for name, (dtype, values) in numbers.items()}
        leaning = LeaningRows.of([row.leaning for row in rows]) if leans else None
        return cls(**to_device({**arrays, "stop_tokens": stops}), leaning=leaning)

    @property
    def draws(self) -> Bool[Array, "B *ones"]:
        """Which rows draw at random; the others are greedy. As many axes as `along` has given."""
        return self.temperature > 0

    def may_draft(self, drafter: int) -> Bool[Array, "B *ones"]:
        """For which rows the drafter of this number may draft."""
        return (self.drafters >> drafter) & 1 == 1

    def along(self, x: Array) -> RowSettings:
        """With axes of length 1 behind the batch, so that every number broadcasts against `x` [B, ...]."""
        shape = (-1,) + (1,) * (x.ndim - 1)
        names = (each.name for each in fields(self) if each.name not in ("stop_tokens", "leaning"))
        return replace(self, **{name: getattr(self, name).reshape(shape) for name in names})

    def idle_unless(self, active: Bool[Array, "B"]) -> RowSettings:
        """With greedy settings where a row is not active, so that finished rows cost the others no sampling."""
        return replace(self, temperature=jnp.where(active, self.temperature, 0))

    def stop_at(self, tokens: Int[Array, "B *T"]) -> Bool[Array, "B *T"]:
        """Which tokens end their row. Tokens with a negative id may be said to."""
        stops = self.stop_tokens.reshape(self.stop_tokens.shape[0], *(1,) * (tokens.ndim - 1), -1)
        return jnp.any(tokens[..., None] == stops, axis=-1)


class Room(NamedTuple):
    """What programs depend on of the settings of rows.

    Attributes:
        stop_tokens: M, how many stop tokens each row may have.
        leaning: whether rows may have a bias or penalties.
    """

    stop_tokens: int
    leaning: bool

    @classmethod
    def of(cls, rows: Sequence[Settings]) -> Room:
        """The room that these rows want."""
        return cls(_stop_width(rows), any(row.leaning for row in rows))

    def with_room_for(self, other: Room) -> Room:
        """The room for what either has room for."""
        return Room(max(self.stop_tokens, other.stop_tokens), self.leaning or other.leaning)


def _stop_width(rows: Sequence[Settings]) -> int:
    """The least of `STOP_WIDTHS` that holds the stop tokens of every row; beyond the last one, the next power of 4."""
    most = max((len(row.stop_tokens) for row in rows), default=0)
    width = next((width for width in STOP_WIDTHS if width >= most), STOP_WIDTHS[-1])
    while width < most:
        width *= 4
    return width
