"""Greedy speculation emits the tokens of plain greedy decoding: for every draft length, accept count and rollback."""

from __future__ import annotations

from itertools import product

import pytest
from ragged import assert_accepted_as_scripted, assert_same_committed, plain, speculate
from tiny_models import DENSE, MOE
from wants import GREEDY

from specjax.models.qwen3_5 import Qwen35Config
from specjax.state import RollbackStrategy

USUAL = ((3, "replay"), (5, "snapshot"))
CASES = [
    *(
        pytest.param(DENSE, *case, marks=[pytest.mark.slow] * (case not in USUAL))
        for case in product((1, 2, 3, 5), ("replay", "snapshot"))
    ),
    pytest.param(MOE, 3, "replay", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("config", "drafts", "rollback"), CASES, ids=lambda x: getattr(x, "architecture", x))
def test_greedy_speculation_equals_plain_greedy(config: Qwen35Config, drafts: int, rollback: RollbackStrategy) -> None:
    want = plain(config, GREEDY)
    for seed in (0, 1):
        got = speculate(config, drafts, GREEDY, rollback, seed=seed)
        assert got.tokens == want.tokens
        assert_same_committed(got.state.sequences, want.state.sequences)
        assert_accepted_as_scripted(got, drafts, seed)


@pytest.mark.slow  # coupled rows, and greedy ones of a whole model, are held to it in `make test`
@pytest.mark.parametrize(("drafts", "rollback"), [(1, "snapshot"), (2, "replay"), (3, "snapshot"), (5, "replay")])
def test_a_row_alone_decodes_as_in_the_batch(drafts: int, rollback: RollbackStrategy) -> None:
    for row in (2, 4, 7):
        assert speculate(DENSE, drafts, GREEDY, rollback, (row,)).tokens == [plain(DENSE, GREEDY).tokens[row]]
