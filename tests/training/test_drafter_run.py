"""`specjax train --drafter` on a tiny target: it learns, resumes bit for bit, and what it writes drafts."""

from __future__ import annotations

import io
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from drafter_fixtures import TARGET
from rich.console import Console

import specjax
from specjax.cli.main import main
from specjax.runtime.model import Model
from specjax.training.checkpointing import TrainState
from specjax.training.corpus import text_files
from specjax.training.drafters.registry import KINDS
from specjax.training.drafters.run import DrafterRun
from specjax.training.drafters.task import DrafterTask
from specjax.training.progress import Progress
from specjax.training.recipe import Recipe
from specjax.training.run_folder import RunFolder

RECIPE = Recipe(
    steps=10, batch_size=2, length=24, learning_rate=1e-2, warmup_steps=2, mtp_steps=3, eval_every=5, save_every=4
)


@pytest.fixture(scope="module")
def model() -> Model:
    return specjax.load(TARGET)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for index in range(21):
        (folder / f"{index:02}.txt").write_text(f"the text {index} speaks of one thing and of another\n" * 8)
    (folder / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    return folder


def make_run(kind: str, model: Model, texts: Path, recipe: Recipe = RECIPE, **sizes: int) -> DrafterRun:
    return DrafterRun(KINDS[kind], model, text_files([texts]), recipe, block=4 if kind != "eagle3" else None, **sizes)


def quiet() -> Progress:
    return Progress(Console(file=io.StringIO()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "draft_vocab"),
    [("eagle3", 40), ("dflash", None), ("dspark", 40)],
)
def test_a_drafter_learns_and_its_file_drafts(
    kind: str, draft_vocab: int | None, model: Model, texts: Path, tmp_path: Path
) -> None:
    sizes = {} if draft_vocab is None else {"draft_vocab": draft_vocab}
    run, folder = make_run(kind, model, texts, **sizes), RunFolder(tmp_path / "run")
    params = run.train(folder, quiet())
    assert params is not None
    lines = [line for line in folder.read_metrics() if line["event"] == "step"]
    assert lines[-1]["loss"] < 0.95 * lines[0]["loss"]
    assert set(json.loads(folder.report.read_text())) >= {"loss", "agreement_1"}
    assert folder.loss_plot.read_bytes().startswith(b"\x89PNG")
    run.export(params, tmp_path / "drafter.gguf", "F32")
    drafting = specjax.load(TARGET, drafter=tmp_path / "drafter.gguf")
    drafted = drafting.generate("the text 3", max_tokens=12, draft=3, ignore_eos=True)
    assert drafted.tokens == model.generate("the text 3", max_tokens=12, ignore_eos=True).tokens
    assert drafted.stats.drafted > 0


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_with_the_same_parameters(model: Model, texts: Path, tmp_path: Path) -> None:
    whole = make_run("eagle3", model, texts).train(RunFolder(tmp_path / "whole"), quiet())
    folder = RunFolder(tmp_path / "parts")
    taken = []

    class StoppingTask(DrafterTask):
        def step(self, state: TrainState, tokens: np.ndarray) -> tuple[TrainState, dict[str, jax.Array]]:
            taken.append(1)
            if len(taken) == 6:
                raise KeyboardInterrupt
            return super().step(state, tokens)

    class Stopping(DrafterRun):
        @property
        def task(self) -> DrafterTask:
            task = super().task
            return StoppingTask(task.objective, task.target_params, task.fixed)

    stopping = Stopping(KINDS["eagle3"], model, text_files([texts]), RECIPE)
    with pytest.raises(KeyboardInterrupt):
        stopping.train(folder, quiet())
    resumed = make_run("eagle3", model, texts).train(folder, quiet())
    assert len(taken) == 6
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)


def test_the_command_trains_and_says_what_it_cannot_do(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = ["train", "--out", str(tmp_path / "run"), "--target", str(TARGET)]
    sizes = ["--steps", "2", "--batch", "2", "--length", "24", "--text", str(texts), "--layers", "1"]
    dspark = ["--drafter", "dspark", "--block", "4"]
    assert main([*ours, *sizes, *dspark, "--export", str(tmp_path / "d.gguf"), "--type", "f32"]) == 0
    assert (tmp_path / "d.gguf").is_file()
    for options, refusal in (
        ([*dspark, "--family", "gemma4"], "--family is for runs that train a model"),
        ([*sizes, "--drafter", "eagle3"], "another config, drafter"),
        ([*sizes, *dspark, "--seed", "1"], "another recipe"),
    ):
        capsys.readouterr()
        assert main([*ours, *options]) == 2
        assert refusal in capsys.readouterr().err
