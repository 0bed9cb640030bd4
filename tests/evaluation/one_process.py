"""Prompts as rows of a data set, and what one process says of them."""

from __future__ import annotations

from typing import Any

import specjax
from specjax.evaluation import Evaluation, samples_of
from specjax.evaluation.prompts import prompt_of

OPTIONS = specjax.GenerateOptions(max_tokens=12, temperature=0.8, seed=3, draft=2, logprobs=1)
ROWS: list[dict[str, Any]] = [
    {"id": number, "prompt": text, "max_tokens": 5 if number % 4 == 0 else None, "topic": f"t{number}"}
    for number, text in enumerate(["def f(", "class A:", "import os", "x = ", "for i in", "return", "# "])
]


def alone(rows: list[dict[str, Any]], options: specjax.GenerateOptions, samples: int = 1) -> dict[tuple, Any]:
    """What one process says of the same prompts."""
    lines = [
        prompt_of({key: value for key, value in row.items() if value is not None}, index, "here")
        for index, row in enumerate(rows)
    ]
    model = specjax.load()
    run = Evaluation(model, samples_of(lines, options, samples), options, rows=3).run()
    return {(result.id, result.sample): result for result in run}
