"""The first difference of two texts: what each has there, what the model says to it, and what rounding can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from specjax.analysis.diverge.law import Feeding, at_once, padded
from specjax.analysis.diverge.sides import Side
from specjax.analysis.divergence import beyond_filters, margin_between, tolerance_of_model
from specjax.decoding.acceptance import draws_drafts
from specjax.decoding.decoder import Decoder
from specjax.decoding.grammar import Grammar
from specjax.decoding.leaning import offset_after
from specjax.decoding.sampling import sample_tokens
from specjax.decoding.settings import RowSettings, Settings
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions
from specjax.runtime.slots import slots_for
from specjax.state import KVTypes

SAFETY, WIDEST = 4, 4
"""Tokens tie below the tolerance of the model's types, or below so many times what rounding does to their margin here.
What was measured can widen the tolerance no more than so many times."""


@dataclass(frozen=True)
class Candidate:
    """What one of the sides has at the first difference.

    Attributes:
        side: its name.
        token, text: the token, and how it reads.
        logit, logprob, rank: what the model says of it; the best token has rank 1, and log-probabilities are natural.
        shortfall: how far it is from what the model chooses with the side's own settings, as a difference of logits; 0
            if it is that token.
        explained: whether that is no more than rounding.
        allowed: whether the side's grammar allows it there; None without a grammar. Of what is not allowed the
            shortfall is infinite.
    """

    side: str
    token: int
    text: str
    logit: float
    logprob: float
    rank: int
    shortfall: float
    explained: bool
    allowed: bool | None = None


@dataclass(frozen=True)
class Difference:
    """The first difference.

    Attributes:
        index: among the generated tokens, from 0.
        position: of the token in the whole text, from 0.
        candidates: what the two sides have there.
        margin: how far the two tokens are from a tie, see `Divergence.margin`; infinite if a side's grammar does not
            allow its token.
        relative_margin: the same over the largest absolute logit.
        rounding: by how much the margin moves if the text is fed in pieces and then token by token, with caches, and
            not in one call. It is the largest of both sides' cache types.
        logit_rounding: by how much the logit that moves most does so.
        limit: the largest relative margin of a near-tie: with the cache types of both sides if they are the same, and
            with caches in f32 if they are not.
        leads: the logit of A's token minus that of B's, as each side's cache types give it.
    """

    index: int
    position: int
    candidates: tuple[Candidate, Candidate]
    margin: float
    relative_margin: float
    rounding: float
    logit_rounding: float
    limit: float
    leads: tuple[float, float]

    @property
    def near_tie(self) -> bool:
        """Whether the two tokens tie within rounding."""
        return self.relative_margin < self.limit

    @property
    def explained(self) -> bool:
        """Whether each side has what the model chooses with its settings, or what ties with that."""
        return all(candidate.explained for candidate in self.candidates)


@dataclass(frozen=True)
class _Place:
    """The logits of one place with some cache types: of one call over the text, and as decoding feeds it."""

    once: Float[np.ndarray, "V"]
    fed: Float[np.ndarray, "V"]

    @classmethod
    def of(cls, model: Model, prompt: Sequence[int], tokens: Sequence[int], kv_types: KVTypes) -> _Place:
        decoder = Decoder(model.target, None, max_drafts=0, kv_types=kv_types)
        text = [*prompt, *tokens]
        feeding = Feeding(decoder, model.params, slots_for(len(text)))
        feeding.feed_prompt(prompt)
        feeding.feed_each(tokens)
        return cls(at_once(decoder, model.params, text, padded(len(text)))[0], feeding.logits)


def is_fixed(options: GenerateOptions, has_drafter: bool) -> bool:
    """Whether the logits and the noise of a place decide its token: not if drafts are drawn by themselves."""
    if options.sampler.greedy or not draws_drafts(options.rule):
        return True
    return options.draft_config(has_drafter).n_max == 0


def judge(
    model: Model,
    prompt: Sequence[int],
    sides: tuple[Side, Side],
    tokens: tuple[Sequence[int], Sequence[int]],
    index: int,
    options: GenerateOptions,
    sequence: int,
) -> Difference:
    """Look at the first difference.

    Args:
        model, prompt: whose text it is.
        sides, tokens: the two sides, and what each says.
        index: of the first token that differs.
        options: how tokens were chosen of which that is not known.
        sequence: the random stream.
    """
    before, position = list(tokens[0][:index]), len(prompt) + index
    each = [side.options or options for side in sides]
    types = [KVTypes() if side.options is None else side.options.kv_types for side in sides]
    places = {kv: _Place.of(model, prompt, before, kv) for kv in dict.fromkeys([KVTypes(), *types])}
    law, pair = places[KVTypes()].once, (tokens[0][index], tokens[1][index])

    masks = [_allowed(model.grammar(own), before) for own in each]
    allowed = [mask is None or bool(mask[token]) for mask, token in zip(masks, pair, strict=True)]

    def held(logits: Float[np.ndarray, "V"], own: GenerateOptions, mask: np.ndarray | None) -> Float[np.ndarray, "V"]:
        if own.leaning:
            logits = logits + offset_after(own.leaning, before, len(logits))
        return logits if mask is None else np.where(mask, logits, -np.inf)

    def margin(logits: Float[np.ndarray, "V"]) -> float:
        left = held(logits, each[0], masks[0])
        return margin_between(left, pair, each[0], sequence, position)[0] if all(allowed) else float("inf")

    def lead(kv: KVTypes) -> float:
        return float(places[kv].once[pair[0]] - places[kv].once[pair[1]])

    peak = float(np.abs(law).max())
    rounding = dict.fromkeys(places, 0.0)
    if np.isfinite(margin(law)):
        rounding = {kv: abs(margin(place.once) - margin(place.fed)) for kv, place in places.items()}
    tolerance = {kv: tolerance_of_model(model, kv) for kv in places}
    limits = {kv: float(np.clip(SAFETY * rounding[kv] / peak, tolerance[kv], WIDEST * tolerance[kv])) for kv in places}
    logprobs = law - np.logaddexp.reduce(law.astype(np.float64))
    candidates = []
    for side, token, own, kv, mask in zip(sides, pair, each, types, masks, strict=True):
        fixed = is_fixed(own, model.drafter is not None) and (side.options is not None or own.sampler.greedy)
        shortfall = _shortfall(held(places[kv].once, own, mask), token, own, fixed, sequence, position)
        candidates.append(
            Candidate(
                side=side.name,
                token=int(token),
                text=model.decode([token]),
                logit=float(law[token]),
                logprob=float(logprobs[token]),
                rank=int(np.sum(law > law[token])) + 1,
                shortfall=shortfall,
                explained=shortfall <= limits[kv] * peak,
                allowed=None if mask is None else bool(mask[token]),
            )
        )
    return Difference(
        index=index,
        position=position,
        candidates=(candidates[0], candidates[1]),
        margin=margin(law),
        relative_margin=margin(law) / peak,
        rounding=max(rounding.values()),
        logit_rounding=max(float(np.abs(place.once - place.fed).max()) for place in places.values()),
        limit=limits[types[0] if types[0] == types[1] else KVTypes()],
        leads=(lead(types[0]), lead(types[1])),
    )


def _allowed(grammar: Grammar | None, before: Sequence[int]) -> Bool[np.ndarray, "V"] | None:
    """The tokens that may follow a text; none if the text itself is not allowed, and None without a grammar."""
    if grammar is None:
        return None
    try:
        return grammar.allowed(grammar.after(before))
    except ValueError:
        return np.zeros(len(grammar.classes), bool)


def _shortfall(
    logits: Float[np.ndarray, "V"], token: int, options: GenerateOptions, fixed: bool, sequence: int, position: int
) -> float:
    """See `Candidate.shortfall`; of a token that was drawn otherwise only whether it could be.

    The logits are -inf where the side's grammar allows nothing.
    """
    if np.isneginf(logits[token]):
        return float("inf")
    if not fixed:
        return beyond_filters(logits, token, options.sampler)
    if options.sampler.greedy:
        return float(logits.max() - logits[token])
    settings = RowSettings.of([Settings(options.sampler, seed=options.seed)])
    where = {"sequence": jnp.asarray([sequence]), "position": jnp.asarray([position])}
    best = int(sample_tokens(jnp.asarray(logits[None]), settings=settings, **where)[0])
    return 0.0 if best == token else margin_between(logits, (best, token), options, sequence, position)[0]
