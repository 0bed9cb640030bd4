"""Prompts of a Ray dataset: a class for `ray.data.Dataset.map_batches` (the extra `ray`).

Ray makes one object of the class in each of its workers, and gives it batch after batch. See `Continue`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import specjax
from specjax.errors import PromptError
from specjax.evaluation.evaluate import Evaluation, sift
from specjax.evaluation.prompts import PromptLine, prompt_of, samples_of
from specjax.runtime.options import GenerateOptions

if TYPE_CHECKING:
    import pyarrow as pa

RESULTS = {
    "sample": "int64",
    "seed": "int64",
    "text": "string",
    "tokens": "list<int64>",
    "finish_reason": "string",
    "prompt_tokens": "int64",
    "rounds": "int64",
    "drafted": "int64",
    "accepted": "int64",
    "drafted_by_position": "list<int64>",
    "accepted_by_position": "list<int64>",
    "error": "string",
}
"""The columns that every batch gets, and their types. See `specjax.evaluation.PromptResult` for their meaning."""

LOGPROBS = {
    "logprobs": "list<float64>",
    "top_logprobs": "list<list<token_logprob>>",
}
"""Further columns, if log-probabilities are asked for; a token_logprob has `token` and `logprob`."""


class Continue:
    """Continues the prompts of batches. The model is loaded once, when Ray makes a worker.

    A batch has the columns `prompt` (texts, or lists of token ids) and `id`. Draws are keyed by the id, so each row
    must have one of its own: then the results depend neither on the batches nor on the workers. Columns with the names
    of options, such as `max_tokens`, `temperature` or `seed`, hold for their rows; null leaves it to the options. All
    columns are passed on, and those of `RESULTS` are added.

    Attributes:
        model: what continues the prompts.
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
            options: hold for all prompts whose columns say nothing else; None for the usual ones.
            rows: how many prompts run together in a worker. Let Ray's `batch_size` be several times as many.
            samples: texts for each prompt, each a row of the result.
            keep_going: write what is wrong with a prompt to the column `error`, and go on.
            **loading: further arguments of `specjax.load`.

        Raises:
            SpecjaxError: the model cannot be loaded.
        """
        self.model = specjax.load(model, **loading)
        self._options = options or GenerateOptions()
        self._rows, self._samples, self._keep_going = rows, samples, keep_going

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Continue the prompts of a batch, which must come as `batch_format="pyarrow"`.

        Raises:
            PromptError: the columns describe no prompts, or a prompt cannot be continued.
        """
        import pyarrow as pa

        columns = [name for name in batch.column_names if name != "seed"]  # that of the result takes its place
        if not {"prompt", "id"} <= {*columns}:
            raise PromptError(f"the columns are {', '.join(batch.column_names)}; there must be prompt and id")
        if taken := {*RESULTS, *LOGPROBS} & {*columns}:
            raise PromptError(f"{', '.join(sorted(taken))} must have other names, because results have such columns")
        prompt_of(dict.fromkeys(columns) | {"id": 0, "prompt": ""}, 0, "the columns")  # refuses mistyped names
        results: dict[tuple[int, int], Mapping[str, Any]] = {}  # by the row of the batch, and the sample
        lines = self._lines(batch.to_pylist(), results)
        texts = samples_of(lines, self._options, self._samples)
        if self._keep_going:
            texts, unfit = sift(self.model, texts, self._options)
            results |= {(line.index, 0): {"error": line.error} for line in unfit}
        if texts:
            run = Evaluation(self.model, texts, self._options, self._rows).run()
            results |= {(result.index, result.sample): result.as_line() for result in run}
        places = sorted(results)
        table = batch.select(columns).take(pa.array([row for row, _ in places], pa.int64()))
        for name, kind in (RESULTS | (LOGPROBS if self._options.logprobs is not None else {})).items():
            values = [_cell(name, results[place].get(name)) for place in places]
            table = table.append_column(name, [pa.array(values, _arrow_type(kind))])
        return table

    def _lines(
        self, entries: Sequence[Mapping[str, Any]], results: dict[tuple[int, int], Mapping[str, Any]]
    ) -> list[PromptLine]:
        """The rows of a batch as lines of a prompt file; `results` gets those that are none."""
        lines: list[PromptLine] = []
        names = set()
        for row, entry in enumerate(entries):
            if entry["id"] is None or entry["id"] in names:
                said = "has no id" if entry["id"] is None else f"has the id {entry['id']!r}, as one before it"
                raise PromptError(f"row {row} of a batch {said}; give each row one of its own")
            names.add(entry["id"])
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


def _cell(name: str, value: Any) -> Any:
    """A value as Arrow has it."""
    if name != "top_logprobs" or value is None:
        return value
    return [[{"token": token, "logprob": logprob} for token, logprob in best] for best in value]


def _arrow_type(kind: str) -> pa.DataType:
    import pyarrow as pa

    if kind.startswith("list<"):
        return pa.list_(_arrow_type(kind[len("list<") : -1]))
    if kind == "token_logprob":
        return pa.struct({"token": pa.int64(), "logprob": pa.float64()})
    return pa.type_for_alias(kind)
