"""Prompts of a Ray dataset on two workers. `make test-ray` runs this."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from one_process import OPTIONS, ROWS, alone

import specjax
from specjax.errors import PromptError

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed; make test-ray installs it")

import psutil  # noqa: E402
import pyarrow as pa  # noqa: E402
from pyarrow import parquet  # noqa: E402

from specjax.evaluation.ray import Continue  # noqa: E402

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]  # Ray and what it brings warn of much

SCRIPT = """
import sys
import ray
import specjax
from ray.data.checkpoint import CheckpointConfig
from specjax.evaluation.ray import Continue

prompts, out, checkpoint = sys.argv[1:]
ray.init(num_cpus=4, include_dashboard=False)
context = ray.data.DataContext.get_current()
context.checkpoint_config = CheckpointConfig(id_column="id", checkpoint_path=checkpoint)
done = ray.data.read_parquet(prompts).repartition(target_num_rows_per_block=4).map_batches(
    Continue,
    fn_constructor_kwargs={"options": specjax.GenerateOptions(max_tokens=120, temperature=0.8, seed=1)},
    batch_format="pyarrow", batch_size=2, num_cpus=1, compute=ray.data.ActorPoolStrategy(size=2),
)
done.write_parquet(out)
"""


@pytest.fixture
def cluster() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR")
    yield
    ray.shutdown()


def test_two_workers_say_what_one_process_says(cluster: None) -> None:
    data = ray.data.from_arrow([pa.Table.from_pylist(ROWS[:3]), pa.Table.from_pylist(ROWS[3:])])
    done = data.map_batches(
        Continue,
        fn_constructor_kwargs={"options": OPTIONS, "rows": 2, "samples": 2},
        batch_format="pyarrow",
        batch_size=2,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=2),
    ).take_all()
    want = alone(ROWS, OPTIONS, samples=2)
    assert {(row["id"], row["sample"]) for row in done} == want.keys()
    for row in done:
        result = want[row["id"], row["sample"]]
        assert (list(row["tokens"]), row["text"], row["seed"]) == (result.tokens, result.text, result.seed)
        assert row["finish_reason"] == result.finish_reason
        assert row["topic"] == f"t{row['id']}", "other columns are passed on"
        assert row["logprobs"] == pytest.approx(result.logprobs, abs=1e-4)
        first = row["top_logprobs"][0][0]
        assert (first["token"], first["logprob"]) == pytest.approx(result.top_logprobs[0][0], abs=1e-4)
        assert len(row["tokens"]) <= (5 if row["id"] % 4 == 0 else 12)


def test_a_killed_run_is_resumed_by_ray(tmp_path: Path) -> None:
    """All of its processes are killed with -9; the second run does what is left, and nothing twice."""
    rows = [{"id": number, "prompt": f"x{number} = "} for number in range(24)]
    prompts, out, checkpoint = tmp_path / "prompts", tmp_path / "out", tmp_path / "checkpoint"
    prompts.mkdir()
    for part in range(6):
        parquet.write_table(pa.Table.from_pylist(rows[4 * part : 4 * part + 4]), prompts / f"{part}.parquet")
    command = [sys.executable, "-c", SCRIPT, str(prompts), str(out), str(checkpoint)]

    def written() -> int:
        return sum(parquet.read_metadata(path).num_rows for path in out.glob("*.parquet"))

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(out.glob("*.parquet")):
            time.sleep(0.05)
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            each.kill()
    before = written()
    assert 0 < before < 24, "it was killed too early or too late"
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    got = [row for path in sorted(out.glob("*.parquet")) for row in parquet.read_table(path).to_pylist()]
    want = alone(rows, specjax.GenerateOptions(max_tokens=120, temperature=0.8, seed=1))
    assert sorted(row["id"] for row in got) == list(range(24))
    assert {row["id"]: row["tokens"] for row in got} == {name: result.tokens for (name, _), result in want.items()}


def test_batches_that_are_no_prompts_are_refused() -> None:
    ours = Continue(options=specjax.GenerateOptions(max_tokens=2), keep_going=True)
    with pytest.raises(PromptError, match="the columns are prompt; there must be prompt and id"):
        ours(pa.table({"prompt": ["a"]}))
    with pytest.raises(PromptError, match="text must have other names, because results have such columns"):
        ours(pa.table({"id": [1], "prompt": ["a"], "text": ["b"]}))
    with pytest.raises(PromptError, match=r"unknown key 'max_token'; is 'max_tokens' meant\?"):
        ours(pa.table({"id": [1], "prompt": ["a"], "max_token": [3]}))
    with pytest.raises(PromptError, match="row 1 of a batch has no id"):
        ours(pa.table({"id": [1, None], "prompt": ["a", "b"]}))
    with pytest.raises(PromptError, match="row 1 of a batch has the id 1, as one before it"):
        ours(pa.table({"id": [1, 1], "prompt": ["a", "b"]}))
    assert ours(pa.table({"id": pa.array([], pa.int64()), "prompt": pa.array([], pa.string())})).num_rows == 0

    names, seeds = ["a", "b", "c", "d"], [5, None, 6, 7]
    done = ours(pa.table({"id": names, "prompt": [[7], [], [10**6], None], "seed": seeds})).to_pylist()
    assert [len(row["tokens"] or ()) for row in done] == [2, 0, 0, 0]
    assert (done[0]["error"], done[0]["seed"]) == (None, 5)
    for row in done[1:]:
        assert f"row with the id {row['id']!r}" in row["error"]
    with pytest.raises(PromptError, match="row with the id 'b'"):
        Continue(options=specjax.GenerateOptions(max_tokens=2))(pa.table({"id": ["b"], "prompt": [[1] * 9999]}))
