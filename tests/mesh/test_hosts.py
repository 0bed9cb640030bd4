"""Two processes that share a model say what one device says, and process 0 alone speaks and writes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from host_program import everything
from made_models import write
from processes import outputs, running

import checkpoints
import specjax
from checkpoints.orbax import writer
from pallas_kernels import native
from pallas_kernels.native.library import ISA_VARIABLE

pytestmark = pytest.mark.mesh

LENGTHS = 14, 2, 6, 6, 6  # such that pieces are of one prompt each, and run by the same programs
PROMPTS = [
    {"tokens": list(range(10 + index, 10 + index + length)), "id": index} for index, length in enumerate(LENGTHS)
]
LOST = 3


def prompt_file(folder: Path) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return path


def last_line(text: str) -> Any:
    """The JSON object at the end of an output, before which Gloo may have written something."""
    return json.loads(text.splitlines()[-1])


def test_an_evaluation_in_two_processes_writes_the_results_of_one_device(tmp_path: Path) -> None:
    model, out = write(tmp_path, "hybrid", "Q8_0"), tmp_path / "results.jsonl"
    files = ["--model", str(model), "--prompts", str(prompt_file(tmp_path)), "--out", str(out)]
    options = ["--mesh", "1x4", "--batch", "2", "--draft", "2", "--max-tokens", "12", "--ignore-eos", "--json"]
    said = outputs(["-m", "specjax", "eval", *files, *options])
    assert json.loads(said[0][0])["prompts"] == len(PROMPTS)
    assert said[1][0] == ""
    assert {path.name for path in tmp_path.glob("results*")} == {out.name, f"{out.name}.settings.json"}
    results = {line["id"]: line["tokens"] for line in map(json.loads, out.read_text().splitlines())}
    one = specjax.load(model)
    wanted = one.generate_batch([each["tokens"] for each in PROMPTS], draft=0, max_tokens=12, ignore_eos=True)
    assert results == {index: each.tokens for index, each in enumerate(wanted)}


def test_processes_that_would_choose_other_kernels_are_refused(tmp_path: Path) -> None:
    model = write(tmp_path, "hybrid", "F32")
    command = ["-m", "specjax", "generate", "--model", str(model), "--mesh", "1x4", "--tokens", "7,8,9"]
    with running(command, last={"SPECJAX_KERNELS": "xla", ISA_VARIABLE: "portable"}) as started:
        ended = [(process.communicate(timeout=300)[1].decode(), process.returncode) for process in started]
    wanted = {"the choice of kernels: process 0 has 'SPECJAX_KERNELS=auto', process 1 has 'SPECJAX_KERNELS=xla'"}
    if native.available():
        wanted.add(f"native kernels for: process 0 has '{native.instruction_set()}', process 1 has 'portable'")
    for said, code in ended:
        assert code == 2, ended
        assert wanted <= set(said.strip().removeprefix("error: ").split("; ")), said


@pytest.mark.slow
def test_a_job_of_slurm_is_found(tmp_path: Path) -> None:
    command = ["-m", "specjax", "generate", "--mesh", "2x2", "--max-tokens", "8", "--tokens", "7,8,9", "--json"]
    said = outputs(command, slurm=True)
    assert json.loads(said[0][0])["tokens"] == specjax.load().generate([7, 8, 9], max_tokens=8).tokens
    assert said[1][0] == ""


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["1x4", "2x2"])
@pytest.mark.parametrize("weights", ["F32", "Q8_0"])
def test_programs_in_two_processes_say_what_one_device_says(tmp_path: Path, mesh: str, weights: str) -> None:
    model = write(tmp_path, "hybrid", weights)
    program = str(Path(__file__).parent / "host_program.py")
    found = last_line(outputs([program, str(model), mesh, str(tmp_path)])[0][0])
    one = specjax.load(model)
    wanted = everything(one, tmp_path)
    assert found.pop("score") == pytest.approx(wanted.pop("score"), rel=1e-4)
    assert found == wanted


def in_kind(kind: str, folder: Path, name: str) -> Path:
    """The file or folder of a model in F32."""
    source = write(folder, name, "F32")
    if kind == "gguf":
        return source
    options = checkpoints.convert.ConvertOptions("hf") if kind == "hf" else None
    converted = folder / f"{name}.{kind}"
    checkpoints.convert.prepare(source, converted, specjax.FAMILIES, options).run()
    return converted


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="what is read is counted by Linux's /proc")
@pytest.mark.parametrize("kind", ["gguf", "hf", "orbax"])
def test_each_process_reads_its_half(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processes on 1x4 each has two of four parts of the model, and at most two parameters besides. Of an Orbax
    folder chunks are read, which here are small, because the matrices are."""
    monkeypatch.setattr(writer, "_CHUNK_BYTES", 1 << 18)
    model, small = (in_kind(kind, tmp_path, name) for name in ("big", "qwen3"))
    program = str(Path(__file__).parent / "loading_program.py")
    whole = checkpoints.describe(model, specjax.FAMILIES).num_bytes
    for found in last_line(outputs([program, str(model), "1x4", str(small)])[0][0]):
        assert found["read"] < 0.6 * whole, (found, whole)
        assert found["peak"] < found["part"] + 2 * found["largest"], found


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_is_killed_ends_the_others(tmp_path: Path, killed: int) -> None:
    model, out = write(tmp_path, "hybrid", "F32"), tmp_path / "results.jsonl"
    files = ["--model", str(model), "--prompts", str(prompt_file(tmp_path)), "--out", str(out)]
    options = ["--mesh", "2x2", "--batch", "2", "--draft", "2", "--max-tokens", "400", "--ignore-eos"]
    with running(["-m", "specjax", "eval", *files, *options]) as started:
        while not (out.exists() and out.stat().st_size) and all(process.poll() is None for process in started):
            time.sleep(0.1)
        started[killed].kill()
        other, begin = started[1 - killed], time.monotonic()
        _, said = other.communicate(timeout=90)
    assert time.monotonic() - begin < 60
    assert other.returncode != 0
    if killed == 1:  # where process 0 is gone, JAX itself ends the others
        assert other.returncode == LOST, said.decode()
        assert "another process of the job has ended" in said.decode()
    results = out.read_text()
    assert results.endswith("\n")
    assert all(json.loads(line)["finish_reason"] for line in results.splitlines())
