"""A loaded model, the main object of the Python interface."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from jaxtyping import Float

from checkpoints import TextTokenizer
from specjax.analysis.planning import Plan, plan
from specjax.decoding.decoder import Decoder
from specjax.decoding.grammar import Grammar
from specjax.decoding.settings import DraftConfig
from specjax.errors import SpecjaxError
from specjax.grammar.compile import regex_grammar, schema_grammar
from specjax.models.protocol import Drafter, ModelConfig, Params, Target
from specjax.runtime.building import Experience
from specjax.runtime.draft_by import numbers_of
from specjax.runtime.engine import Engine
from specjax.runtime.features import TextFeatures, text_features
from specjax.runtime.generation import Generation
from specjax.runtime.logits import all_logits, next_logits
from specjax.runtime.options import (
    BatchOptionChanges,
    GenerateOptions,
    OptionChanges,
    options_of,
    options_of_each,
    rule_of,
    takes_options,
)
from specjax.runtime.prompts import Prompt, check_begun, check_choices, encode, encode_further, several, token_ids
from specjax.runtime.request import Request, Start
from specjax.runtime.scoring import Score, score
from specjax.runtime.stop_strings import StopStrings
from specjax.runtime.stream import TextStream
from specjax.runtime.summary import summary
from specjax.sessions.context_shift import DEFAULT_KEEP, WhenFull
from specjax.sessions.opening import open_session
from specjax.sessions.session import DEFAULT_POINT_BYTES, Session
from specjax.sessions.session_file import load_session, save_session
from specjax.state import Cut, KVTypes


@dataclass(frozen=True)
class Model:
    """A target, its drafter if it has one, their weights, and the tokenizer. Made by `specjax.load`.

    >>> model = specjax.load()
    >>> model.generate("def add(a, b):", max_tokens=32)

    Attributes:
        config: hyper-parameters.
        params: {"target": ..., "mtp": ...}, and what other drafters need.
        tokenizer: None if the file has none; prompts must then be token ids.
        target, drafter: static descriptions; drafter is None when the file has none and none was given.
        drafter_names: of the drafter, or of those of a list, for `draft_by`: "ngram", "mtp", of a file or of a class.
        path: where the weights came from.
        digest: tells the file's weights from those of others, see `checkpoints.mapping.digest`; None: from no file.
    """

    config: ModelConfig
    params: Params = field(repr=False)
    tokenizer: TextTokenizer | None = field(repr=False)
    target: Target = field(repr=False)
    drafter: Drafter | None = field(repr=False)
    path: Path
    digest: str | None = None
    drafter_names: tuple[str, ...] = ()
    _experience: Experience = field(default_factory=Experience, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"Model({summary(self.path.name, self.config, self.params, self.drafter)})"

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt given as text, or the ids themselves.

        Raises:
            PromptError: it is neither text nor token ids, or no Unicode text.
            SpecjaxError: there is no tokenizer for it.
        """
        return encode(prompt, self.tokenizer, self.path)

    def encode_further(self, text: Prompt) -> list[int]:
        """The same for a text that follows another one: without the tokens that stand before every text.

        Raises:
            PromptError, SpecjaxError: as `encode`.
        """
        return encode_further(text, self.tokenizer, self.path)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, without control tokens. It is empty if the model has no tokenizer."""
        return self.decode_bytes(tokens).decode(errors="replace")

    def decode_bytes(self, tokens: Sequence[int]) -> bytes:
        """The bytes of the same text in UTF-8. Those of a few tokens need not be whole characters."""
        if self.tokenizer is None:
            return b""
        # A model may have padding rows beyond its vocabulary: their ids stand for no text.
        known = [token for token in token_ids(tokens, "what is to be decoded") if token < self.tokenizer.vocab_size]
        return self.tokenizer.decode_bytes(known, special=False)

    def decoder(self, *options: GenerateOptions) -> Decoder:
        """The static part of the decoding program for requests with these options, which run together.

        Raises:
            SpecjaxError: drafts are asked for, but the model has no drafter, or none of a name.
        """
        for each in options:
            numbers_of(each.draft_by, self.drafter_names)
        drafts = max(self._draft(each).n_max for each in options)
        if drafts > 0 and self.drafter is None:
            raise SpecjaxError(
                f"{self.path} has no MTP head, so nothing can be drafted; use draft=0 (plain decoding), or load it with"
                " a drafter: drafter='ngram', or a smaller model's file"
            )
        first = options[0]
        return Decoder(
            target=self.target,
            drafter=self.drafter if drafts > 0 else None,
            rule=rule_of(options),
            max_drafts=drafts,
            rollback=first.rollback_strategy,
            kv_types=first.kv_types,
            margins=first.margins or first.trace,
            logprobs=0 if first.trace and first.logprobs is None else first.logprobs,
            probabilities=first.trace,
        )

    def _draft(self, options: GenerateOptions) -> DraftConfig:
        return options.draft_config(self.drafter is not None, self.drafter.max_drafts if self.drafter else None)

    def engine(self, options: Sequence[GenerateOptions], *, seats: int, slots: int, prefix_bytes: int = 0) -> Engine:
        """An engine for requests with these options.

        Args:
            options: of the requests to come. The program drafts as many tokens as the most that one of them asks for.
            seats: requests that run at once.
            slots: tokens that each seat has room for.
            prefix_bytes: budget for texts that are kept, so that prompts which start alike are computed once.

        Raises:
            SpecjaxError: see `decoder`.
        """
        return Engine(
            self.decoder(*options),
            self.params,
            seats=seats,
            slots=slots,
            rounds_per_chunk=options[0].rounds_per_chunk,
            prefix_bytes=prefix_bytes,
            experience=self._experience,
        )

    def request(
        self,
        prompt: Sequence[int],
        options: GenerateOptions,
        *,
        sequence: int = 0,
        start: Start | None = None,
        when_full: Cut | None = None,
        begun: Sequence[int] = (),
    ) -> Request:
        """What an engine is asked for; see `Request` for the arguments."""
        grammar = self.grammar(options)
        if grammar is not None:
            check_begun(grammar, begun)
        eos_ids = () if self.tokenizer is None else tuple(sorted(self.tokenizer.eos_ids))
        drafters = numbers_of(options.draft_by, self.drafter_names)
        return Request(
            prompt=tuple(prompt),
            max_tokens=options.max_tokens,
            settings=replace(options.settings(self._draft(options), eos_ids), grammar=grammar, drafters=drafters),
            sequence=sequence,
            start=start,
            when_full=when_full,
            watch=self.watch(options.stop) if options.stop else None,
            begun=tuple(begun),
        )

    def grammar(self, options: GenerateOptions) -> Grammar | None:
        """Which tokens may follow each other in a text with these options; None if all may.

        Raises:
            GrammarError: what is asked for cannot be held.
            SpecjaxError: it is asked for, and there is no tokenizer.
        """
        if options.json_schema is None and options.regex is None:
            return None
        if self.tokenizer is None:
            raise SpecjaxError(f"{self.path} has no tokenizer, which json_schema and regex need; leave them out")
        where = self.tokenizer, self.target.vocab_size, options.grammar_after
        if options.regex is not None:
            return regex_grammar(options.regex, *where)
        return schema_grammar(str(options.json_schema), *where)

    def watch(self, stop: Sequence[str] = ()) -> StopStrings | None:
        """What turns the tokens of one text into pieces of it, up to a stop string; None without a tokenizer.

        Raises:
            SpecjaxError: there are stop strings, and no tokenizer.
        """
        if self.tokenizer is None:
            if stop:
                raise SpecjaxError(f"{self.path} has no usable tokenizer, and stop strings need one; leave them out")
            return None
        return StopStrings(self.tokenizer.stream(special=False), stop, self.tokenizer.vocab_size)

    @takes_options
    def generate(
        self, prompt: Prompt, options: GenerateOptions | None = None, **changes: Unpack[OptionChanges]
    ) -> Generation:
        """Continue one prompt.

        Args:
            prompt: text, or token ids.
            options: see `GenerateOptions`, whose fields can also be given as keywords:
                `model.generate("def f(", max_tokens=64, draft=3, temperature=0.8, seed=1)`.

        Raises:
            PromptError: the prompt is empty, too long or has ids outside the vocabulary.
            SpecjaxError: the model has no MTP head but drafts are asked for.
            ValueError, TypeError: an option is out of its range, or of another type.
        """
        return self._texts([self.encode(prompt)], [options_of(options, changes)])[0]

    @takes_options
    def generate_batch(
        self,
        prompts: Iterable[Prompt],
        options: GenerateOptions | Sequence[GenerateOptions] | None = None,
        **changes: Unpack[BatchOptionChanges],
    ) -> list[Generation]:
        """Continue several prompts of any lengths together; see `generate`.

        What may differ between prompts can be given as a list with one value for each:
        `model.generate_batch(prompts, temperature=[0.0, 0.8], seed=[1, 2])`, or as a list of options.

        A prompt's random draws are keyed by its index, so the result of prompt 0 equals `generate` of it alone.
        """
        tokens = [self.encode(prompt) for prompt in several(prompts, "prompts", "generate")]
        return self._texts(tokens, options_of_each(len(tokens), options, changes)) if tokens else []

    def _texts(self, prompts: Sequence[Sequence[int]], options: Sequence[GenerateOptions]) -> list[Generation]:
        stream = TextStream(self, prompts, options, live=False)
        for _ in stream.updates():
            pass
        return stream.results()

    @takes_options
    def stream(
        self, prompt: Prompt, options: GenerateOptions | None = None, **changes: Unpack[OptionChanges]
    ) -> TextStream:
        """Iterate over pieces of text as they come; afterwards `.result` is the `Generation`. See `generate`."""
        return TextStream(self, [self.encode(prompt)], [options_of(options, changes)])

    @takes_options
    def session(
        self,
        options: GenerateOptions | None = None,
        *,
        slots: int | None = None,
        when_full: WhenFull = "error",
        keep: int = DEFAULT_KEEP,
        point_bytes: int = DEFAULT_POINT_BYTES,
        **changes: Unpack[OptionChanges],
    ) -> Session:
        """A conversation whose turns reuse what the turns before computed.

        >>> chat = model.session(draft=3)
        >>> reply, chat = chat.generate("def add(a, b):")

        Args:
            options: see `generate`.
            slots: tokens that the conversation can hold; at most the model's context. Default: 4096, or the context.
            when_full: what happens when they are full: "error", or "shift" to drop the oldest tokens and go on, within
                a reply as well as between turns (see `Session.generate`).
            keep: tokens at the start that "shift" does not drop: the system prompt, say.
            point_bytes: budget for copies of recurrent states, to which the session can go back without computing.

        Raises:
            ValueError, TypeError: an option, `slots`, `keep` or `point_bytes` is out of its range, or of another type.
            SpecjaxError: as `generate`; or the model cannot drop tokens, and says why.
        """
        return open_session(self, options_of(options, changes), slots, when_full, keep, point_bytes)

    def save_session(self, session: Session, path: str | Path) -> None:
        """Write a session of this model to a file, see `Session.save`."""
        save_session(session, path)

    def load_session(self, path: str | Path) -> Session:
        """The conversation that `Session.save` wrote, with its options; its next turn reuses all that was computed.

        Raises:
            SpecjaxError: the file holds no session, or one of another model.
            OSError: it cannot be read.
        """
        return load_session(self, path)

    def score(self, prompt: Prompt, continuation: Prompt) -> list[float]:
        """The log-probability of each token of a continuation, given the prompt and the tokens before it.

        Natural logarithms of the model's own distribution, before temperature and filters; their sum is that of the
        whole continuation. A text is encoded apart from the prompt's.

        Raises:
            PromptError: as `generate`.
        """
        return self.score_batch([prompt], [continuation])[0]

    def score_batch(self, prompts: Iterable[Prompt], continuations: Iterable[Prompt]) -> list[list[float]]:
        """The same for several prompts, each with its continuation; all run together.

        What the prompts have in common at their start is computed once.

        Raises:
            PromptError: as `generate`.
            ValueError: there are not as many continuations as prompts.
        """
        begun = [self.encode(each) for each in several(prompts, "prompts", "score")]
        rest = [self.encode_further(each) for each in several(continuations, "continuations", "score")]
        if len(begun) != len(rest):
            raise ValueError(f"there are {len(begun)} prompts and {len(rest)} continuations; give one each")
        return [list(each.logprobs) for each in score(self, begun, rest)]

    def score_choices(self, prompt: Prompt, choices: Iterable[Prompt]) -> list[Score]:
        """How probable several continuations of one prompt are; the prompt is computed once.

        >>> scores = model.score_choices("import numpy as", [" np", " numpy"])
        >>> max(scores, key=lambda score: score.total)

        Raises:
            PromptError: as `generate`.
        """
        choices = several(choices, "choices", "score")
        check_choices(choices)
        return score(self, [self.encode(prompt)] * len(choices), [self.encode_further(each) for each in choices])

    def plan(self, prompts: Sequence[Prompt] = (), **wanted: Any) -> Plan:
        """Which drafter and how many drafts to use here, for texts like the prompts; see `specjax.plan`.

        >>> plan = model.plan(prompts, batches=[1, 4])
        >>> model.generate(prompt, draft=plan)
        """
        return plan(self, prompts, **wanted)

    def logits(self, tokens: Prompt, *, kv_types: KVTypes = KVTypes()) -> Float[np.ndarray, "T V"]:
        """The target's logits of every position, float32: row p predicts the token after tokens[p].

        `kv_types` says how keys and values are kept, as a `specjax.state.KVTypes`.

        Raises:
            PromptError: as `generate`.
        """
        return all_logits(self, self.encode(tokens), kv_types)

    def next_logits(self, tokens: Prompt, *, kv_types: KVTypes = KVTypes()) -> Float[np.ndarray, "V"]:
        """The target's logits for the token after a prompt, float32; the prompt is fed as `generate` feeds it.

        Raises:
            PromptError: as `generate`.
        """
        return next_logits(self, self.encode(tokens), kv_types)

    def features(
        self,
        text: Prompt,
        layers: Sequence[int] = (),
        *,
        final_hidden: bool = True,
        start: int = 0,
        stop: int | None = None,
    ) -> TextFeatures:
        """Hidden states of a text, in float32 and on the host, for probes and plots.

        >>> inside = model.features("def add(a, b):", layers=[0, 2])
        >>> inside.layer_inputs[2]  # [T, D]

        Args:
            text: text, or token ids. It is fed up to the end of the span, in pieces of at most 256 tokens.
            layers: whose inputs are wanted, from 0. The number of layers stands for the output of the last one.
            final_hidden: whether the final hidden states are wanted.
            start, stop: the span of tokens, as in a slice of a list; by default all.

        Raises:
            PromptError: as `generate`.
            ValueError: there is no such layer, the span is empty, or nothing is asked for.
        """
        return text_features(self, self.encode(text), layers, final_hidden, start, stop)
