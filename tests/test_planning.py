"""Plans: what rounds cost, times what a trace says of acceptance."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from small_model import write_small_model

import specjax
from specjax.analysis.planning import Forecast, break_even
from specjax.analysis.profiling import RoundCost

PROMPTS = ["def add(a, b):", "class A", "import os"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> specjax.Model:
    return specjax.load(write_small_model(tmp_path_factory.mktemp("model") / "small.gguf"))


@pytest.fixture(scope="module")
def trace(model: specjax.Model) -> specjax.Trace:
    texts = model.generate_batch(PROMPTS, max_tokens=60, draft=2, trace=True, ignore_eos=True)
    return specjax.Trace.join([each.trace for each in texts])


@pytest.fixture(scope="module")
def plan(model: specjax.Model, trace: specjax.Trace) -> specjax.Plan:
    return model.plan(trace=trace, drafts=[1, 2], batches=[2], contexts=[40])


def test_speed_is_tokens_over_the_time_of_both_halves(plan: specjax.Plan, trace: specjax.Trace) -> None:
    plain, *drafting = plan.forecasts
    assert [each.k for each in plan.forecasts] == [0, 1, 2]
    assert plain.speedup == 1
    assert plain.cost.draft == 0 < plain.cost.verify
    for each in drafting:
        told = trace.what_if(each.k)
        assert each.tokens_per_round == told.tokens_per_round
        assert each.tokens_per_second == pytest.approx(2 * told.tokens_per_round / (each.cost.draft + each.cost.verify))
        assert each.speedup == pytest.approx(each.tokens_per_second / plain.tokens_per_second)
        if each.break_even:
            tokens = sum(each.break_even**j for j in range(each.k + 1))
            assert tokens == pytest.approx(each.cost.total / plain.cost.total)


def test_the_best_is_the_fastest_and_can_be_passed_on(plan: specjax.Plan, model: specjax.Model) -> None:
    best = plan.best(2, 40)
    assert best.tokens_per_second == max(each.tokens_per_second for each in plan.forecasts)
    assert plan.best(2) == best
    assert plan.draft.n_max == best.k
    generated = model.generate("def", draft=plan, max_tokens=8, ignore_eos=True)
    assert len(generated.stats.drafted_by_position) == best.k
    assert specjax.GenerateOptions(draft=plan).draft == specjax.DraftConfig(n_max=best.k)
    assert plan.model is model
    assert str(best.k) in repr(plan) or "decode plainly" in repr(plan)
    table = plan.to_pandas()
    assert table.k.tolist() == [0, 1, 2]
    assert table.speedup.tolist() == [each.speedup for each in plan.forecasts]
    lines = plan.plot().axes[1].lines[0].get_ydata()
    assert lines.tolist() == pytest.approx([1e3 * each.cost.total / 2 for each in plan.forecasts])
    with pytest.raises(ValueError, match=r"batch 4 with context 40 was not measured; there are \[\(2, 40\)\]"):
        plan.best(4)


def test_advice_names_the_choice_and_when_it_pays(plan: specjax.Plan) -> None:
    def forecast(k: int, seconds: float, tokens: float) -> Forecast:
        return Forecast(1, 512, k, RoundCost(0, seconds), tokens, 0.1, tokens / seconds, break_even(k, seconds))

    drafting = specjax.Plan((forecast(0, 1, 1), forecast(1, 1.5, 1.8)), plan.trace, plan.models)
    assert "draft 1; 1.20 times as fast as plain decoding. From an acceptance of 0.50 on" in repr(drafting)
    plainly = specjax.Plan((forecast(0, 1, 1), forecast(1, 1.5, 1.2)), plan.trace, plan.models)
    assert "decode plainly" in repr(plainly)


@pytest.fixture(scope="module")
def compared(model: specjax.Model) -> specjax.Plan:
    others = {"ngram": specjax.load(model.path, drafter=specjax.NGram())}
    return specjax.plan(model, ["a b a b a b"], others=others, drafts=[2], batches=[1], contexts=[40])


@pytest.mark.slow
def test_each_drafter_has_forecasts_from_a_trace_of_its_own(compared: specjax.Plan, model: specjax.Model) -> None:
    assert [(each.drafter, each.k) for each in compared.forecasts] == [("", 0), ("Qwen35MTP", 2), ("ngram", 2)]
    prompt, options = "a b a b a b", specjax.GenerateOptions(max_tokens=128, draft=2, ignore_eos=True)
    for each in compared.forecasts[1:]:
        stats = compared.models[each.drafter].generate(prompt, options).stats
        assert each.tokens_per_round == pytest.approx(stats.tokens_per_round, rel=0.02)
    assert compared.forecasts[1].tokens_per_round != compared.forecasts[2].tokens_per_round
    assert compared.to_pandas().drafter.tolist() == ["", "Qwen35MTP", "ngram"]
    assert [line.get_label() for line in compared.plot().axes[1].lines] == [
        "batch 1, context 40, Qwen35MTP",
        "batch 1, context 40, ngram",
    ]


@pytest.mark.slow
def test_the_best_of_several_drafters_is_named_and_comes_with_its_model(compared: specjax.Plan) -> None:
    def forecast(k: int, tokens: float, drafter: str) -> Forecast:
        return Forecast(1, 40, k, RoundCost(0, 1), tokens, 0.1, tokens, break_even(k, 1), drafter)

    plain, own = forecast(0, 1, ""), forecast(2, 2, "Qwen35MTP")
    other = specjax.Plan((plain, own, forecast(2, 2.5, "ngram")), compared.trace, compared.models)
    assert "draft 2 by ngram; 2.50 times" in repr(other)
    assert other.model is compared.models["ngram"]
    assert specjax.Plan((plain, own), compared.trace, compared.models).model is compared.models["Qwen35MTP"]
    assert specjax.Plan((plain,), compared.trace, compared.models).model is compared.models["Qwen35MTP"]


def test_break_even_is_where_tokens_pay_for_the_round() -> None:
    assert break_even(1, 1.4) == pytest.approx(0.4)
    assert break_even(2, 1.75) == pytest.approx(0.5)
    assert break_even(3, 4.1) is None
    assert break_even(3, 0.9) == 0
    assert math.isclose(break_even(3, 4.0) or 0, 1.0)


def test_what_cannot_be_planned_is_refused(model: specjax.Model, trace: specjax.Trace, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no prompts"):
        specjax.plan(model)
    with pytest.raises(ValueError, match="give whole numbers that are at least 1"):
        specjax.plan(model, trace=trace, drafts=[])
    with pytest.raises(ValueError, match=r"contexts are \[64, 1000000\]; the model's context is \d+"):
        specjax.plan(model, trace=trace, drafts=[1], batches=[1], contexts=[64, 10**6])
    with pytest.raises(ValueError, match="no more than 2 drafts"):
        specjax.plan(model, trace=trace, drafts=[5])
    with pytest.raises(ValueError, match="give other names"):
        specjax.plan(model, PROMPTS, others={"Qwen35MTP": model})
    with pytest.raises(ValueError, match="for the model alone trace="):
        specjax.plan(model, trace=trace, others={"again": model})
    plain = specjax.load(write_small_model(tmp_path / "plain.gguf", mtp=False))
    with pytest.raises(specjax.SpecjaxError, match="has no drafter"):
        specjax.plan(plain, PROMPTS)
