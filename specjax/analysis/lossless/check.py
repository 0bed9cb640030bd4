"""Look for ways in which a model's drafter changes what the model says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from specjax.analysis.lossless.drafts import check_drafts
from specjax.analysis.lossless.equality import check_equality
from specjax.analysis.lossless.report import Check, NotLosslessError, Report
from specjax.analysis.lossless.rows import PIECE, Fed, Sampling
from specjax.analysis.lossless.rules import check_rules
from specjax.analysis.lossless.texts import check_plain, check_texts, draw_texts, without_drafts
from specjax.decoding.acceptance import DrawingRule
from specjax.decoding.decoder import Decoder
from specjax.errors import SpecjaxError
from specjax.runtime.draft_by import numbers_of
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions
from specjax.runtime.prompts import Prompt, check_prompts

TEXTS = ("def add(a, b):\n    return", "The answer to the question is", "import os\n\n\nclass")
"""What is continued if no prompts are given."""

DEFAULT_SAMPLES = 512
LENGTH = 10
"""Tokens of each drawn text: a few rounds."""
ROUNDS = 4
"""So many times as many single rounds are drafted, because they are cheap."""

KEEPING: tuple[DrawingRule, ...] = ("rejection", "block")
"""The rules that keep the distribution, and not the tokens."""

Group = Literal["rules", "drafts", "tokens", "texts"]
GROUPS: dict[Group, int] = {"rules": 1, "drafts": 3, "tokens": 3, "texts": 1 + len(KEEPING)}
"""How many checks each group has, in the order in which they run."""


def check_lossless(
    model: Model,
    prompts: Sequence[Prompt] | None = None,
    options: GenerateOptions | None = None,
    *,
    samples: int = DEFAULT_SAMPLES,
    alarm_rate: float = 1e-6,
    only: Sequence[Group] = tuple(GROUPS),
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Look for ways in which a model's drafter changes what the model says.

    There are four groups of checks:

    * "rules": the acceptance rules, by exact enumeration over a tiny vocabulary.
    * "drafts": what the drafter says of its drafts. One round after a text is drafted again and again with other random
      numbers.
    * "tokens": greedy decoding and the coupled rule. The tokens must be the same with drafts and without.
    * "texts": rejection and block verification. Every token of many texts is held against the target's probabilities.

    A bad draft costs speed only. It is not looked for.

    Args:
        model: with its drafter, see `specjax.load`.
        prompts: texts or token ids to continue; by default a few of its own.
        options: how to draw and draft. Where they are greedy, texts are drawn at temperature 1. `seed` makes another
            run of the same checks.
        samples: how many texts are drawn for each rule, after all prompts together; four times as many single rounds
            are drafted. More of them see smaller faults.
        alarm_rate: how often all statistical tests together may blame a drafter that is lossless.
        only: the groups to run. "drafts" alone is quick, and finds most of what a new drafter does wrong.
        progress: called with checks done and checks in all.

    Returns:
        The report. Print it, or look at `ok` and `checks`.

    Raises:
        SpecjaxError: the model has no drafter.
        PromptError: see `Model.generate`.
        ValueError: an option is out of its range, or would bias drawn texts.
    """
    started, options = time.perf_counter(), options or GenerateOptions(max_tokens=64)
    if model.drafter is None:
        raise SpecjaxError(f"{model.path} has no drafter, so nothing can be lost; load it with one: drafter='ngram'")
    if samples < 1:
        raise ValueError(f"samples is {samples}; give at least 1")
    if not 0 < alarm_rate < 1:
        raise ValueError(f"alarm_rate is {alarm_rate}; give a probability between 0 and 1")
    if isinstance(only, str) or not only or not set(only) <= set(GROUPS):
        raise ValueError(f"only is {only!r}; give a list of some of {', '.join(map(repr, GROUPS))}")
    greedy = replace(options, temperature=0.0, ignore_eos=True, stop=(), accept="coupled")
    warm = replace(options, temperature=options.temperature or 1.0, ignore_eos=True, stop=(), accept="rejection")
    draft = warm.draft_config(True, model.drafter.max_drafts)
    if draft.n_max == 0:
        raise ValueError("draft is 0, so that nothing is drafted; leave it out, or ask for drafts")
    drafters = numbers_of(warm.draft_by, model.drafter_names)
    ids = _prompts(model, prompts, options.seed)
    check_prompts(model.target, ids, new_tokens=options.max_tokens)
    settings = replace(warm.settings(draft), grammar=model.grammar(warm), drafters=drafters)
    sampling = Sampling(settings, LENGTH, -(-samples // len(ids)))
    many = replace(sampling, count=ROUNDS * sampling.count)
    rng = np.random.default_rng(options.seed)

    checks: list[Check] = []
    total = sum(GROUPS[group] for group in set(only))

    def add(*done: Check) -> None:
        checks.extend(done)
        if progress is not None:
            progress(len(checks), total)

    def fed(decoder: Decoder) -> list[Fed]:
        return [Fed(decoder, model.params, prompt, LENGTH) for prompt in ids]

    by_rule = {rule: fed(model.decoder(replace(warm, accept=rule))) for rule in KEEPING}
    if "rules" in only:
        add(check_rules(warm.sampler, draft))
    if "drafts" in only:
        add(*check_drafts(by_rule["rejection"], many, rng))
    if "tokens" in only:
        add(check_equality("greedy", model, ids, greedy))
        for seed in (warm.seed, (warm.seed + 1) % 2**32):
            add(check_equality(f"coupled, seed {seed}", model, ids, replace(warm, accept="coupled", seed=seed)))
    if "texts" in only:
        plain, undrafted = fed(model.decoder(replace(warm, draft=0))), without_drafts(sampling)
        texts = [draw_texts(each, each, undrafted, rng) for each in plain]
        add(check_plain(texts, undrafted))
        # Other random numbers than in plain decoding, whose texts stand beside these.
        other = replace(sampling, settings=replace(sampling.settings, seed=(warm.seed + 1) % 2**32))
        for rule, drafting in by_rule.items():
            drawn = [draw_texts(each, judge, other, rng) for each, judge in zip(drafting, plain, strict=True)]
            add(check_texts(rule, drawn, texts, sampling))
    return Report(repr(model), tuple(checks), alarm_rate, time.perf_counter() - started)


def assert_lossless(
    model: Model,
    prompts: Sequence[Prompt] | None = None,
    options: GenerateOptions | None = None,
    *,
    samples: int = DEFAULT_SAMPLES,
    alarm_rate: float = 1e-6,
    only: Sequence[Group] = tuple(GROUPS),
) -> Report:
    """The same as `check_lossless`, for tests: a failed check is an error.

    Raises:
        NotLosslessError: an AssertionError that says what was found.
    """
    report = check_lossless(model, prompts, options, samples=samples, alarm_rate=alarm_rate, only=only)
    if not report.ok:
        raise NotLosslessError(report)
    return report


def _prompts(model: Model, prompts: Sequence[Prompt] | None, seed: int) -> list[list[int]]:
    """Token ids. Without a tokenizer those of its own are random."""
    if prompts is not None:
        return [model.encode(prompt) for prompt in prompts]
    if model.tokenizer is not None:
        return [model.encode(text) for text in TEXTS]
    rng = np.random.default_rng(seed)
    return [rng.integers(0, model.target.vocab_size, PIECE // 4).tolist() for _ in TEXTS]
