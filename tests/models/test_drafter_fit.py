"""Whether a drafter that reads layers of its target was made for this one, and how much it can draft for it."""

from __future__ import annotations

import pytest
from drafter_fixtures import FIXTURES, TARGET, attached, loaded_drafter, target
from tiny_models import DENSE

import specjax
from specjax.decoding.decoder import Decoder
from specjax.models import registry
from specjax.models.qwen3_5 import Qwen35Target

MISMATCHES = {
    "eagle3/specforge_wide": ("vocabulary: 64 in the target, 320", "width: 32 in the target, 48", "reads [3, 6]"),
    "eagle3/specforge": ("vocabulary: 64 in the target, 320", "reads [-1]"),
    "dflash/specforge": ("vocabulary: 64 in the target, 320", "reads [3, 5]"),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_drafter_for_another_target_is_refused_with_every_mismatch(name: str) -> None:
    with pytest.raises(ValueError, match="made for another target") as refused:
        registry.from_file(loaded_drafter(name)[0]).attach(Qwen35Target(DENSE))
    assert all(mismatch in str(refused.value) for mismatch in MISMATCHES[name])


def test_the_files_are_named_when_a_drafter_does_not_fit() -> None:
    with pytest.raises(specjax.SpecjaxError, match=r"specforge_wide cannot draft for .*: 32 in the target, 48 in the"):
        specjax.load(TARGET, drafter=FIXTURES / "eagle3/specforge_wide")


@pytest.mark.parametrize(("name", "most"), [("dflash/speculators", 7), ("dspark/speculators_vanilla", 6)])
def test_more_drafts_than_a_block_has_slots_for_are_refused(name: str, most: int) -> None:
    own = attached(name)[0]
    Decoder(target()[0], own, max_drafts=most)
    with pytest.raises(ValueError, match=f"{most + 1} draft tokens are asked for; this drafter makes at most {most}"):
        Decoder(target()[0], own, max_drafts=most + 1)
    model = specjax.load(TARGET, drafter=FIXTURES / name)
    with pytest.raises(ValueError, match=f"at most {most}"):
        model.generate([1, 2, 3], max_tokens=4, draft=most + 1)
