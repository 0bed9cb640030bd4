"""What a user asks for and what a user gets: options of a generation and its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from specjax.decoding.acceptance import Rule, Synthetic
from specjax.decoding.decoder import MAX_DRAFTS
from specjax.decoding.settings import DraftConfig, SamplerConfig, Settings
from specjax.decoding.stats import DecodeStats
from specjax.state import KV_TYPES, KVTypes, RollbackStrategy

FinishReason = Literal["eos", "length", "context"]
DEFAULT_DRAFTS = 3


@dataclass(frozen=True)
class GenerateOptions:
    """How to generate; every field is also a keyword of `Model.generate` and its siblings.

    Attributes:
        max_tokens: tokens to emit at most.
        draft: tokens to draft in a round, or a `DraftConfig`; 0 is plain decoding. None drafts 3 tokens if the model
            has a drafter, or as many as that can make.
        temperature, top_k, top_p, min_p: see `SamplerConfig`; temperature 0 is greedy.
        seed: of all random draws. The same seed gives the same text whatever the batch.
        accept: "rejection" accepts most; "coupled" gives the text of plain sampling with the same seed. Greedy
            decoding needs neither.
        rollback: "replay", "snapshot", or "auto" for the faster one.
        ignore_eos: go on after a token that ends the text.
        kv_type_k, kv_type_v: how keys and values are kept, by the drafter too: "f32", "f16", "bf16", "q8_0", "q4_0",
            "turbo2", "turbo3" or "turbo4".
        margins: also report by how much the largest logit led the second one where each token was chosen. In greedy
            decoding that is the token's own lead: a small one is a near-tie.
        rounds_per_chunk: rounds that run on the device before the host sees their tokens.

    Raises:
        ValueError: a setting out of its range.
    """

    max_tokens: int = 128
    draft: int | DraftConfig | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    accept: Literal["rejection", "coupled"] = "rejection"
    rollback: RollbackStrategy | Literal["auto"] = "auto"
    ignore_eos: bool = False
    kv_type_k: str = "f32"
    kv_type_v: str = "f32"
    margins: bool = False
    rounds_per_chunk: int = 8

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; at least 1 token must be asked for")
        if self.rounds_per_chunk < 1:
            raise ValueError(f"rounds_per_chunk is {self.rounds_per_chunk}; it must be at least 1")
        if self.accept == "synthetic" or isinstance(self.accept, Synthetic):
            raise ValueError(
                f"accept is {self.accept!r}, which draws lots and is for measuring speed: what comes out is no model's"
                " text; see specjax.analysis.benchmark, or accept by 'rejection' or 'coupled'"
            )
        if self.accept not in ("rejection", "coupled"):
            raise ValueError(f"accept is {self.accept!r}; known rules are 'rejection' and 'coupled'")
        if self.rollback not in ("auto", "replay", "snapshot"):
            raise ValueError(f"rollback is {self.rollback!r}; known are 'auto', 'replay' and 'snapshot'")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed is {self.seed}; it must be from 0 to 2**32 - 1")
        for name in ("kv_type_k", "kv_type_v"):
            if getattr(self, name) not in KV_TYPES:
                known = ", ".join(map(repr, KV_TYPES))
                raise ValueError(f"{name} is {getattr(self, name)!r}; known are {known}")
        draft = self.draft_config(has_drafter=True)
        if draft.n_max > MAX_DRAFTS:
            raise ValueError(
                f"{draft.n_max} draft tokens are asked for; a round verifies at most {MAX_DRAFTS + 1} tokens at once:"
                f" draft at most {MAX_DRAFTS}"
            )
        draft.check_lossless(drawn=self.rule == "rejection")

    @property
    def sampler(self) -> SamplerConfig:
        """The sampling part."""
        return SamplerConfig(self.temperature, self.top_k, self.top_p, self.min_p)

    def settings(self, draft: DraftConfig, stop_tokens: Iterable[int]) -> Settings:
        """What a row wants under these options."""
        stops = () if self.ignore_eos else tuple(sorted(stop_tokens))
        return Settings(self.sampler, draft, self.seed, stops)

    @property
    def rule(self) -> Rule:
        """The acceptance rule that this comes to."""
        return "greedy" if self.sampler.greedy else self.accept

    @property
    def kv_types(self) -> KVTypes:
        """The types of the KV caches."""
        return KVTypes(self.kv_type_k, self.kv_type_v)

    @property
    def rollback_strategy(self) -> RollbackStrategy:
        """What "auto" comes to: replay, which moves fewer bytes from 2 tokens on and was faster where measured."""
        return "replay" if self.rollback == "auto" else self.rollback

    def draft_config(self, has_drafter: bool, max_drafts: int | None = None) -> DraftConfig:
        """The drafting part, for a model with or without a drafter, which may make at most `max_drafts`."""
        if isinstance(self.draft, DraftConfig):
            return self.draft
        if self.draft is None:
            default = DEFAULT_DRAFTS if max_drafts is None else min(DEFAULT_DRAFTS, max_drafts)
            return DraftConfig(n_max=default if has_drafter else 0)
        return DraftConfig(n_max=self.draft)


@dataclass
class Timings:
    """Wall-clock seconds of a generation.

    Attributes:
        compile: building the programs; 0 when they were there already.
        prefill: feeding the prompt, until the first token is known.
        decode: all rounds.
    """

    compile: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


@dataclass
class Generation:
    """A generated text.

    Attributes:
        text: the generated text, without the prompt and without control tokens.
        tokens: the generated token ids.
        prompt_tokens: the prompt's token ids.
        finish_reason: "eos", "length" (max_tokens) or "context" (the model's context is full).
        stats: what drafting brought.
        timings: seconds spent. Of a batch: those of the whole batch.
        margins: by how much the largest logit led the second one where each token was chosen, if asked for.
    """

    text: str
    tokens: list[int]
    prompt_tokens: list[int]
    finish_reason: FinishReason
    stats: DecodeStats
    timings: Timings
    margins: list[float] | None = field(default=None, repr=False)

    @property
    def tokens_per_second(self) -> float:
        """Tokens emitted by rounds over the seconds of all rounds."""
        return self.stats.tokens / self.timings.decode if self.timings.decode else 0.0

    def summary(self) -> dict[str, Any]:
        """The figures, as plain numbers."""
        return {
            "tokens": len(self.tokens),
            "finish_reason": self.finish_reason,
            "rounds": self.stats.rounds,
            "tokens_per_round": round(self.stats.tokens_per_round, 3),
            "acceptance_by_position": [round(share, 3) for share in self.stats.acceptance_by_position],
            "tokens_per_second": round(self.tokens_per_second, 1),
        }

    def __repr__(self) -> str:
        figures = ", ".join(f"{name}={value}" for name, value in self.summary().items())
        return f"{self.text}\n-- Generation({figures})"

    def _repr_html_(self) -> str:
        """The text in a box with the figures below, for notebooks."""
        from html import escape

        figures = " &middot; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in self.summary().items())
        return (
            f"<pre style='border-left: 3px solid #888; padding-left: 1em'>{escape(self.text)}</pre>"
            f"<small>{figures}</small>"
        )
