"""Rows of a data set that another program cuts into batches: Ray, Beam. Each has a `prompt` and an `id`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import specjax
from specjax.errors import PromptError
from specjax.evaluation.evaluate import Evaluation, sift
from specjax.evaluation.prompts import PromptLine, prompt_of, samples_of
from specjax.runtime.options import GenerateOptions


class RowEvaluation:
    """A model that continues the prompts of rows, batch after batch.

    Draws are keyed by the id, so each row must have one of its own: then the results depend neither on the batches nor
    on the workers. Entries with the names of options, such as `max_tokens`, `temperature` or `seed`, hold for their
    rows; None leaves it to the options.

    Attributes:
        model: what continues the prompts.
        options: hold for all prompts whose rows say nothing else.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        options: GenerateOptions | None = None,
        *,
        rows: int = 8,
        samples: int = 1,
        keep_going: bool = False,
        **loading: Any,
    ) -> None:
        """
        Args:
            model: the file or the folder, which every worker can read; None is the bundled model.
            options: hold for all prompts whose rows say nothing else; None for the usual ones.
            rows: how many prompts run together in a worker. Let batches be several times as large.
            samples: texts for each prompt, each a result.
            keep_going: say in the result's `error` what is wrong with a prompt, and go on.
            **loading: further arguments of `specjax.load`.

        Raises:
            SpecjaxError: the model cannot be loaded.
        """
        self.model = specjax.load(model, **loading)
        self.options = options or GenerateOptions()
        self._rows, self._samples, self._keep_going = rows, samples, keep_going

    def run(self, batch: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], Mapping[str, Any]]:
        """The results by the row of the batch and the sample, in order. See `specjax.evaluation.PromptResult`.

        Raises:
            PromptError: the rows are no prompts, or a prompt cannot be continued.
        """
        results: dict[tuple[int, int], Mapping[str, Any]] = {}
        lines = self._lines(batch, results)
        texts = samples_of(lines, self.options, self._samples)
        if self._keep_going:
            texts, unfit = sift(self.model, texts, self.options)
            results |= {(line.index, 0): {"error": line.error} for line in unfit}
        if texts:
            run = Evaluation(self.model, texts, self.options, self._rows).run()
            results |= {(result.index, result.sample): result.as_line() for result in run}
        return dict(sorted(results.items()))

    def _lines(
        self, entries: Sequence[Mapping[str, Any]], results: dict[tuple[int, int], Mapping[str, Any]]
    ) -> list[PromptLine]:
        """The batch as lines of a prompt file; `results` gets the rows that are none."""
        lines: list[PromptLine] = []
        names = set()
        for row, entry in enumerate(entries):
            name = entry.get("id")
            if name is None or name in names:
                said = "has no id" if name is None else f"has the id {name!r}, as one before it"
                raise PromptError(f"row {row} of a batch {said}; give each row one of its own")
            names.add(name)
            try:
                lines.append(_line(entry, row))
            except PromptError as error:
                if not self._keep_going:
                    raise
                results[row, 0] = {"error": str(error)}
        return lines


def _line(entry: Mapping[str, Any], row: int) -> PromptLine:
    """A row of a batch as a line of a prompt file."""
    given = {key: value for key, value in entry.items() if value is not None}
    if isinstance(given.get("prompt"), list):
        given["tokens"] = given.pop("prompt")
    return prompt_of(given, row, f"the row with the id {given['id']!r}")
