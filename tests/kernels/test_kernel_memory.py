"""What was measured of kernels is remembered for the processes to come, and counts where it should."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from fake_kernels import OPERATIONS
from measured import DIMS, choice, process

from pallas_kernels import memory, tuning, using
from pallas_kernels.choices import Choice, key_of
from pallas_kernels.dispatch import choose


def test_processes_of_one_program_choose_alike(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.remember({choice(DIMS["N"]).key: choice(DIMS["N"])})
    assert choose(OPERATIONS["good"], None, DIMS).name == "fast"
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert choose(OPERATIONS["good"], None, DIMS).name == "usual"


def test_two_programs_do_not_measure_at_the_same_time(folder: Path) -> None:
    """The second one waits, and knows then what the first has found."""
    waited: list[str] = []
    first = memory.turn(lambda: waited.append("first"))
    first.__enter__()

    def let_it_go() -> None:
        waited.append("second")
        memory.remember({choice(3).key: choice(3)})
        memory._known.clear()
        first.__exit__(None, None, None)

    with memory.turn(let_it_go):
        assert memory.remembered() == {choice(3).key: choice(3)}
    assert waited == ["second"]
    with memory.turn(lambda: None), memory.turn(lambda: waited.append("in vain"), seconds=0.1):
        assert waited == ["second", "in vain"], "whoever has stopped is not waited for"


def test_what_was_measured_with_other_block_sizes_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tuning.FOLDER_VARIABLE, str(tmp_path))
    device = tuning.device_kind()
    before = tuning.digest()
    chosen = Choice("hadamard", {"N": 8}, {"N": 8}, (), {}, {})
    tuning.write(tuning.file_of(device), tuning.Measurements(device, (), {chosen.key: chosen}))
    assert tuning.digest() == before
    tunable = tuning.tunables()["hadamard", "triton"]
    dims = tunable.shapes[0]
    winner = tuning.Winner("hadamard", "triton", dims, tunable.heuristic(dims), 1.0, jax.__version__)
    tuning.write(tuning.file_of(device), tuning.Measurements(device, (winner,), {}))
    assert tuning.digest() != before
    assert memory.about.__wrapped__()["blocks"] == tuning.digest(), "which a file of memory is named by"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"about": {', "Expecting"),
        ("[]", "no object with about and choices"),
        ('{"about": {"device": "TPU v5 lite"}, "choices": []}', "it is of .*TPU v5 lite.*, and this is .*cpu"),
        ("broken choices", r"choices\[0\] has 7; accepted: an object"),
    ],
)
def test_a_damaged_or_foreign_file_is_ignored_with_a_word_and_replaced(folder: Path, text: str, why: str) -> None:
    if text == "broken choices":
        text = json.dumps({"about": memory.about(), "choices": [7]})
    path = memory.file()
    path.parent.mkdir()
    path.write_text(text)
    with pytest.warns(
        RuntimeWarning, match=rf"{path}: .* cannot be used: .*{why}.*It is ignored, and will be replaced"
    ):
        assert not memory.remembered()
    memory.remember({choice(1).key: choice(1)})
    memory._known.clear()
    assert memory.remembered() == {choice(1).key: choice(1)}


def test_without_a_cache_folder_a_process_keeps_its_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECJAX_CACHE", "")
    monkeypatch.setattr(memory, "_known", {})
    memory.remember({choice(2).key: choice(2)})
    assert memory.remembered() == {choice(2).key: choice(2)}


def test_a_folder_that_cannot_be_written_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECJAX_CACHE", str(folder / "file"))
    (folder / "file").touch()
    memory.remember({choice(2).key: choice(2)})
    assert memory.remembered() == {choice(2).key: choice(2)}
    with memory.noted("a call", "fast"), memory.turn(lambda: None):
        assert memory.fatal() == []


WRITER = """
import sys
from measured import choice
from pallas_kernels import memory
for number in range(int(sys.argv[1]), int(sys.argv[1]) + 40):
    memory.remember({choice(number).key: choice(number)})
"""


def test_two_processes_do_not_destroy_each_others_choices(folder: Path) -> None:
    both = [process(WRITER, first) for first in ("0", "40")]
    assert [each.wait() for each in both] == [0, 0]
    assert memory.remembered() == {choice(number).key: choice(number) for number in range(80)}
    assert sorted(path.suffix for path in (folder / "kernels").iterdir()) == [".json", ".lock"]


def test_a_choice_is_part_of_what_a_program_is_traced_by(folder: Path) -> None:
    """Programs inside `using(measured=False)` are others, and say what they are traced by."""
    found = choice(DIMS["N"])
    memory.remember({key_of("good", DIMS): found})
    names: list[str] = []

    @jax.jit
    def program(x: jax.Array) -> jax.Array:
        names.append(choose(OPERATIONS["good"], None, DIMS).name)
        return x

    program(jnp.zeros(1))
    with using(measured=False):
        program(jnp.zeros(1))
    assert names == ["fast", "usual"]
