"""Drafters draft for a split model what they draft on one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from test_tokens import PROMPTS

import specjax
from pallas_kernels.matmul import as_weight

pytestmark = pytest.mark.mesh

Load = Callable[..., specjax.Model]
FIXTURES = Path(__file__).parents[1] / "fixtures"
WANTED: dict[str, Any] = {
    "max_tokens": 12,
    "ignore_eos": True,
    "draft": 3,
    "trace": True,
    "temperature": [0.0, 0.8, 0.9],
    "top_k": [0, 20, 0],
    "seed": [0, 1, 2],
}
GREEDY: dict[str, Any] = {"temperature": 0.0, "top_k": 0}
TARGET = FIXTURES / "drafter_target" / "hf"
FILES = [
    *(f"eagle3/{name}" for name in ("specforge", "speculators", "speculators_layers", "speculators_qwen3")),
    *(f"dflash/{name}" for name in ("dflash2", "specforge_sliding", "speculators", "speculators_non_causal")),
    *(f"dspark/{name}" for name in ("specforge_vanilla", "speculators_gated", "speculators_rnn")),
]


def drafts_alike(one: specjax.Model, split: specjax.Model, **options: Any) -> list[specjax.Generation]:
    """What both say, if they say the same by way of the same drafts, of which they think the same."""
    wanted, got = (model.generate_batch(PROMPTS, **(WANTED | options)) for model in (one, split))
    for want, own in zip(wanted, got, strict=True):
        assert own.tokens == want.tokens
        assert want.trace is not None
        assert own.trace is not None
        np.testing.assert_array_equal(own.trace.drafts, want.trace.drafts)
        for name in ("p", "q", "confidence"):
            np.testing.assert_allclose(getattr(own.trace, name), getattr(want.trace, name), rtol=2e-3, atol=1e-5)
    return wanted


def compiles_nothing_again(split: specjax.Model, compiled: list[str], **options: Any) -> None:
    """Other prompts, shorter texts and other settings run by the programs that there are."""
    compiled.clear()
    others = {"max_tokens": 5, "temperature": [0.7, 0.0, 0.5], "top_k": [9, 0, 0], "seed": [5, 4, 3]}
    split.generate_batch([prompt[::-1] for prompt in PROMPTS], **(WANTED | others | options))
    assert not compiled


MADE = [
    pytest.param("eagle3", "1x4", GREEDY, id="eagle3-1x4-greedy"),
    *(
        pytest.param(*each, {}, marks=pytest.mark.slow, id="-".join(each))
        for each in (("eagle3", "1x4"), ("dflash2", "2x2"), ("dspark", "1x2"), ("odd", "1x4"))
    ),
]


@pytest.mark.parametrize(("drafter", "mesh", "options"), MADE)
def test_drafters_with_files_of_their_own_draft_the_same(
    load: Load, compiled: list[str], drafter: str, mesh: str, options: dict[str, Any]
) -> None:
    """With a vocabulary of its own that does not divide, with a selector, and with heads that correct slots; a small
    model with a token less.
    """
    one, split = (load("qwen3", mesh=each, drafter=drafter) for each in (None, mesh))
    drafts_alike(one, split, **options)
    compiles_nothing_again(split, compiled, **options)


@pytest.mark.slow
@pytest.mark.usefixtures("programs_of_its_own")
@pytest.mark.parametrize("mesh", ["1x2", "1x4", "2x2"])
@pytest.mark.parametrize("name", FILES)
def test_released_kinds_of_drafters_draft_the_same(name: str, mesh: str) -> None:
    drafts_alike(*(specjax.load(TARGET, mesh=each, drafter=FIXTURES / name) for each in (None, mesh)))


@pytest.mark.parametrize(
    ("form", "mesh"), [("edge", "1x4"), *(pytest.param(*each, marks=pytest.mark.slow) for each in (("dense", "1x2"),))]
)
def test_assistants_draft_the_same(form: str, mesh: str) -> None:
    """The edge form has a centroid head. Neither 315 tokens nor the 60 that it scores at once divide evenly."""
    folder = FIXTURES / "gemma4" / form
    models = (specjax.load(folder / "hf", mesh=each, drafter=folder / "assistant") for each in (None, mesh))
    drafts_alike(*models, **GREEDY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "weights", "drafter", "mesh"),
    [
        ("hybrid", "Q8_0", None, "1x4"),
        ("hybrid", "F32", None, "2x2"),
        ("hybrid tied", "Q4_K", None, "1x2"),
        ("qwen3", "F32", "qwen3", "1x4"),
        ("qwen3", "F32", "dspark", "1x4"),
    ],
)
def test_draft_vocabularies_draft_the_same(load: Load, name: str, weights: str, drafter: Any, mesh: str) -> None:
    """Of 102 tokens, which do not divide. Rows are so warm that they accept what a random drafter drafts."""
    one, split = (load(name, weights, each, drafter, draft_vocab=102) for each in (None, mesh))
    np.testing.assert_array_equal(split.params["trimmed"]["tokens"], one.params["trimmed"]["tokens"])
    rule = "coupled" if name == "hybrid" else "rejection"
    wanted = drafts_alike(one, split, accept=rule, temperature=[0.0, 3.0, 3.0], top_k=0)
    assert any(each.stats.accepted for each in wanted)


@dataclass(frozen=True)
class OwnTable(specjax.BaseDrafter):
    """A user's drafter that says nothing of devices: a table of its own scores what may follow a token."""

    def parameters(self, target: Any) -> Any:
        rng = np.random.default_rng(0)
        tables = rng.standard_normal((2, target.vocab_size, 16), np.float32)
        return {"own": {"before": jnp.asarray(tables[0]), "head": jnp.asarray(tables[1])}}

    def head_paths(self) -> tuple[str, ...]:
        return ("own.head",)

    def propose(
        self, params: Any, pending: Any, state: Any, *, num_drafts: int, choose: Any, keep_going: Any
    ) -> specjax.Proposal:
        choices, token, before = [], pending, None
        for index in range(num_drafts):
            logits = as_weight(params["own"]["head"]).matmul(params["own"]["before"][token], jnp.float32)
            choices.append(choose(logits, state.length + index + 1, before=before))
            token, before = choices[-1].token, choices[-1].drafted
        return specjax.Proposal.drawn(choices, state.drafter)


@dataclass(frozen=True)
class Curious(OwnTable):
    """One that reads what is split."""

    def propose(self, params: Any, *args: Any, **options: Any) -> specjax.Proposal:
        return super().propose(params | {"seen": params["target"]}, *args, **options)


@pytest.mark.slow
def test_drafters_of_ones_own_are_whole_on_every_device(load: Load) -> None:
    """Odd sizes: 271 tokens on four devices. Their drafts can be trimmed, too."""
    one, split = (load("odd", mesh=mesh, drafter=OwnTable(), draft_vocab=99) for mesh in (None, "1x4"))
    drafts_alike(one, split)
    assert split.params["trimmed"]["rows"]["own"]["head"].shape == (99, 16)


def test_drafters_share_a_draft_vocabulary(load: Load, compiled: list[str]) -> None:
    """Of 102 tokens out of 271: neither divides. The model's head is split; a drafter of one's own is whole on every
    device. Rows are so warm that they accept what is drafted at random.
    """
    one, split = (load("odd hybrid", "Q8_0", mesh, ("mtp", OwnTable()), draft_vocab=102) for mesh in (None, "1x4"))
    np.testing.assert_array_equal(split.params["trimmed"]["tokens"], one.params["trimmed"]["tokens"])
    assert split.params["trimmed"]["rows"]["own"]["head"].shape == (102, 16)
    options = {"draft_by": ["mtp", "mtp", "OwnTable"], "accept": "coupled", "draft": 2}
    wanted = drafts_alike(one, split, temperature=[0.0, 3.0, 3.0], top_k=0, **options)
    by_head, warm, by_own = (each.stats.accepted_by_drafter for each in wanted)
    assert by_head[0] + warm[0] > 0
    assert by_own[1] > 0
    compiles_nothing_again(split, compiled, **options)


def test_a_drafter_that_reads_split_parameters_must_say_how(load: Load) -> None:
    with pytest.raises(ValueError, match=r"Curious reads params\['target'\] of a model that is split.*method shard"):
        load("qwen3", mesh="1x2", drafter=Curious()).generate(PROMPTS[0], max_tokens=4, draft=1)
