"""A loaded model: what a user types against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from checkpoints import TextTokenizer
from pallas_kernels.matmul import leaves
from specjax.decoding.decoder import Decoder
from specjax.decoding.draft_control import DraftConfig
from specjax.decoding.prefill import prefill
from specjax.decoding.stats import DecodeStats
from specjax.errors import PromptError, SpecjaxError
from specjax.models.protocol import Drafter, FeatureRequest, ModelConfig, Params, Target
from specjax.runtime.batch import Batch, Emission, check_prompts, finish_reason
from specjax.runtime.generation import GenerateOptions, Generation
from specjax.sessions.context_shift import DEFAULT_KEEP, WhenFull
from specjax.sessions.session import Session, open_session
from specjax.sessions.session_file import load_session
from specjax.state import KVTypes

Prompt = str | Sequence[int]
NO_DRAFTS = DraftConfig(n_max=0)


@dataclass(frozen=True)
class Model:
    """A target, its drafter if it has one, their weights, and the tokenizer. Made by `specjax.load`.

    >>> model = specjax.load()
    >>> model.generate("def add(a, b):", max_tokens=32)

    Attributes:
        config: hyper-parameters.
        params: {"target": ..., "mtp": ...}.
        tokenizer: None if the file has none; prompts must then be token ids.
        target, drafter: static descriptions; drafter is None when the file has none and none was given.
        path: where the weights came from.
    """

    config: ModelConfig
    params: Params = field(repr=False)
    tokenizer: TextTokenizer | None = field(repr=False)
    target: Target = field(repr=False)
    drafter: Drafter | None = field(repr=False)
    path: Path
    _compiled: set[tuple] = field(default_factory=set, repr=False, compare=False)

    def __repr__(self) -> str:
        size, num_bytes = (sum(getattr(leaf, name) for leaf in leaves(self.params)) for name in ("size", "nbytes"))
        drafter = f"drafted for by {type(self.drafter).__name__}" if self.drafter else "without drafter"
        c = self.config
        return (
            f"Model({self.path.name}: {c.architecture}, {size / 1e6:.1f} M parameters in"
            f" {num_bytes / 1e6:.1f} MB, {c.num_layers} layers,"
            f" {drafter}, V={c.vocab_size}, context {c.context_length})"
        )

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt given as text, or the ids themselves.

        Raises:
            PromptError: the text has half a surrogate pair, or a byte of the command line that is not UTF-8.
            SpecjaxError: there is no tokenizer for it.
        """
        if not isinstance(prompt, str):
            return [int(token) for token in prompt]
        if self.tokenizer is None:
            raise SpecjaxError(
                f"{self.path} has no usable tokenizer; give the prompt as token ids"
                " (load it with need_tokenizer=True to learn what is wrong)"
            )
        try:
            prompt.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptError(
                f"the prompt is not Unicode text: {error.reason} at character {error.start},"
                f" {prompt[error.start : error.end]!r}; leave it out"
            ) from error
        return self.tokenizer.encode(prompt)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids without control tokens; empty for a model without tokenizer."""
        return self.tokenizer.decode(self._named(tokens), special=False) if self.tokenizer else ""

    def _named(self, tokens: Sequence[int]) -> list[int]:
        """Without the ids of padding rows, which a model may have beyond its vocabulary: they stand for no text."""
        assert self.tokenizer is not None
        return [token for token in tokens if token < self.tokenizer.vocab_size]

    def decoder(self, options: GenerateOptions) -> Decoder:
        """The static part of the decoding program that the options ask for.

        Raises:
            SpecjaxError: drafts are asked for, but the file has no MTP head.
        """
        draft = options.draft_config(self.drafter is not None, self.drafter.max_drafts if self.drafter else None)
        if draft.n_max > 0 and self.drafter is None:
            raise SpecjaxError(
                f"{self.path} has no MTP head, so nothing can be drafted; use draft=0 (plain decoding), or load it with"
                " a drafter: drafter='ngram', or a smaller model's file"
            )
        eos = () if options.ignore_eos or self.tokenizer is None else tuple(sorted(self.tokenizer.eos_ids))
        return Decoder(
            target=self.target,
            drafter=self.drafter if draft.n_max > 0 else None,
            sampler=options.sampler,
            rule=options.rule,
            draft=draft,
            eos_ids=eos,
            rollback=options.rollback_strategy,
            kv_types=options.kv_types,
            margins=options.margins,
        )

    def batch(
        self, prompts: Sequence[Prompt], options: GenerateOptions, sequence: Sequence[int] | None = None
    ) -> Batch:
        """Prompts ready to run together; `sequence` names their random streams (default: 0, 1, ...)."""
        return Batch(
            decoder=self.decoder(options),
            params=self.params,
            prompts=[self.encode(prompt) for prompt in prompts],
            max_tokens=options.max_tokens,
            seed=options.seed,
            sequence=range(len(prompts)) if sequence is None else sequence,
            rounds_per_chunk=options.rounds_per_chunk,
            compiled=self._compiled,
        )

    def generate(self, prompt: Prompt, options: GenerateOptions | None = None, **changes: Any) -> Generation:
        """Continue one prompt.

        Args:
            prompt: text, or token ids.
            options: see `GenerateOptions`, whose fields can also be given as keywords:
                `model.generate("def f(", max_tokens=64, draft=3, temperature=0.8, seed=1)`.

        Raises:
            PromptError: the prompt is empty, too long or has ids outside the vocabulary.
            SpecjaxError: the model has no MTP head but drafts are asked for.
            ValueError: an option is out of its range.
        """
        return self.generate_batch([prompt], options, **changes)[0]

    def generate_batch(
        self, prompts: Sequence[Prompt], options: GenerateOptions | None = None, **changes: Any
    ) -> list[Generation]:
        """Continue several prompts of any lengths as one batch; see `generate`.

        A prompt's random draws are keyed by its index, so the result of prompt 0 equals `generate` of it alone.
        """
        if not prompts:
            return []
        stream = TextStream(self, prompts, replace(options or GenerateOptions(), **changes))
        for _ in stream.emissions():
            pass
        return stream.results()

    def stream(self, prompt: Prompt, options: GenerateOptions | None = None, **changes: Any) -> TextStream:
        """Iterate over pieces of text as they come; afterwards `.result` is the `Generation`. See `generate`."""
        return TextStream(self, [prompt], replace(options or GenerateOptions(), **changes))

    def session(
        self,
        options: GenerateOptions | None = None,
        *,
        slots: int | None = None,
        when_full: WhenFull = "error",
        keep: int = DEFAULT_KEEP,
        **changes: Any,
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

        Raises:
            ValueError: an option, `slots` or `keep` is out of its range.
            SpecjaxError: as `generate`; or the model cannot drop tokens, and says why.
        """
        return open_session(self, replace(options or GenerateOptions(), **changes), slots, when_full, keep)

    def load_session(self, path: str | Path) -> Session:
        """The conversation that `Session.save` wrote, with its options; its next turn reuses all that was computed.

        Raises:
            SpecjaxError: the file holds no session, or one of another model.
            OSError: it cannot be read.
        """
        return load_session(self, path)

    def logits(self, tokens: Sequence[int] | str) -> np.ndarray:
        """The target's logits of every position, [T, V] float32: row p predicts the token after tokens[p].

        Raises:
            PromptError: as `generate`.
        """
        ids = self.encode(tokens)
        check_prompts(self.target, [ids], new_tokens=0)
        padded = np.zeros((1, -(-len(ids) // 64) * 64), np.int32)
        padded[0, : len(ids)] = ids
        logits = _all_logits(self.target, self.params, jnp.asarray(padded), jnp.asarray([len(ids)], jnp.int32))
        return np.asarray(logits[0, : len(ids)], np.float32)

    def next_logits(self, tokens: Sequence[int] | str, *, kv_types: KVTypes = KVTypes()) -> np.ndarray:
        """The target's logits for the token after a prompt, [V] float32; the prompt is fed as `generate` feeds it.

        Raises:
            PromptError: as `generate`.
        """
        batch = self.batch([tokens], GenerateOptions(max_tokens=1, draft=0, kv_type_k=kv_types.k, kv_type_v=kv_types.v))
        state = batch.decoder.init_state(1, batch.capacity)
        _, logits = prefill(batch.decoder, self.params, state, batch.prompts)
        return np.asarray(logits[0], np.float32)


@partial(jax.jit, static_argnames="target")
def _all_logits(
    target: Target, params: Params, tokens: Int[Array, "B T"], n_valid: Int[Array, "B"]
) -> Float[Array, "B T V"]:
    state = Decoder(target, None, draft=NO_DRAFTS).init_state(tokens.shape[0], tokens.shape[1], chunk=tokens.shape[1])
    output, _ = target.extend(params, tokens, n_valid, state, request=FeatureRequest(), rows="all")
    assert output.logits is not None
    return output.logits


class TextStream:
    """A generation in progress. Iterating yields the first prompt's text in pieces.

    It runs once: iterating again goes on where the last iteration stopped.

    Attributes:
        batch: what runs.
        observers: called with every emission as it becomes known.
    """

    def __init__(self, model: Model, prompts: Sequence[Prompt], options: GenerateOptions) -> None:
        self.batch = model.batch(prompts, options)
        self.observers: list[Callable[[Emission], None]] = []
        self._model = model
        self._stats = [DecodeStats() for _ in prompts]
        self._tokens: list[list[int]] = [[] for _ in prompts]
        self._margins: list[list[float]] | None = [[] for _ in prompts] if options.margins else None
        self._finished = False
        self._emissions = self._run()
        self._pieces = self._text()

    def emissions(self) -> Iterator[Emission]:
        """What becomes known of all rows."""
        return self._emissions

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def _run(self) -> Iterator[Emission]:
        for emission in self.batch.run():
            for row, new in enumerate(emission.tokens):
                self._tokens[row] += new
                if self._margins is not None and emission.margins is not None:
                    self._margins[row] += emission.margins[row]
                if emission.record is not None:
                    self._stats[row].add(emission.record, row)
            for observe in self.observers:
                observe(emission)
            yield emission
        self._finished = True

    def _text(self) -> Iterator[str]:
        decoder = self._model.tokenizer.stream(special=False) if self._model.tokenizer else None
        for emission in self._emissions:
            if decoder and (piece := decoder.push(self._model._named(emission.tokens[0]))):
                yield piece
        if decoder and (rest := decoder.flush()):
            yield rest

    @property
    def result(self) -> Generation:
        """The generation, once the stream is exhausted."""
        return self.results()[0]

    def results(self) -> list[Generation]:
        """One generation per prompt, once everything has run.

        Raises:
            SpecjaxError: the stream has not been iterated to its end.
        """
        if not self._finished:
            raise SpecjaxError("the stream is not exhausted yet; iterate over it before asking for its result")
        return [self._result(row) for row in range(len(self._tokens))]

    def _result(self, row: int) -> Generation:
        tokens, batch = self._tokens[row], self.batch
        reason = finish_reason(tokens, batch.max_tokens, batch.budgets[row], batch.decoder.eos_ids)
        assert reason is not None
        return Generation(
            text=self._model.decode(tokens),
            tokens=tokens,
            prompt_tokens=list(batch.prompts[row]),
            finish_reason=reason,
            stats=self._stats[row],
            timings=batch.timings,
            margins=self._margins[row] if self._margins is not None else None,
        )
