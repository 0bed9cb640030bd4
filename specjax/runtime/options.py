"""How to generate: the options of a request, and how keywords and lists become options."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Protocol, TypedDict, TypeVar, cast

import numpy as np

from specjax.decoding.acceptance import RULES, DrawingRule, Rule, Synthetic, draws_drafts
from specjax.decoding.decoder import MAX_DRAFTS
from specjax.decoding.leaning import Leaning, pairs_of
from specjax.decoding.settings import DraftConfig, SamplerConfig, Settings
from specjax.runtime.draft_by import given_names
from specjax.runtime.pace import DEFAULT_ROUNDS
from specjax.state import KV_TYPES, KVTypes, RollbackStrategy

DEFAULT_DRAFTS = 3
AUTO_DRAFTS = 8
"""The most drafts of a round with `draft="auto"`."""

MOST_LOGPROBS = 64
"""The most alternatives whose log-probabilities can be asked for at each token."""


class DraftChoice(Protocol):
    """What has chosen a number of drafts, such as a `specjax.Plan`."""

    @property
    def draft(self) -> DraftConfig:
        """How many tokens a round shall draft."""
        ...


Draft = int | Literal["auto"] | DraftConfig | DraftChoice | None
"""How many tokens a round drafts, see `GenerateOptions`."""


@dataclass(frozen=True)
class GenerateOptions:
    """How to generate; every field is also a keyword of `Model.generate` and its siblings.

    The first group may differ from request to request of a batch without another program. The second group belongs to
    the program: all requests that run together share it.

    Attributes:
        max_tokens: tokens to emit at most.
        draft: the number of tokens to draft in a round, or a `DraftConfig`; 0 is plain decoding. "auto" finds the
            number while decoding: from 0 to 8, what gives most tokens a second. A `specjax.Plan` gives the number that
            it recommends, and becomes that `DraftConfig`. None drafts 3 tokens, or as many as the drafter can make if
            that is fewer. Without a drafter, "auto" and None are plain decoding.
        draft_by: of a model with several drafters the name of the one that drafts, or a list of names, see
            `Model.drafter_names`. None lets all of them draft.
        temperature, top_k, top_p, min_p: how tokens are drawn, see `SamplerConfig`. Temperature 0 is greedy decoding.
        seed: of all random draws. With it, a prompt at the same place in a list gives the same text.
        stop: strings that end the text; the text is cut before the first of them.
        ignore_eos: go on after a token that ends the text.
        logit_bias: numbers that are added to the logits of some tokens, by their ids, in every place of the text; at
            most 300 tokens.
        presence_penalty, frequency_penalty: subtracted from the logit of every token that the text has already: once,
            and as often as the text has it. The prompt does not count.
        json_schema: the text is JSON that this schema allows: a schema as text, or as `json.loads` gives it.
        regex: the text is one that this regular expression matches as a whole.
        grammar_after: the schema or the expression holds for what comes after this token, such as "</think>".

        accept: "rejection" tests each draft by itself; "block" judges the drafts of a round together, and accepts more
            of them; "coupled" gives the text of plain sampling with the same seed. Greedy decoding needs none of them.
        rollback: "replay", "snapshot", or "auto" for the faster one.
        kv_type_k, kv_type_v: how keys and values are kept, by the drafter too: "f32", "f16", "bf16", "q8_0", "q4_0",
            "turbo2", "turbo3" or "turbo4".
        margins: whether to report, for each token, the largest logit minus the second largest where the token was
            chosen. In greedy decoding a small margin is a near-tie.
        logprobs: also report the log-probability of each token, and of so many most probable tokens at its place;
            they are the model's own, before temperature, filters and grammars. None reports nothing.
        trace: whether to record what every round drafted and accepted, and how probable it was; see
            `specjax.traces.trace.Trace`.
        rounds_per_chunk: the most rounds that run on the device before the host sees their tokens. Fewer of them run
            where they would take more than 30 ms together, or than 0.1 to 0.2 s where nobody reads along.

    Raises:
        TypeError: a setting is of another type than it must be.
        ValueError: a setting is out of its range.
    """

    max_tokens: int = 128
    draft: Draft = None
    draft_by: str | Sequence[str] | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    json_schema: str | Mapping[str, Any] | None = None
    regex: str | None = None
    grammar_after: str | None = None
    accept: DrawingRule = "rejection"
    rollback: RollbackStrategy | Literal["auto"] = "auto"
    kv_type_k: str = "f32"
    kv_type_v: str = "f32"
    margins: bool = False
    logprobs: int | None = None
    trace: bool = False
    rounds_per_chunk: int = DEFAULT_ROUNDS

    def __post_init__(self) -> None:
        object.__setattr__(self, "draft", getattr(self.draft, "draft", self.draft))  # of a `DraftChoice` its choice
        self._check_types()
        object.__setattr__(self, "draft_by", given_names(self.draft_by))
        stop = (self.stop,) if isinstance(self.stop, str) or not isinstance(self.stop, Iterable) else tuple(self.stop)
        if not all(isinstance(text, str) and text for text in stop):
            raise ValueError(f"stop is {self.stop!r}; give strings that are not empty")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "logit_bias", pairs_of(self.logit_bias))
        self._check_grammar()
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; at least 1 token must be asked for")
        if self.rounds_per_chunk < 1:
            raise ValueError(f"rounds_per_chunk is {self.rounds_per_chunk}; it must be at least 1")
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_LOGPROBS:
            raise ValueError(f"logprobs is {self.logprobs}; give a number of alternatives from 0 to {MOST_LOGPROBS}")
        if self.accept == "synthetic" or isinstance(self.accept, Synthetic):
            raise ValueError(
                f"accept is {self.accept!r}, which draws lots and is for measuring speed: what comes out is no model's"
                f" text; see specjax.analysis.benchmark, or accept by one of {', '.join(map(repr, RULES))}"
            )
        if self.accept not in RULES:
            raise ValueError(f"accept is {self.accept!r}; known rules are {', '.join(map(repr, RULES))}")
        if self.rollback not in ("auto", "replay", "snapshot"):
            raise ValueError(f"rollback is {self.rollback!r}; known are 'auto', 'replay' and 'snapshot'")
        for name in ("kv_type_k", "kv_type_v"):
            if getattr(self, name) not in KV_TYPES:
                known = ", ".join(map(repr, KV_TYPES))
                raise ValueError(f"{name} is {getattr(self, name)!r}; known are {known}")
        self.settings(draft := self.draft_config(has_drafter=True))
        if draft.n_max > MAX_DRAFTS:
            raise ValueError(
                f"{draft.n_max} draft tokens are asked for; a round verifies at most {MAX_DRAFTS + 1} tokens at once:"
                f" draft at most {MAX_DRAFTS}"
            )
        draft.check_lossless(drawn=draws_drafts(self.accept) and not self.sampler.greedy)

    def _check_types(self) -> None:
        """Numbers may be NumPy's; they become Python's, so that equal options are equal."""
        for name, (kind, others) in _TYPES.items():
            value = getattr(self, name)
            if isinstance(value, np.generic):
                value = value.item()
            if kind is float and type(value) is int:
                value = float(value)
            if type(value) is not kind and not isinstance(value, others) and (name, value) != ("draft", "auto"):
                wanted = {int: "an integer", float: "a number", bool: "True or False"}[kind]
                also = " or 'auto'" if name == "draft" else ""
                raise TypeError(f"{name} is {value!r}; give {wanted}{also}")
            object.__setattr__(self, name, value)

    def _check_grammar(self) -> None:
        """A schema becomes text, so that the options are a value."""
        if isinstance(self.json_schema, Mapping):
            object.__setattr__(self, "json_schema", json.dumps(self.json_schema, ensure_ascii=False))
        if not isinstance(self.json_schema, str | None):
            raise TypeError(f"json_schema is {self.json_schema!r}; give a schema as text or as a dict")
        for name in ("regex", "grammar_after"):
            if not isinstance(getattr(self, name), str | None):
                raise TypeError(f"{name} is {getattr(self, name)!r}; give a text")
        if self.json_schema is not None and self.regex is not None:
            raise ValueError("json_schema and regex are both given; a text can be held to one of them")
        if self.grammar_after is not None and self.json_schema is None and self.regex is None:
            raise ValueError("grammar_after is given, but nothing that begins there; give json_schema or regex too")

    def plain(self) -> dict[str, Any]:
        """The fields as plain values, as JSON has them."""
        draft_by = None if self.draft_by is None else list(self.draft_by)
        return {**asdict(self), "draft_by": draft_by, "stop": list(self.stop), "logit_bias": dict(self.logit_bias)}

    @property
    def sampler(self) -> SamplerConfig:
        """Temperature, top-k, top-p and min-p as one value."""
        return SamplerConfig(self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def leaning(self) -> Leaning:
        """The bias and the penalties as one value."""
        return Leaning(self.logit_bias, self.presence_penalty, self.frequency_penalty)  # type: ignore[arg-type]

    @property
    def finds_depth(self) -> bool:
        """Whether the number of drafts is found while decoding."""
        return self.draft_config(has_drafter=True).auto

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
        """The strategy in effect. "auto" means replay: it moves fewer bytes for 2 tokens or more, and was faster where
        it was measured.
        """
        return "replay" if self.rollback == "auto" else self.rollback

    def draft_config(self, has_drafter: bool, max_drafts: int | None = None) -> DraftConfig:
        """The settings of drafting for a model. `max_drafts` is the most drafts that its drafter can make, None without
        a limit.
        """
        draft: DraftConfig
        if isinstance(self.draft, DraftConfig):
            draft = self.draft
        elif self.draft == "auto":
            draft = DraftConfig(n_max=AUTO_DRAFTS, auto=True)
        else:
            draft = DraftConfig(n_max=DEFAULT_DRAFTS if self.draft is None else cast("int", self.draft))
        if self.draft is not None and not draft.auto:
            return draft
        if not has_drafter:
            return DraftConfig(n_max=0)
        return draft if max_drafts is None else replace(draft, n_max=min(draft.n_max, max_drafts))

    def settings(self, draft: DraftConfig, eos_ids: Sequence[int] = ()) -> Settings:
        """What a row of the running state is told.

        Args:
            draft: the drafting part, see `draft_config`.
            eos_ids: the model's tokens that end a text.
        """
        stops = () if self.ignore_eos else tuple(eos_ids)
        scored = self.logprobs is not None or self.trace
        return Settings(self.sampler, draft, self.seed, stops, rule=self.accept, scored=scored, leaning=self.leaning)


def rule_of(options: Iterable[GenerateOptions]) -> Rule:
    """The rule of a program for requests with these options."""
    rules = {each.rule for each in options} - {"greedy"}
    return "greedy" if not rules else rules.pop() if len(rules) == 1 else "each"


_TYPES: dict[str, tuple[type, tuple[type, ...]]] = {
    "max_tokens": (int, ()),
    "draft": (int, (DraftConfig, type(None))),
    "temperature": (float, ()),
    "top_k": (int, ()),
    "top_p": (float, ()),
    "min_p": (float, ()),
    "presence_penalty": (float, ()),
    "frequency_penalty": (float, ()),
    "seed": (int, ()),
    "ignore_eos": (bool, ()),
    "margins": (bool, ()),
    "trace": (bool, ()),
    "logprobs": (int, (type(None),)),
    "rounds_per_chunk": (int, ()),
}
"""Of each checked field its type, and others that it may have. A bool is no int here."""

PER_REQUEST = (
    *("max_tokens", "draft", "draft_by", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "ignore_eos"),
    *("logit_bias", "presence_penalty", "frequency_penalty", "json_schema", "regex", "grammar_after"),
)
"""Fields that may differ between requests that run together."""


class OptionChanges(TypedDict, total=False):
    """The fields of `GenerateOptions` as keywords, for editors and type checkers."""

    max_tokens: int
    draft: Draft
    draft_by: str | Sequence[str] | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    stop: str | Sequence[str]
    ignore_eos: bool
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...]
    presence_penalty: float
    frequency_penalty: float
    json_schema: str | Mapping[str, Any] | None
    regex: str | None
    grammar_after: str | None
    accept: DrawingRule
    rollback: RollbackStrategy | Literal["auto"]
    kv_type_k: str
    kv_type_v: str
    margins: bool
    logprobs: int | None
    trace: bool
    rounds_per_chunk: int


class BatchOptionChanges(TypedDict, total=False):
    """The same for several prompts: those that may differ between them are one value for all, or one for each."""

    max_tokens: int | Sequence[int]
    draft: Draft | Sequence[Draft]
    draft_by: str | Sequence[str | Sequence[str] | None] | None
    temperature: float | Sequence[float]
    top_k: int | Sequence[int]
    top_p: float | Sequence[float]
    min_p: float | Sequence[float]
    seed: int | Sequence[int]
    stop: str | Sequence[str] | Sequence[Sequence[str]]
    ignore_eos: bool | Sequence[bool]
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] | Sequence[Mapping[int, float]]
    presence_penalty: float | Sequence[float]
    frequency_penalty: float | Sequence[float]
    json_schema: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any] | None] | None
    regex: str | Sequence[str | None] | None
    grammar_after: str | Sequence[str | None] | None
    accept: DrawingRule
    rollback: RollbackStrategy | Literal["auto"]
    kv_type_k: str
    kv_type_v: str
    margins: bool
    logprobs: int | None
    trace: bool
    rounds_per_chunk: int


_Function = TypeVar("_Function", bound=Callable[..., Any])


def takes_options(function: _Function) -> _Function:
    """Show the options' fields among the keywords of a function that takes them as `**changes`."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in fields(GenerateOptions)
        if each.name not in signature.parameters
    ]
    function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return function


def options_of(options: GenerateOptions | None, changes: Mapping[str, Any]) -> GenerateOptions:
    """The options with some fields changed.

    Raises:
        TypeError: `options` is something else, or there is no such field.
        ValueError: see `GenerateOptions`.
    """
    if options is None:
        options = GenerateOptions()
    if not isinstance(options, GenerateOptions):
        raise TypeError(
            f"options is {options!r}; give specjax.GenerateOptions(...), or its fields as keywords: max_tokens=64"
        )
    known = [each.name for each in fields(options)]
    for name in changes:
        if name not in known:
            raise TypeError(f"there is no option {name!r}; there are {', '.join(known)}")
    return replace(options, **changes)


def options_of_each(
    count: int, options: GenerateOptions | Sequence[GenerateOptions] | None, changes: Mapping[str, Any]
) -> list[GenerateOptions]:
    """The options of each of `count` prompts, from values for all of them and lists with one value for each.

    Raises:
        TypeError, ValueError: as `options_of`; or a list has another length, or prompts that are to run together differ
            in what belongs to the program.
    """
    bases = list(options) if isinstance(options, Sequence) else [options] * count
    lists = {name: list(value) for name, value in changes.items() if _is_list(name, value)}
    for name, values in {**lists, "options": bases}.items():
        if len(values) != count:
            raise ValueError(f"{name} has {len(values)} values for {count} prompts; give one for each, or one for all")
    each = [
        options_of(base, {**changes, **{name: values[index] for name, values in lists.items()}})
        for index, base in enumerate(bases)
    ]
    shared = [field.name for field in fields(GenerateOptions) if field.name not in PER_REQUEST]
    for other in each[1:]:
        different = [name for name in shared if getattr(other, name) != getattr(each[0], name)]
        if different:
            raise ValueError(f"prompts that run together must have equal {', '.join(different)}; call once for each")
    return each


def _is_list(name: str, value: Any) -> bool:
    if name not in PER_REQUEST or isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        return False
    if name == "logit_bias":
        return all(isinstance(bias, Mapping) for bias in value)
    return name != "stop" or not all(isinstance(text, str) for text in value)
