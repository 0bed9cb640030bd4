"""What rounds cost is told to the next process, and nothing that is damaged is believed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import pytest
from flax import struct
from tiny_models import DENSE

from specjax.decoding.decoder import Decoder
from specjax.models.qwen3_5 import Qwen35MTP, Qwen35Target
from specjax.runtime.cost_memory import CostMemory


@struct.dataclass
class Packed:
    """A matrix with which products are made in one way or another."""

    values: jnp.ndarray
    products: str = struct.field(pytree_node=False)


DECODER = Decoder(Qwen35Target(DENSE), Qwen35MTP(DENSE), "greedy", 3)
PARAMS = {"embed": jnp.zeros((3, 4))}


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path))


def test_another_process_reads_what_was_written() -> None:
    CostMemory(DECODER, 2, PARAMS).write({0: 1.0, 3: 2.5})
    assert CostMemory(DECODER, 2, PARAMS).read() == {0: 1.0, 3: 2.5}


@pytest.mark.parametrize(
    "other",
    [
        lambda: CostMemory(DECODER.at_most(2), 2, PARAMS),
        lambda: CostMemory(DECODER, 4, PARAMS),
        lambda: CostMemory(DECODER, 2, {"embed": jnp.zeros((3, 4), jnp.bfloat16)}),
        lambda: CostMemory(DECODER, 2, {"embed": Packed(jnp.zeros((3, 4)), "a8")}),
    ],
    ids=["program", "seats", "weights", "products"],
)
def test_costs_of_something_else_are_not_taken(other: Callable[[], CostMemory]) -> None:
    CostMemory(DECODER, 2, PARAMS).write({0: 1.0, 3: 2.5})
    CostMemory(DECODER, 2, {"embed": Packed(jnp.zeros((3, 4)), "a16")}).write({0: 1.0, 3: 2.5})
    assert other().read() == {}


def test_only_news_are_written() -> None:
    """The unit of costs is another one in each process: ratios count."""
    memory = CostMemory(DECODER, 2, PARAMS)
    memory.write({0: 1.0, 3: 2.5})
    memory.write({0: 10.0, 3: 25.5})
    assert memory.read() == {0: 1.0, 3: 2.5}
    memory.write({0: 10.0, 3: 35.0})
    assert memory.read() == {0: 10.0, 3: 35.0}
    memory.write({0: 10.0, 1: 15.0, 3: 35.0})
    assert memory.read() == {0: 10.0, 1: 15.0, 3: 35.0}


def test_depths_that_are_not_measured_now_keep_their_costs() -> None:
    """In the unit of the others."""
    memory = CostMemory(DECODER, 2, PARAMS)
    memory.write({0: 1.0, 1: 1.5, 3: 2.5})
    memory.write({0: 2.0, 3: 6.0})
    assert memory.read() == pytest.approx({0: 2.0, 1: 1.5 * 2.2, 3: 6.0})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        *(f'{{"0": {value}}}' for value in ("null", "-1", "NaN", "Infinity", "9" * 400)),
        '{"-1": 1, "x": 1}',
        '{"0": 0.88, "2": 0.28, "3": 0.97}',
    ],
)
def test_a_damaged_file_says_nothing_and_is_replaced(text: str) -> None:
    memory = CostMemory(DECODER, 2, PARAMS)
    memory.write({0: 1.0, 3: 2.5})
    assert memory.path is not None
    memory.path.write_text(text)
    assert memory.read() == {}
    memory.write({0: 2.0, 3: 4.0})
    assert memory.read() == {0: 2.0, 3: 4.0}


def test_without_a_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECJAX_CACHE", "")
    memory = CostMemory(DECODER, 2, PARAMS)
    memory.write({0: 1.0, 3: 2.5})
    assert memory.read() == {}
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("not a folder")
    CostMemory(DECODER, 2, PARAMS).write({0: 1.0})
