"""What is asked of an engine, and what has come of it so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from specjax.decoding.loop import ChunkRecord
from specjax.decoding.settings import Settings
from specjax.decoding.stats import DecodeStats
from specjax.runtime.memory import Memory, ReturnPoint
from specjax.runtime.recording import Recording
from specjax.state import Cut, SequenceState

FinishReason = Literal["eos", "length", "context", "stop", "cancelled"]
"""Why a text ends: a stop token, the maximum of tokens, no more room, a stop string, or `Engine.cancel`."""


class StopWatch(Protocol):
    """Looks for the end of one text in its tokens: stop strings need a tokenizer, and an engine has none."""

    def push(self, tokens: Sequence[int]) -> int | None:
        """How many of these tokens belong to the text if it ends among them; None if it goes on."""
        ...


@dataclass(frozen=True)
class Start:
    """A state in which a prompt begins, because some of its tokens have been fed before.

    Attributes:
        state: of one sequence. The engine consumes it.
        length: tokens of the prompt that it holds; less than all.
        dropped: tokens of the text before the prompt that it holds no more, see `DecodeState.dropped`.
        prefilled: called with the state of the sequence when the whole prompt has been fed. The engine consumes that
            state afterwards: copy what is to be kept.
    """

    state: SequenceState = field(repr=False)
    length: int
    dropped: int = 0
    prefilled: Callable[[SequenceState], None] | None = None


@dataclass(frozen=True)
class Request:
    """A prompt to be continued.

    Attributes:
        prompt: token ids, checked.
        max_tokens: tokens to emit at most.
        settings: how tokens are drawn and drafted, and which ones stop the text.
        sequence: names the random stream: with equal seeds, equal streams give equal draws.
        start: where the prompt begins; None for an empty state.
        when_full: what is dropped when all slots are taken, so that the text goes on; None ends it.
        watch: says where the text ends, beside the stop tokens.
        begun: tokens at the end of the prompt that belong to the text, and that its grammar has been told of.
        memory: a text that the prompt may go on from, beside those that the engine keeps. It stays as it is.
        keep: called with the memory of the prompt when it has been fed, and of the text when it has ended.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    settings: Settings
    sequence: int = 0
    start: Start | None = None
    when_full: Cut | None = None
    watch: StopWatch | None = None
    begun: tuple[int, ...] = ()
    memory: Memory | None = None
    keep: Callable[[Memory], None] | None = None


@dataclass
class Timings:
    """Wall-clock seconds of a generation.

    Attributes:
        compile: seconds of building programs; 0 if they were built before.
        prefill: feeding the prompt, until the first token is known.
        decode: all rounds.
    """

    compile: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities at one token, natural, of the model's own distribution: before temperature, filters
    and grammars.

    Attributes:
        logprob: of the token itself.
        top: the most probable tokens of its place and their log-probabilities, the best first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False)
class Job:
    """A request in an engine, and what has come of it so far.

    Attributes:
        request: what is asked for.
        limit: tokens that it may emit: `max_tokens`, or less where the context or the slots end before.
        room: tokens that it can have emitted when its slots are full.
        tokens: what has been emitted.
        margins: by how much the largest logit led the second one where each token was chosen, if recorded.
        logprobs: at each token, if recorded.
        stats: how many tokens were drafted and accepted.
        finish_reason: None while it goes on.
        timings: seconds spent.
        held: tokens of the prompt that the state holds.
        reused: tokens of the prompt that were not fed, because a state that holds them was at hand.
        stops: lengths at which feeding the prompt pauses, so that a point to go back to can be kept.
        points: those that have been kept, in order of length.
        cuts: how often tokens were dropped to make room.
        finite: False once the model's logits were not finite numbers.
        recording: what a trace will hold, if it is recorded.
    """

    request: Request
    limit: int
    room: int
    tokens: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list, repr=False)
    logprobs: list[TokenLogprobs] = field(default_factory=list, repr=False)
    stats: DecodeStats = field(default_factory=DecodeStats)
    finish_reason: FinishReason | None = None
    timings: Timings = field(default_factory=Timings)
    held: int = 0
    reused: int = 0
    stops: tuple[int, ...] = ()
    points: list[ReturnPoint] = field(default_factory=list, repr=False)
    cuts: int = 0
    finite: bool = True
    recording: Recording | None = field(default=None, repr=False)
    _begun: float = 0.0

    @property
    def fed(self) -> bool:
        """Whether the whole prompt is in the state."""
        return self.held == len(self.request.prompt)

    @property
    def next_stop(self) -> int:
        """The length up to which the prompt can be fed without a pause."""
        return next((stop for stop in self.stops if stop > self.held), len(self.request.prompt))

    def begin(self, now: float) -> None:
        """Start to take the time: the request has a seat."""
        self._begun = now

    def time(self, now: float, *, first: bool) -> float:
        """Take the time of tokens that became known; the time of rounds starts with the first token.

        Returns:
            The seconds since tokens became known before.
        """
        if first:
            self.timings.prefill = now - self._begun
            self._begun = now
            return self.timings.prefill
        before, self.timings.decode = self.timings.decode, now - self._begun
        return self.timings.decode - before

    def record(self, chunk: ChunkRecord, row: int, seconds: float) -> None:
        """Keep the rounds of a chunk for the trace, before its tokens are taken."""
        if self.recording is None:
            self.recording = Recording.of(self)
        self.recording.add(chunk, row, seconds)

    def take(self, tokens: Sequence[int]) -> int:
        """Add tokens that the device emitted, up to the end of the text. Returns how many were added."""
        watch = self.request.watch
        end = watch.push(tokens) if watch is not None else None
        count = len(tokens) if end is None else end
        self.tokens += tokens[:count]
        if end is not None:
            self.finish_reason = "stop"
        elif self.tokens and self.tokens[-1] in self.request.settings.stop_tokens:
            self.finish_reason = "eos"
        elif len(self.tokens) >= self.limit:
            self.finish_reason = "length" if self.limit == self.request.max_tokens else "context"
        return count


@dataclass(frozen=True)
class Update:
    """Tokens of a job that became known.

    Attributes:
        job: whose tokens; `job.finish_reason` says whether more will come.
        tokens: the new ones.
        record: the chunk of rounds that brought them; None for the first token, which the prompt brings.
        row: the job's row in it.
    """

    job: Job
    tokens: list[int]
    record: ChunkRecord | None
    row: int
