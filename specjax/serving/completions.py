"""The path /v1/completions: the model goes on with texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specjax.runtime.prompt_scores import prompt_logprobs
from specjax.runtime.request import TokenLogprobs
from specjax.serving.answers import Places, completion_logprobs, reason_of
from specjax.serving.endpoint import Answering, Endpoint, Prepared
from specjax.serving.errors import refused
from specjax.serving.forms import CompletionForm
from specjax.serving.parts import Part
from specjax.serving.service import Service
from specjax.serving.sessions import Turn
from specjax.serving.wishes import options_of, structure_of

DEFAULT_TOKENS = 16
"""Tokens of a text if the request does not say, as OpenAI has it."""


@dataclass(frozen=True)
class Texts:
    """What is remembered of a request.

    Attributes:
        prompts: token ids of each, with the conversation of a session before it.
        before: tokens of that conversation, which are not shown.
        each: texts that each of them is continued by.
        echoes: of each prompt what is shown of it before its texts.
        written: of each prompt whether it was given as text, in which control tokens are written out.
        silent: whether the texts themselves are not wanted, only the prompts.
    """

    prompts: Sequence[Sequence[int]]
    before: int
    each: int
    echoes: Sequence[str]
    written: Sequence[bool]
    silent: bool


class CompletionAnswer(Answering):
    """What texts are answered with."""

    form: CompletionForm

    async def begin(self) -> Sequence[dict[str, Any]]:
        texts: Texts = self.prepared.told
        self._places = [Places(self.service.tokenizer) for _ in self.choices]
        self._scores: list[list[TokenLogprobs | None]] = []
        if not self.form.echo:
            return []
        top = self.form.logprobs
        for prompt in texts.prompts:
            if top is not None:
                found = await self.service.worker.do(prompt_logprobs(self.service.model, prompt, top))
                self._scores.append([None, *found])
        events = []
        for index in range(len(self.choices)):
            echo, logprobs = self._echo(index)
            self._places[index] = Places(self.service.tokenizer, len(echo))
            self.choices[index].text = echo
            events.append(self._document(index, echo, logprobs, None))
        return events

    def event(self, index: int, part: Part) -> Sequence[dict[str, Any]]:
        if self.prepared.told.silent:
            return [self._document(index, "", None, reason_of(part.end))] if part.end else []
        logprobs = None
        if self.form.logprobs is not None and part.tokens:
            logprobs = self._logprobs(part.tokens, part.logprobs, self._places[index].of(part.tokens))
        return [self._document(index, part.text, logprobs, reason_of(part.end), **self.trace(index, part))]

    def whole(self) -> dict[str, Any]:
        choices = []
        for index, choice in enumerate(self.choices):
            echo, prompt = self._echo(index) if self.form.echo else ("", None)
            text, logprobs = choice.text, prompt
            if self.prepared.told.silent:
                text = echo
            elif self.form.logprobs is not None:
                places = Places(self.service.tokenizer, len(echo)).of(choice.tokens)
                logprobs = self._logprobs(choice.tokens, choice.logprobs, places)
                if prompt is not None:
                    logprobs = {name: [*prompt[name], *values] for name, values in logprobs.items()}
            choices.append(self._choice(index, text, logprobs, reason_of(choice.end)))
        return self.document("text_completion", choices)

    def usage(self) -> dict[str, Any]:
        usage = super().usage()
        if self.prepared.told.silent:  # a token was generated for each, and is not shown
            usage |= {"completion_tokens": 0, "total_tokens": usage["prompt_tokens"]}
        return usage

    def reply(self) -> Sequence[int]:
        return () if self.prepared.told.silent else super().reply()

    def last(self) -> dict[str, Any]:
        return self.document("text_completion", [])

    def _echo(self, index: int) -> tuple[str, dict[str, Any] | None]:
        """The prompt of a choice as it is shown, and its log-probabilities if they are wanted."""
        number = index // self.prepared.told.each
        logprobs = None
        if self.form.logprobs is not None:
            before, written = self.prepared.told.before, self.prepared.told.written[number]
            tokens, scores = self.prepared.told.prompts[number][before:], self._scores[number][before:]
            leading = len(self.service.tokenizer.vocabulary.leading) if written and not before else 0
            places = [0] * leading + Places(self.service.tokenizer, special=written).of(tokens[leading:])
            logprobs = self._logprobs(tokens, scores, places)
        return self.prepared.told.echoes[number], logprobs

    def _logprobs(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs | None], places: Sequence[int]
    ) -> dict[str, Any]:
        top = self.form.logprobs or 0
        cut = [each and TokenLogprobs(each.logprob, each.top[:top]) for each in logprobs]
        return completion_logprobs(self.service.tokenizer, tokens, cut, places)

    def _document(self, index: int, text: str, logprobs: Any, reason: str | None, **more: Any) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason, **more}
        return self.document("text_completion", [choice])

    def _choice(self, index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
        trace = self.whole_trace(index)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason, **trace}


class Completions(Endpoint[CompletionForm]):
    """Takes texts, and answers with what follows them."""

    form, prefix, answering = CompletionForm, "cmpl", CompletionAnswer

    def prepare(self, form: CompletionForm, turn: Turn | None) -> Prepared:
        """The texts that go on with the prompts."""
        service, limits = self.service, self.service.settings.limits
        for name, only in (("suffix", ("",)), ("best_of", (form.n or 1,))):
            if (value := getattr(form, name)) is not None and value not in only:
                raise refused(f"{name} is {value!r}; this server cannot do it: leave it out", param=name)
        if form.max_tokens == 0 and not form.echo:
            raise refused(
                "max_tokens is 0, and without echo there is nothing to answer; ask for 1 or more", "max_tokens"
            )
        default = service.settings.default_tokens or DEFAULT_TOKENS
        max_tokens = default if form.max_tokens is None else form.max_tokens
        service.check_wanted(form)
        given: Any = form.prompt
        prompts = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given
        count = len(prompts) * (form.n or 1)
        if not 1 <= count <= limits.choices:
            field = "prompt" if len(prompts) != 1 else "n"
            raise refused(f"{count} texts are asked for; ask for 1 to {limits.choices} in a request", param=field)
        encoded = [service.encode(each) for each in prompts] if turn is None else [_further(service, turn, prompts)]
        drafting = service.most_drafts, service.model.drafter_names
        options = options_of(form, service.settings.defaults, *drafting, max_tokens, limits.tokens)
        wishes = []
        for prompt in encoded:
            service.room(prompt)
            for sequence in range(form.n or 1):
                wishes.append(
                    service.wish(
                        prompt,
                        options,
                        sequence=sequence,
                        traced=bool(form.trace),
                        scored=form.logprobs is not None,
                        turn=turn,
                    )
                )
        echoes = [prompt if isinstance(prompt, str) else service.model.decode(prompt) for prompt in prompts]
        written = [isinstance(prompt, str) for prompt in prompts]
        before = 0 if turn is None else len(turn.session.conversation)
        told = Texts(encoded, before, form.n or 1, echoes, written, silent=form.max_tokens == 0)
        return Prepared(wishes, [len(prompt) for prompt in encoded], structure_of(options), told)


def _further(service: Service, turn: Turn, prompts: Sequence[Any]) -> list[int]:
    """The conversation of a session with the text that a request adds to it."""
    if len(prompts) != 1:
        raise refused(f"{len(prompts)} prompts are given, but a turn of a session has one", param="prompt")
    before = turn.session.conversation
    return [*before, *service.encode(prompts[0], further=bool(before))]
