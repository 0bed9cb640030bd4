"""Whether the state of a run is what its text gives, after the prompt and after each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specjax.analysis.diverge.deviation import Deviation, Path, deviations, errors, largest_errors
from specjax.analysis.diverge.law import Feeding, at_once, caught_up, padded
from specjax.analysis.diverge.rerun import Moment, Rerun
from specjax.analysis.divergence import tolerance_of_model
from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.grammar import FORBIDDEN, Grammar
from specjax.decoding.round import draft
from specjax.mesh.shards import REPLICATED, on_shards
from specjax.models.protocol import Params
from specjax.state import Content, SequenceState

SAFETY, WIDEST, UNRELATED = 8, 64, 0.5
"""A part is wrong if its error is more than so many times what rounding did to it here, and more than the tolerance of
the model's types. What was measured can widen that tolerance no more than so many times, and never up to the errors of
values that have nothing to do with each other, which are 1 and more."""

GRAMMAR: Path = ("grammar", "state")
"""The name of where a row stands in its grammar."""

CAUGHT_UP = "caught-up drafter"
"""The name of the drafter's part after it has been given one more token, so that all that waited in it has been fed."""


@dataclass(frozen=True)
class StateCheck:
    """What became of the comparison of a run's state with that of feeding.

    Attributes:
        moments: after the prompt and after rounds: how often they were compared.
        parts: how many contents of the state were compared each time.
        rounding: by how much, at most, the state of feeding token by token differs from that of feeding all at once, as
            a share of a part's size.
        first: the first moment with a deviation: its round (0 is the prompt), the length before it and after it, and
            how many tokens the round verified; None if there was none.
        deviations: what was wrong at this moment, the first layer first.
        of_feeding: whether these are of feeding: the text fed in pieces and then token by token leaves another state
            than one call over all of it. The run was then not looked at.
        drafted, drafted_alike: rounds that drafted, and those whose drafts a fresh state gives too.
        drafts: what the next round would draft at the first moment with a deviation, and what it would from a fresh
            state; None if nothing is drafted.
    """

    moments: int
    parts: int
    rounding: float
    first: tuple[int, int, int, int] | None = None
    deviations: tuple[Deviation, ...] = ()
    of_feeding: bool = False
    drafted: int = 0
    drafted_alike: int = 0
    drafts: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def healthy(self) -> bool:
        """Whether the state was what feeding gives, at all moments."""
        return not self.deviations


@dataclass(frozen=True)
class _Pair:
    """The contents of a run's state and those of the fed one."""

    got: tuple[Content, ...]
    want: tuple[Content, ...]

    @classmethod
    def at(cls, run: Rerun, moment: Moment, fed: Feeding, said: Sequence[int]) -> _Pair:
        """Those of a moment of a run that has said so many tokens."""
        pair = cls.of(run.decoder, run.model.params, moment.state.sequences, fed, moment.pending)
        if run.grammar is None or moment.grammar_state is None:
            return pair
        got, want = (
            Content(GRAMMAR, np.array([moment.length]), np.array([[state]]))
            for state in (moment.grammar_state, _grammar_state(run.grammar, said))
        )
        return cls((*pair.got, got), (*pair.want, want))

    @classmethod
    def of(cls, decoder: Decoder, params: Params, run: SequenceState, fed: Feeding, pending: int) -> _Pair:
        """As they are, and once more the drafter's parts after they have been given the pending token."""
        got, want = fed.contents_of(run), fed.contents
        if decoder.drafter is not None:
            token, features = np.array([[pending]], np.int32), fed.features_of(pending)
            ours, theirs = (caught_up(decoder, params, state, token, features) for state in (run, fed.state))
            got += tuple(each._replace(path=(CAUGHT_UP, *each.path[1:])) for each in fed.contents_of(ours))
            want += tuple(each._replace(path=(CAUGHT_UP, *each.path[1:])) for each in fed.contents_of(theirs))
        return cls(got, want)


def check_states(run: Rerun) -> StateCheck:
    """Compare the state of a run with that of feeding its text, part by part, up to the first moment that differs."""
    decoder, params = run.decoder, run.model.params
    limits, rounding, apart = _limits(run)
    if apart:
        return StateCheck(0, len(limits), rounding, deviations=apart, of_feeding=True)
    feeding = Feeding(decoder, params, run.slots)
    drafts: tuple[int, ...] | None = None
    drafted = alike = parts = number = before = 0
    said: list[int] = []
    for moment in run.moments():
        earlier = feeding.fork()
        if moment.number == 0:
            feeding.feed_prompt(run.prompt)
        else:
            feeding.feed_each(moment.window[: moment.kept])
            verified = moment.window[1:]
            if drafts is not None and verified:
                drafted, alike = drafted + 1, alike + (drafts[: len(verified)] == verified)
        due = decoder.drafts and moment.active
        drafts = _drafts_of(decoder, params, replace(moment.state, sequences=feeding.state)) if due else None
        said += [*moment.window[1 : moment.kept], moment.pending]
        pair = _Pair.at(run, moment, feeding, said)
        parts, number = len(pair.got), moment.number
        if found := deviations(pair.got, pair.want, limits):
            explained = tuple(
                replace(each, likely=_in_grammar(run, moment, said))
                if each.path == GRAMMAR
                else _explained(each, pair, moment, earlier, feeding)
                for each in found
            )
            first = (number, before, moment.length, len(moment.window))
            both = None if drafts is None else (_drafts_of(decoder, params, moment.state), drafts)
            return StateCheck(
                number + 1, parts, rounding, first, explained, drafted=drafted, drafted_alike=alike, drafts=both
            )
        before = moment.length
    return StateCheck(number + 1, parts, rounding, drafted=drafted, drafted_alike=alike)


def _grammar_state(grammar: Grammar, said: Sequence[int]) -> int:
    """Where a row stands that has said these tokens, see `GrammarTables`; `FORBIDDEN` if they are not allowed."""
    try:
        return grammar.offset(grammar.after(said))
    except ValueError:
        return FORBIDDEN


def _in_grammar(run: Rerun, moment: Moment, said: Sequence[int]) -> str:
    """What is recognised in a wrong state of a grammar."""
    assert run.grammar is not None
    if _grammar_state(run.grammar, said) == FORBIDDEN:
        count = next(n for n in range(len(said)) if _grammar_state(run.grammar, said[: n + 1]) == FORBIDDEN)
        return f"token {said[count]}, number {count + 1} of the text, is not allowed where it stands"
    if _grammar_state(run.grammar, said[:-1]) == moment.grammar_state:
        return "the row stands where it stood before its last token: 1 token too few"
    return ""


def _drafts_of(decoder: Decoder, params: Params, state: DecodeState) -> tuple[int, ...]:
    """What the next round drafts."""
    return tuple(np.asarray(_drafts(decoder, params, state))[0].tolist())


@partial(jax.jit, static_argnames="decoder")
def _drafts(decoder: Decoder, params: Params, state: DecodeState) -> Int[Array, "B K"]:

    def run(parts: int, params: Params, state: DecodeState) -> Int[Array, "B K"]:
        proposal, _ = draft(decoder.shard(parts), params, state)
        assert proposal is not None
        return proposal.tokens

    return on_shards(run, params, state, out=lambda *_: REPLICATED)


class _Limits(dict[Path, float]):
    """The most that rounding explains, by part; the tolerance for those that could not be measured."""

    def __init__(self, measured: Mapping[Path, float], tolerance: float) -> None:
        most = min(WIDEST * tolerance, UNRELATED)
        super().__init__({path: min(max(SAFETY * error, tolerance), most) for path, error in measured.items()})
        self.tolerance = tolerance

    def __missing__(self, path: Path) -> float:
        return self.tolerance


def _limits(run: Rerun) -> tuple[_Limits, float, tuple[Deviation, ...]]:
    """How far rounding moves each part: the text fed token by token against the text fed at once.

    Returns:
        The limits, the largest error, and the parts that differ by more than rounding can.
    """
    decoder, params = run.decoder, run.model.params
    text, pending = [*run.prompt, *run.tokens[:-1]], run.tokens[-1]
    feeding = Feeding(decoder, params, run.slots)
    feeding.feed_prompt(run.prompt)
    feeding.feed_each(run.tokens[:-1])
    _, state = at_once(decoder, params, text, padded(len(text)))
    pair = _Pair.of(decoder, params, state, feeding, pending)
    measured = largest_errors(pair.want, pair.got)
    tolerance = tolerance_of_model(run.model, run.options.kv_types)
    limits = _Limits(measured, tolerance)
    return limits, max(measured.values(), default=0.0), tuple(deviations(pair.want, pair.got, limits))


def _explained(deviation: Deviation, pair: _Pair, moment: Moment, earlier: Feeding, fed: Feeding) -> Deviation:
    """The deviation with what is recognised in it."""
    got = next(content for content in pair.got if content.path == deviation.path)
    if deviation.slot is None:
        clause = _another_number_of_tokens(got, deviation, moment, earlier)
    else:
        clause = _another_position(got, deviation, moment.state.sequences, fed)
    return replace(deviation, likely=clause)


def _another_number_of_tokens(got: Content, deviation: Deviation, moment: Moment, earlier: Feeding) -> str:
    """Whether a part is what another number of tokens of the round's window gives."""
    trial = earlier.fork()
    for count in range(len(moment.window) + 1):
        if count:
            trial.feed_each(moment.window[count - 1 : count])
        want = next((content for content in trial.contents if content.path == got.path), None)
        if want is None or count == moment.kept or want.rows.shape[1:] != got.rows.shape[1:]:
            continue
        rows = min(len(want.rows), len(got.rows))
        if rows and errors(got.rows[-rows:], want.rows[-rows:]).max() <= deviation.limit:
            more = count - moment.kept
            much = f"{abs(more)} token{'s' if abs(more) > 1 else ''} too {'many' if more > 0 else 'few'}"
            of = f"{count or 'none'} of the round's {len(moment.window)} tokens"
            return f"as if {of} had been kept, and not {moment.kept}: {much}"
    return ""


def _another_position(got: Content, deviation: Deviation, state: SequenceState, fed: Feeding) -> str:
    """Whether the first wrong row of a cache is empty, or that of another position."""
    first = deviation.positions[0]
    row = got.rows[np.searchsorted(got.positions, first)][None]
    if not np.any(row):
        return "zeros stand there, as if nothing had been written"
    for ring in state.rings:
        if (older := first - ring.slots) >= 0 and _is_row_of(row, older, got.path, deviation.limit, fed):
            return f"the slot still holds position {older}, one turn of the ring ({ring.slots} slots) before"
    for other in (first - 1, first + 1):
        if other >= 0 and _is_row_of(row, other, got.path, deviation.limit, fed):
            return f"what stands there belongs to position {other}"
    return ""


def _is_row_of(row: np.ndarray, position: int, path: Path, limit: float, fed: Feeding) -> bool:
    """Whether a row is that of a position; the fed state's caches hold all positions, also those of rings."""
    state = fed.layout.whole(fed.state)
    if position >= int(state.length[0]):
        return False
    at = replace(state, length=jnp.asarray([position + 1]))
    for content in at.contents(0):
        if content.path == path and position in content.positions:
            return bool(errors(row, content.rows[content.positions == position])[0] <= limit)
    return False
