"""Prompts of a Ray dataset: a class for `ray.data.Dataset.map_batches` (the extra `ray`).

Ray makes one object of the class in each of its workers, and gives it batch after batch. See `Continue`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specjax.errors import PromptError
from specjax.evaluation.prompts import prompt_of
from specjax.evaluation.rows import RowEvaluation

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


class Continue(RowEvaluation):
    """Continues the prompts of batches. The model is loaded once, when Ray makes a worker.

    A batch has the columns `prompt` (texts, or lists of token ids) and `id`, and may have columns with the names of
    options; see `RowEvaluation`. All columns are passed on, and those of `RESULTS` are added.
    """

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
        results = self.run(batch.to_pylist())
        table = batch.select(columns).take(pa.array([row for row, _ in results], pa.int64()))
        for name, kind in (RESULTS | (LOGPROBS if self.options.logprobs is not None else {})).items():
            values = [_cell(name, result.get(name)) for result in results.values()]
            table = table.append_column(name, [pa.array(values, _arrow_type(kind))])
        return table


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
