"""Prompts of an Apache Beam pipeline: a handler for `RunInference` (the extra `beam`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from apache_beam.ml.inference.base import ModelHandler, PredictionResult

from specjax.evaluation.rows import RowEvaluation

Row = Mapping[str, Any]


class Continue(ModelHandler[Row, PredictionResult, RowEvaluation]):
    """Continues the prompts of a pipeline: `rows | RunInference(Continue("model.gguf"))`.

    An element is a mapping with `prompt` (a text, or a list of token ids), an `id` of its own, and perhaps options, as
    in a file of prompts; see `RowEvaluation`. Its `PredictionResult` has the element, and as `inference` a list with
    the result of each sample: plain data, see `specjax.evaluation.PromptResult`. Each worker process loads the model
    once.
    """

    def __init__(self, *args: Any, batch_size: int = 64, **kwargs: Any) -> None:
        """
        Args:
            batch_size: how many elements a worker is given at once; let it be several times `rows`.
            args, kwargs: those of `RowEvaluation`.
        """
        super().__init__(min_batch_size=1, max_batch_size=batch_size)
        self._args, self._kwargs = args, kwargs

    def load_model(self) -> RowEvaluation:
        """Called by Beam, once in each worker process.

        Raises:
            SpecjaxError: the model cannot be loaded.
        """
        return RowEvaluation(*self._args, **self._kwargs)

    def run_inference(
        self, batch: Sequence[Row], model: RowEvaluation, inference_args: Mapping[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Called by Beam for each batch.

        Raises:
            PromptError: an element is no prompt, or cannot be continued, and `keep_going` was not asked for.
        """
        results: dict[int, list[Mapping[str, Any]]] = {}
        for (row, _), result in model.run(batch).items():
            results.setdefault(row, []).append(result)
        return [PredictionResult(element, results[row]) for row, element in enumerate(batch)]
