"""What users ask of a model: settings for each prompt, stop strings, log-probabilities, scores, and threads."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax

PROMPTS = ["def f(", "class A", "import os", "x = "]
SCORED: Any = {"accept": "coupled", "top_k": 5, "ignore_eos": True, "logprobs": 4}
"""Calls with these options and four prompts share one program."""


def test_prompts_of_a_batch_can_want_different_things(model: specjax.Model) -> None:
    wants: Any = {
        "temperature": [0.0, 0.8, 0.8, 0.0],
        "seed": [0, 7, 8, 0],
        "max_tokens": [9, 20, 30, 12],
        "draft": [3, 0, 2, 1],
    }
    together = model.generate_batch(PROMPTS, **wants, **SCORED)
    each = [dict(zip(wants, values, strict=True)) for values in zip(*wants.values(), strict=True)]
    options = [specjax.GenerateOptions(**own, **SCORED) for own in each]
    engine = model.engine(options, seats=len(PROMPTS), slots=256)
    for index, result in enumerate(together):
        prompt = model.encode(PROMPTS[index])
        alone = engine.submit(model.request(prompt, options[index], sequence=index))  # its random stream
        for _ in engine.run():
            pass
        assert result.tokens == alone.tokens
        assert len(result.tokens) == wants["max_tokens"][index]


def test_a_stop_string_cuts_the_text_and_frees_the_seat(model: specjax.Model) -> None:
    whole = model.generate("def f(", max_tokens=40, draft=3, ignore_eos=True)
    stop = whole.text[7:9]
    cut = whole.text.find(stop)
    result = model.generate("def f(", max_tokens=40, draft=3, ignore_eos=True, stop=[stop, "\0"])
    assert (result.text, result.finish_reason) == (whole.text[:cut], "stop")
    assert model.decode(result.tokens).startswith(whole.text[:cut] + stop)
    assert whole.tokens[: len(result.tokens)] == result.tokens
    stream = model.stream("def f(", max_tokens=40, draft=3, ignore_eos=True, stop=stop)
    assert "".join(stream) == stream.result.text == whole.text[:cut]
    beside: Any = {"temperature": [0.0, 0.0, 0.9, 0.9], "stop": [[stop], [], [], []]}
    first, second, *_ = model.generate_batch(["def f("] * 4, max_tokens=40, draft=3, **beside, **SCORED)
    assert (first.text, second.text) == (whole.text[:cut], whole.text)


def test_log_probabilities_are_those_of_the_whole_distribution(model: specjax.Model) -> None:
    """From the rounds of drafts, as from the logits of the text fed at once; of what is drawn, and of what is not."""
    temperatures = [0.9, 0.0, 0.9, 0.0]
    results = model.generate_batch(PROMPTS, temperature=temperatures, max_tokens=20, draft=3, seed=3, **SCORED)
    drawn, greedy = (sum(each.stats.accepted for each in results[begin::2]) for begin in (0, 1))
    assert drawn > 0
    assert greedy > 0
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert result.logprobs is not None
        text = [*result.prompt_tokens, *result.tokens]
        logits = model.logits(text)[len(result.prompt_tokens) - 1 : -1].astype(np.float64)
        want = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        for each, token, row in zip(result.logprobs, result.tokens, want, strict=True):
            assert each.logprob == pytest.approx(row[token], abs=2e-4)
            best = np.argsort(-row, kind="stable")[:4]
            assert [id_ for id_, _ in each.top] == best.tolist()
            assert [value for _, value in each.top] == pytest.approx(row[best].tolist(), abs=2e-4)
        scores = model.score(prompt, result.tokens)
        assert scores == pytest.approx([each.logprob for each in result.logprobs], abs=2e-4)


def test_scores_of_a_batch_are_those_of_its_texts(model: specjax.Model) -> None:
    continuations = [[1, 2, 3], [5] * 60, [7], [9, 9]]
    together = model.score_batch(iter(PROMPTS), iter(continuations))
    for prompt, continuation, scores in zip(PROMPTS, continuations, together, strict=True):
        assert scores == pytest.approx(model.score(prompt, continuation), abs=1e-4)
        assert len(scores) == len(continuation)
    with pytest.raises(ValueError, match="4 prompts and 1 continuations"):
        model.score_batch(PROMPTS, [[1]])


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (b"def", "the prompt is bytes; decode it"),
        ([313.7, 286.2], r"has \[313.7, 286.2\] among its token ids"),
        ([True], "among its token ids"),
        (7, "the prompt is 7; give a text"),
    ],
)
def test_what_is_no_prompt_is_refused(model: specjax.Model, prompt: object, message: str) -> None:
    with pytest.raises(specjax.PromptError, match=message):
        model.generate(prompt)  # type: ignore[arg-type]
    with pytest.raises(specjax.PromptError, match="prompts is one text, 'def'"):
        model.generate_batch("def")
    with pytest.raises(specjax.PromptError, match="prompts is 7; give a list of prompts"):
        model.generate_batch(7)  # type: ignore[arg-type]
    with pytest.raises(specjax.PromptError, match=r"what is to be decoded has \['a', 'b'\] among its token ids"):
        model.decode("ab")  # type: ignore[arg-type]
    with pytest.raises(specjax.PromptError, match=r"continuations is one text, 'ab'; give a list .* call score"):
        model.score_batch(["a", "b"], "ab")
    with pytest.raises(specjax.PromptError, match="choices is one text, 'ab'"):
        model.score_choices("a", "ab")
    with pytest.raises(specjax.PromptError, match=r"choices\[1\] is empty"):
        model.score_choices("a", ["b", ""])


def test_token_ids_may_be_arrays_and_prompts_an_iterator(model: specjax.Model) -> None:
    for tokens in (np.array([5, 6]), jnp.array([5, 6]), [jnp.array(5), np.uint8(6)]):
        assert model.encode(tokens) == [5, 6]
        assert model.decode(tokens) == model.decode([5, 6])
    with pytest.raises(specjax.PromptError, match="among its token ids"):
        model.encode(jnp.array([5.0]))
    assert model.generate_batch(iter(())) == []


def test_what_cannot_be_loaded_is_named() -> None:
    with pytest.raises(specjax.SpecjaxError, match="packed is 'a4'; give 'a8', 'a16', or None"):
        specjax.load(packed="a4")  # type: ignore[arg-type]
    with pytest.raises(specjax.SpecjaxError, match="is no drafter: it has no attach"):
        specjax.load(drafter=object())  # type: ignore[arg-type]


def test_a_turn_of_a_session_can_have_options_of_its_own(model: specjax.Model) -> None:
    chat = model.session(draft=3, temperature=0.8, accept="coupled", ignore_eos=True, max_tokens=12, slots=256)
    first, _ = chat.generate("def f(", seed=1)
    second, after = chat.generate("def f(", seed=2, max_tokens=5, draft=0)
    assert first.tokens == model.generate("def f(", chat.options, seed=1).tokens
    assert second.tokens == model.generate("def f(", chat.options, seed=2, max_tokens=5).tokens
    assert second.stats.drafted == 0
    assert after.options == chat.options
    with pytest.raises(ValueError, match="made for 3 drafts a round"):
        chat.generate("def f(", draft=5)
    assert model.session(slots=16).slots == 16


def test_threads_can_use_one_model(model: specjax.Model) -> None:
    want = [model.generate(prompt, max_tokens=16, draft=3, ignore_eos=True).tokens for prompt in PROMPTS]
    got: dict[tuple[int, int], list[int]] = {}

    def work(thread: int) -> None:
        for index, prompt in enumerate(PROMPTS):
            got[thread, index] = model.generate(prompt, max_tokens=16, draft=3, ignore_eos=True).tokens

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {(thread, index): want[index] for thread in range(4) for index in range(len(PROMPTS))}


def test_calls_of_all_kinds_leave_no_arrays_behind(model: specjax.Model) -> None:
    rng = np.random.default_rng(0)

    def call(index: int) -> None:
        prompt = rng.integers(0, 250, int(rng.integers(1, 60))).tolist()
        draft = 0 if index % 6 == 0 else 3
        options = {"temperature": index % 3 / 2, "seed": index, "draft": draft, "max_tokens": 1 + index % 9}
        stream = model.stream(prompt, **options, accept="coupled")  # type: ignore[arg-type]
        if index % 5 == 0:
            next(stream.updates())
            return  # abandoned
        if index % 7 == 0:
            with pytest.raises(specjax.PromptError):
                model.generate([10**6])
        for _ in stream.updates():
            pass

    for index in range(20):
        call(index)
    before = len(jax.live_arrays())
    for index in range(60):
        call(index)
    assert len(jax.live_arrays()) <= before


def test_logits_that_are_no_numbers_are_said(model: specjax.Model) -> None:
    broken = jax.tree.map(lambda x: x, model.params)
    broken["target"]["norm"]["weight"] = broken["target"]["norm"]["weight"] * np.nan
    with pytest.warns(specjax.NonFiniteWarning, match="not finite numbers, and its tokens mean nothing"):
        replace(model, params=broken).generate("def", max_tokens=3, draft=0)
