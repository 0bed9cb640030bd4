"""What looks into a model finds on a mesh what it finds on one device: check, diverge and imatrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from test_diverge import faulty
from test_mesh_drafters import OwnTable
from test_tokens import PROMPTS

import specjax
from specjax.analysis.calibration import collect_importance

pytestmark = pytest.mark.mesh

Load = Callable[..., specjax.Model]
DRAFTS = 3


@pytest.mark.parametrize(
    ("name", "weights", "mesh", "settings"),
    [
        ("hybrid", "Q8_0", "1x4", {}),
        ("odd moe", "F32", "2x2", {}),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("odd", "Q4_K", "1x4", {}),
                ("gemma4 edge", "F32", "1x2", {}),
                ("exact hybrid", "F32", "1x2", {"exact": True}),
            )
        ),
    ],
    ids=str,
)
def test_matrices_are_multiplied_with_what_they_are_on_one_device(
    load: Load, name: str, weights: str, mesh: str, settings: dict[str, Any]
) -> None:
    """Columns of value heads and experts in the order of the file, without those that fill up the last part."""
    text = np.random.default_rng(0).integers(5, 250, 48).tolist()
    one, split = load(name, weights), load(name, weights, mesh, **settings)
    wanted, got = (collect_importance(model, text, chunk_size=16) for model in (one, split))
    assert got.entries.keys() == wanted.entries.keys()
    for matrix, want in wanted.entries.items():
        np.testing.assert_array_equal(got.entries[matrix].counts, want.counts, err_msg=matrix)
        np.testing.assert_allclose(got.entries[matrix].sums, want.sums, rtol=1e-3, atol=1e-6, err_msg=matrix)


@pytest.mark.parametrize(
    ("name", "mesh", "drafter", "only"),
    [
        pytest.param("odd", "2x2", OwnTable(), ["drafts", "texts"], marks=pytest.mark.slow),
        pytest.param("odd moe", "1x4", None, ["rules", "drafts", "tokens", "texts"], marks=pytest.mark.slow),
    ],
)
def test_losses_are_looked_for_as_on_one_device(load: Load, name: str, mesh: str, drafter: Any, only: Any) -> None:
    """The same texts are drawn, and have the same places in the same distributions."""
    options = specjax.GenerateOptions(max_tokens=16, temperature=0.9, top_k=20, draft=2)
    models = (load(name, mesh=each, drafter=drafter) for each in (None, mesh))
    wanted, got = (specjax.check_lossless(each, PROMPTS[:1], options, samples=64, only=only) for each in models)
    assert got.ok, got
    for want, own in zip(wanted.checks, got.checks, strict=True):
        assert (own.name, own.tried, own.faults) == (want.name, want.tried, want.faults)
        assert [each.what for each in own.tests] == [each.what for each in want.tests]
        found, expected = ([each.p_value for each in check.tests] for check in (own, want))
        np.testing.assert_allclose(found, expected, rtol=1e-3)


@dataclass(frozen=True)
class Unnormalised(OwnTable):
    """States probabilities that sum to more than 1."""

    def propose(self, *args: Any, **options: Any) -> specjax.Proposal:
        proposal = super().propose(*args, **options)
        return proposal if proposal.logq is None else proposal._replace(logq=proposal.logq + 0.1)


def test_a_loss_is_found_on_a_mesh(load: Load) -> None:
    """On odd sizes, with biases of single tokens."""
    model = load("odd", mesh="1x4", drafter=Unnormalised())
    options = specjax.GenerateOptions(max_tokens=8, temperature=1.0, logit_bias={7: 1.5}, draft=2)
    report = specjax.check_lossless(model, PROMPTS[:1], options, samples=32, only=["drafts"])
    assert [each.name for each in report.failed] == ["stated probabilities"]
    assert "sum to 1.10" in report.failed[0].faults[0]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["1x4", "2x2"])
def test_states_are_compared_as_on_one_device(load: Load, mesh: str) -> None:
    """Four parts share two KV heads; what is compared are the heads of the model, of which each counts once."""
    sides = {"draft": DRAFTS}, {"draft": DRAFTS, "rollback": "snapshot"}
    wanted, got = (
        specjax.diverge(load("hybrid", mesh=each), PROMPTS[0], *sides, max_tokens=12, beside=PROMPTS[1:])
        for each in (None, mesh)
    )
    assert got.verdict == wanted.verdict == "equal", got
    for want, own in zip(wanted.sides, got.sides, strict=True):
        assert want.state is not None
        assert own.state is not None
        assert (own.state.moments, own.state.parts) == (want.state.moments, want.state.parts)
        assert own.state.drafted_alike == own.state.drafted == want.state.drafted > 0
        assert own.state.rounding < 1e-4


@pytest.mark.parametrize(
    ("fault", "path"),
    [
        ("committed too far", ("layer 0", "recurrent state")),
        pytest.param("waits off by one", ("drafter", "waiting hidden states"), marks=pytest.mark.slow),
    ],
)
def test_a_wrong_state_on_a_mesh_is_named(load: Load, fault: str, path: tuple[str, ...]) -> None:
    model = load("hybrid", mesh="1x4")
    tokens = faulty(model).generate(PROMPTS[0], max_tokens=12, draft=DRAFTS).tokens  # nothing is wrong with it yet
    report = specjax.diverge(faulty(model, fault), PROMPTS[0], {"draft": DRAFTS}, tokens, max_tokens=12)
    assert report.verdict == "state gone wrong"
    state = report.sides[0].state
    assert state is not None
    first = state.deviations[0]
    assert first.path == path
    assert "1 token too" in first.likely
    assert path[0] == "drafter" or first.heads == tuple(range(model.target.config.linear_value_heads))


def test_a_difference_is_judged_on_a_mesh(load: Load) -> None:
    """Odd sizes: what fills up the last part is not in the vocabulary."""
    model = load("odd", mesh="1x4")
    tokens = model.generate(PROMPTS[0], max_tokens=8, draft=0, ignore_eos=True).tokens
    worst = int(model.next_logits([*PROMPTS[0], *tokens[:4]]).argmin())
    theirs = [*tokens[:4], worst, *tokens[5:]]
    report = specjax.diverge(model, PROMPTS[0], {"draft": 0}, theirs, states=False, max_tokens=8, ignore_eos=True)
    assert report.verdict == "another model"
    assert report.difference is not None
    assert (report.difference.index, report.difference.candidates[1].rank) == (4, model.target.vocab_size)
