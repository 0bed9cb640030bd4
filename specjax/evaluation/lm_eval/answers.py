"""What lm-evaluation-harness asks of a model, answered. Nothing here needs the harness to be installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from checkpoints import TextTokenizer, TokenizerError
from checkpoints.tokenizers.chat_template import Message, render
from specjax.errors import SpecjaxError
from specjax.evaluation.evaluate import stream_of
from specjax.evaluation.lm_eval.arguments import Limits, decoding
from specjax.evaluation.lm_eval.encoding import Pair, encode, encode_pair, windows, within
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions
from specjax.runtime.prefixes import DEFAULT_PREFIX_BYTES, worth_sharing
from specjax.runtime.prompts import check_prompts
from specjax.runtime.request import Request
from specjax.runtime.scoring import MOST_ROWS, Score, score_each
from specjax.runtime.slots import slots_of
from specjax.runtime.stream import MOST_SEATS, generation_of

Done = Callable[[int, Any], None]
"""Called with the number of a request and its answer as soon as that is known."""


class Asked(Protocol):
    """A request of the harness, its `Instance`."""

    @property
    def args(self) -> tuple[Any, ...]:
        """(context, continuation), (text,), or (context, how to generate)."""
        ...


class Answers:
    """Answers to the harness's three kinds of requests.

    Attributes:
        model: what answers.
        tokenizer: the model's.
        options: how texts are generated, as far as requests leave it open.
        limits: what else was set.
        max_length: tokens that are fed at most.
        prefix: the token that stands before a text without context.
    """

    def __init__(self, model: Model, options: GenerateOptions, limits: Limits) -> None:
        """
        Raises:
            SpecjaxError: the model has no tokenizer, or none of its tokens begins or ends a text; or `max_length` is
                beyond its context.
        """
        if model.tokenizer is None:
            raise SpecjaxError(f"{model.path} has no usable tokenizer, which an evaluation needs")
        self.model, self.options, self.limits = model, options, limits
        self.tokenizer: TextTokenizer = model.tokenizer
        context = model.target.context_length
        self.max_length = context if limits.max_length is None else limits.max_length
        if not 0 < self.max_length <= context:
            raise SpecjaxError(
                f"max_length is {self.max_length}; give a length from 1 to the model's context, {context}"
            )
        ids = self.tokenizer.vocabulary.special_ids
        prefix = limits.prefix_token_id if limits.prefix_token_id is not None else ids.get("bos", ids.get("eos"))
        if prefix is None:
            raise SpecjaxError(f"{model.path} names no token that begins or ends a text; give prefix_token_id")
        self.prefix: int = prefix

    def loglikelihood(self, requests: Sequence[Asked], done: Done | None = None) -> list[tuple[float, bool]]:
        """The log-probability of each continuation after its context, and whether greedy decoding says it.

        Contexts that are equal, or start alike, are computed once.

        Raises:
            PromptError: a continuation adds no token to its context, or is too long.
        """
        texts = [each.args for each in requests]
        encoded = [encode_pair(self.tokenizer, context, more, self.prefix) for context, more in texts]
        pairs = [within(pair, self.max_length) for pair in encoded]

        def known(index: int, score: Score) -> None:
            if done is not None:
                done(index, (score.total, score.greedy))

        return [(score.total, score.greedy) for score in self._scores(pairs, known)]

    def loglikelihood_rolling(self, requests: Sequence[Asked], done: Done | None = None) -> list[float]:
        """The log-probability of each text; a long one is computed in windows, see `windows`."""
        cut = [list(windows(encode(self.tokenizer, each.args[0]), self.prefix, self.max_length)) for each in requests]
        owners = [number for number, pairs in enumerate(cut) for _ in pairs]
        left, totals = Counter(owners), [0.0] * len(requests)

        def known(index: int, score: Score) -> None:
            owner = owners[index]
            totals[owner] += score.total
            left[owner] -= 1
            if not left[owner] and done is not None:
                done(owner, totals[owner])

        self._scores([pair for pairs in cut for pair in pairs], known)
        return totals

    def _scores(self, pairs: Sequence[Pair], known: Done) -> list[Score]:
        prompts, continuations = [pair.prompt for pair in pairs], [pair.continuation for pair in pairs]
        scores: dict[int, Score] = {}
        for index, score in score_each(self.model, prompts, continuations, rows=self.limits.rows or MOST_ROWS):
            scores[index] = score
            known(index, score)
        return [scores[index] for index in range(len(pairs))]

    def generate_until(self, requests: Sequence[Asked], done: Done | None = None) -> list[str]:
        """The text that follows each context, up to the first of its stop strings.

        A context that leaves too little room loses tokens at its start. The draws of a request are keyed by its
        context, so they do not depend on the other requests; equal requests draw differently.

        Raises:
            SpecjaxError: a request wants what specjax cannot do, or more tokens than the model's context has.
        """
        if not requests:
            return []
        each = [decoding(request.args[1], self.options, self.limits.max_gen_toks) for request in requests]
        seen: Counter[str] = Counter()
        asked = []
        for request, options in zip(requests, each, strict=True):
            context = request.args[0]
            name = f"{context}\0{seen[context]}" if seen[context] else context
            seen[context] += 1
            asked.append(self._request(context, options, stream_of(name)))
        seats = min(len(asked), self.limits.rows or MOST_SEATS)
        shared = DEFAULT_PREFIX_BYTES if worth_sharing(request.prompt for request in asked) else 0
        engine = self.model.engine(each, seats=seats, slots=slots_of(asked, self.model.target), prefix_bytes=shared)
        numbers = {engine.submit(request): number for number, request in enumerate(asked)}
        texts: dict[int, str] = {}
        for update in engine.run():
            if update.job.finish_reason is not None:
                number = numbers[update.job]
                texts[number] = generation_of(self.model, update.job, each[number]).text
                if done is not None:
                    done(number, texts[number])
        return [texts[number] for number in range(len(asked))]

    def _request(self, context: str, options: GenerateOptions, sequence: int) -> Request:
        room = self.max_length - options.max_tokens
        if room < 1:
            raise SpecjaxError(
                f"{options.max_tokens} tokens are to be generated, which leaves no room for a prompt in"
                f" {self.max_length}; ask for fewer (max_gen_toks), or give a larger max_length"
            )
        prompt = encode(self.tokenizer, context)[-room:]
        check_prompts(self.model.target, [prompt])
        request = self.model.request(prompt, options, sequence=sequence)
        # Control tokens have no text in which a stop string could be found.
        tokens = (self.tokenizer.encode(text)[len(self.tokenizer.vocabulary.leading) :] for text in options.stop)
        ends = {ids[0] for ids in tokens if len(ids) == 1 and not self.tokenizer.decode(ids, special=False)}
        stops = tuple(sorted({*request.settings.stop_tokens, *ends}))
        return replace(request, settings=replace(request.settings, stop_tokens=stops))

    # Chat templates

    @property
    def template(self) -> str | None:
        """The model's chat template, None if it has none."""
        return self.tokenizer.vocabulary.chat_template

    def apply_chat_template(self, history: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The text of a conversation, up to where the model speaks, or goes on with what the last message begins.

        If the template refuses the system message, the conversation is written without it.

        Raises:
            SpecjaxError: the model has no chat template.
            TokenizerError: it does not take the conversation.
        """
        if self.template is None:
            raise SpecjaxError(f"{self.model.path} has no chat template; leave --apply_chat_template out")
        ending = not add_generation_prompt
        others = [message for message in history if message["role"] != "system"]
        try:
            return render(self.tokenizer, history, continue_last=ending)
        except TokenizerError:
            if len(others) == len(history):
                raise
        return render(self.tokenizer, others, continue_last=ending)
