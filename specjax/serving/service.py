"""What all handlers share: the model, the engine's thread, the limits, and how a wish becomes an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from checkpoints import TextTokenizer
from specjax.decoding.grammar import places_for
from specjax.decoding.settings import RULES, DraftConfig, Room
from specjax.runtime.building import Experience
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions
from specjax.runtime.prompts import Prompt, check_prompts
from specjax.runtime.stop_strings import StopStrings
from specjax.runtime.warm_engine import WarmEngine
from specjax.serving.errors import ApiError, refused
from specjax.serving.forms import Wanted
from specjax.serving.grammars import Grammars
from specjax.serving.limits import Limits
from specjax.serving.metrics import Metrics
from specjax.serving.sessions import Sessions, Turn
from specjax.serving.worker import Asked, Wish, Worker

MOST_LOGPROBS = 20
"""The most alternatives at a token, as OpenAI has it."""


GRAMMAR_ENTRIES = 2**18
"""Entries of grammars' tables for which there is room from the first grammar on, so that others need no programs of
their own. A schema of some fields has thousands."""


@dataclass(frozen=True)
class Settings:
    """How the server is set up.

    Attributes:
        name: the model's, as clients call it.
        defaults: options of requests that say nothing else; those of the program hold for all.
        default_tokens: tokens of a text if a request does not say; None: 16 of a completion, and of a chat what fits.
        seats, slots: see `Engine`.
        prefix_bytes: budget for prompts that start alike.
        sessions: the folder of sessions; None keeps them in memory only.
        session_bytes: budget for states of sessions in memory.
        limits: what is taken on at most.
    """

    name: str
    defaults: GenerateOptions
    default_tokens: int | None = None
    seats: int = 16
    slots: int = 8192
    prefix_bytes: int = 0
    sessions: Path | None = None
    session_bytes: int = 2**30
    limits: Limits = field(default_factory=Limits)


class Service:
    """The server without HTTP.

    Attributes:
        model, settings, metrics, sessions, grammars: see there.
        worker: drives the engine.
    """

    def __init__(self, model: Model, settings: Settings) -> None:
        """
        Args:
            model: with a tokenizer.
            settings: see there.
        """
        slots = min(settings.slots, model.target.context_length)
        self.model, self.settings = model, replace(settings, slots=slots)
        self.metrics, self._experience = Metrics(settings.name), Experience()
        self.worker = Worker(self._new_engine, settings.limits.queue, self.metrics)
        self.metrics.watch(self.worker)
        self.grammars = Grammars(self.tokenizer, model.target.vocab_size, settings.limits)
        self.sessions = Sessions(model, settings.defaults, slots, settings.sessions, settings.session_bytes)

    @property
    def tokenizer(self) -> TextTokenizer:
        """The model's; a server has one."""
        assert self.model.tokenizer is not None
        return self.model.tokenizer

    @property
    def most_drafts(self) -> int:
        """K: the most drafts that a request can ask for."""
        return self.worker.engine.decoder.max_drafts

    def _new_engine(self) -> WarmEngine:
        """An engine for requests of all kinds: those that draw and those that do not, by any rule."""
        settings = self.settings
        options = replace(settings.defaults, temperature=settings.defaults.temperature or 1.0, logprobs=MOST_LOGPROBS)
        decoder = self.model.decoder(*(replace(options, accept=rule) for rule in RULES))
        return WarmEngine(
            decoder,
            self.model.params,
            seats=settings.seats,
            slots=settings.slots,
            rounds_per_chunk=options.rounds_per_chunk,
            prefix_bytes=settings.prefix_bytes,
            grammar_room=(GRAMMAR_ENTRIES, places_for(settings.seats)),
            experience=self._experience,
        )

    def warm(self) -> Iterator[str]:
        """Build programs before the first request comes; yields what is built next. Before the worker starts."""
        engine, eos_ids = self.worker.engine, tuple(self.tokenizer.eos_ids)
        yield from engine.warm(Room.of([self.settings.defaults.settings(DraftConfig(n_max=0), eos_ids)]))

    def encode(self, prompt: Prompt, *, further: bool = False) -> list[int]:
        """Token ids of a prompt.

        Args:
            prompt: text, or token ids.
            further: whether it follows other tokens.

        Raises:
            ApiError: it is so long that no seat has room for it, which is seen before it is encoded.
            PromptError: it is no Unicode text.
        """
        if isinstance(prompt, str) and (least := self.tokenizer.fewest_tokens(prompt)) > self.settings.slots:
            raise self._too_long(f"at least {least}")
        return self.model.encode_further(prompt) if further else self.model.encode(prompt)

    def _too_long(self, tokens: object) -> ApiError:
        return refused(
            f"the prompt has {tokens} tokens, and a seat of this server has room for {self.settings.slots}, of which a"
            " new token needs one; shorten it",
            param="prompt",
            code="context_length_exceeded",
        )

    def room(self, prompt: Sequence[int]) -> int:
        """How many tokens can follow a prompt.

        Raises:
            ApiError: none can, or the prompt is none.
        """
        try:
            check_prompts(self.model.target, [prompt])
        except ValueError as error:
            code = "context_length_exceeded" if len(prompt) >= self.model.target.context_length else None
            raise refused(str(error), param="prompt", code=code) from None
        room = self.settings.slots - len(prompt)
        if room < 1:
            raise self._too_long(len(prompt))
        return room

    def check_model(self, name: str | None) -> None:
        """
        Raises:
            ApiError: a request is for another model.
        """
        if name not in (None, self.settings.name):
            raise ApiError(
                404,
                f"there is no model {name!r} here; this server has {self.settings.name!r}",
                param="model",
                code="model_not_found",
            )

    def check_wanted(self, form: Wanted) -> None:
        """
        Raises:
            ApiError: more alternatives are wanted at each token than the server computes.
        """
        wanted = form.wanted_logprobs
        if wanted is not None and wanted > MOST_LOGPROBS:
            name = form.logprobs_field
            raise refused(f"{name} is {wanted}; ask for at most {MOST_LOGPROBS} alternatives", param=name)

    def wish(
        self,
        prompt: Sequence[int],
        options: GenerateOptions,
        *,
        sequence: int,
        traced: bool = False,
        scored: bool = False,
        watch: StopStrings | None = None,
        turn: Turn | None = None,
    ) -> Wish:
        """A text as the engine's thread wants it, but without the grammar that its options may ask for.

        Args:
            prompt: token ids that fit a seat.
            options: of the text.
            sequence: its number among the texts of a prompt, which names its random stream.
            traced: whether it is wanted to know how each token was made.
            scored: whether log-probabilities are wanted.
            watch: turns tokens into text, and says where it ends; by default one that leaves control tokens out.
            turn: of the session whose turn it is, if it is one.

        Raises:
            ApiError, SpecjaxError: the engine cannot do it; the message says why.
        """
        free = replace(options, json_schema=None, regex=None, grammar_after=None)
        request = self.model.request(prompt, free, sequence=sequence)
        tokenizer = self.tokenizer
        text = watch or StopStrings(tokenizer.stream(special=False), options.stop, tokenizer.vocab_size)
        request = replace(request, watch=text, settings=replace(request.settings, scored=scored))
        if turn is not None:
            turn.prompt = request.prompt
            request = replace(request, memory=turn.session.memory, keep=turn.keep)
        try:
            self.worker.engine.check(request)
        except ValueError as error:
            raise refused(str(error)) from None
        return Wish(request, text, traced)

    @asynccontextmanager
    async def asking(self, wishes: Sequence[Wish], client: str) -> AsyncIterator[Asked]:
        """Ask for texts; those that have not ended when the block is left are given up.

        Raises:
            ApiError: the server is busy or about to end.
        """
        asked, give_up = self.worker.ask(wishes, client)
        try:
            yield asked
        finally:
            give_up()
