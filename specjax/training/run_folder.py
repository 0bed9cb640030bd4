"""What a training run leaves on disk, and where."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from checkpoints.atomic import write_text
from checkpoints.file_errors import named
from specjax.training.families.base import Family, TrainingConfig
from specjax.training.families.registry import FAMILIES, family_of
from specjax.training.plain import from_plain
from specjax.training.recipe import Recipe


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run: `run.json`, `tokenizer.json`, `metrics.jsonl`, `checkpoints/`, and in the end
    `loss.png` and `report.json`."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """The folder with the newest Orbax checkpoints of the run."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One JSON object per logged step or evaluation."""
        return self.path / "metrics.jsonl"

    @property
    def loss_plot(self) -> Path:
        """The picture of the loss curves, a PNG file."""
        return self.path / "loss.png"

    @property
    def report(self) -> Path:
        """The finished model's figures on all held-out text."""
        return self.path / "report.json"

    @property
    def tokenizer(self) -> Path:
        """The vocabulary, as the `tokenizers` library stores it."""
        return self.path / "tokenizer.json"

    @property
    def description(self) -> Path:
        """Family, recipe, config and provenance of the text."""
        return self.path / "run.json"

    def write(self, recipe: Recipe, config: TrainingConfig, provenance: dict, tokenizer: Tokenizer) -> None:
        """Describe the run, so that it can be resumed, exported and reported on."""
        write_text(self.tokenizer, tokenizer.to_str(pretty=True))
        fields = {
            "family": family_of(config).name,
            "recipe": recipe.to_dict(),
            "config": asdict(config),
            "corpus": provenance,
        }
        write_text(self.description, json.dumps(fields, indent=2) + "\n")

    def write_report(self, figures: dict[str, Any]) -> None:
        """Keep the figures of the finished model."""
        write_text(self.report, json.dumps(figures, indent=2) + "\n")

    def read_recipe(self) -> Recipe | None:
        """The recipe of the run in this folder, or None when there is no run yet."""
        return Recipe.from_dict(self._read()["recipe"]) if self.description.exists() else None

    def read_family(self) -> Family:
        """The family of the model that the run trains.

        Raises:
            ValueError: the run trains a drafter.
        """
        if (family := self._read().get("family")) is None:
            raise ValueError(
                f"{self.path} holds a run of a drafter; continue it with --drafter, or choose another folder"
            )
        return FAMILIES[family]

    def read_config(self) -> TrainingConfig:
        """The config of the model that the run trains."""
        return from_plain(self.read_family().config_type, self._read()["config"])

    def read_provenance(self) -> dict[str, Any]:
        """Where the text came from, see `Provenance`."""
        return self._read()["corpus"]

    def read_tokenizer(self) -> Tokenizer:
        """The vocabulary that the run has trained."""
        return Tokenizer.from_file(str(self.tokenizer))

    def read_metrics(self) -> list[dict[str, Any]]:
        """Every logged line, oldest first; of a step that was run twice (after a resume) the later line.

        A line that a killed run left unfinished is passed over.
        """
        lines = []
        for text in self.metrics.read_text(encoding="utf-8").splitlines() if self.metrics.exists() else ():
            with suppress(json.JSONDecodeError):
                lines.append(json.loads(text))
        return list({(line["event"], line["step"]): line for line in lines}.values())

    def log(self, event: str, step: int, **values: float) -> None:
        """Append one line to the metrics, after ending the one that a killed run may have left unfinished."""
        line = json.dumps({"event": event, "step": step, **values}).encode() + b"\n"
        with named(self.metrics), self.metrics.open("a+b") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read() == b"\n" else b"\n" + line
            file.write(line)

    def _read(self) -> dict[str, Any]:
        if not self.description.exists():
            raise FileNotFoundError(f"{self.description} does not exist; {self.path} holds no training run")
        return json.loads(self.description.read_text())
