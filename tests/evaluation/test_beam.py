"""Prompts of a pipeline of Apache Beam on two workers. `make test-beam` runs this."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from one_process import OPTIONS, ROWS, alone

from specjax.errors import PromptError

beam = pytest.importorskip("apache_beam", reason="the extra `beam` is not installed; make test-beam installs it")

from apache_beam.ml.inference.base import RunInference  # noqa: E402

from specjax.evaluation.beam import Continue  # noqa: E402

pytestmark = [pytest.mark.beam, pytest.mark.filterwarnings("default")]  # what Beam brings warns of much


def run(rows: list[dict], handler: Continue, out: Path) -> list[dict]:
    """Each element with its results, as the workers of a pipeline write them."""
    options = ["--runner=FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    with beam.Pipeline(argv=options) as pipeline:
        _ = (
            pipeline
            | beam.Create(rows)
            | RunInference(handler)
            | beam.Map(lambda done: json.dumps({"row": done.example, "results": done.inference}))
            | beam.io.WriteToText(str(out / "part"))
        )
    return [json.loads(line) for part in sorted(out.glob("part*")) for line in part.read_text().splitlines()]


def test_two_workers_say_what_one_process_says(tmp_path: Path) -> None:
    done = run(ROWS, Continue(None, OPTIONS, rows=2, samples=2, batch_size=3), tmp_path)
    want = alone(ROWS, OPTIONS, samples=2)
    assert Counter(each["row"]["id"] for each in done) == Counter(row["id"] for row in ROWS)
    for each in done:
        assert each["row"] in ROWS, "other keys are passed on"
        assert [result["sample"] for result in each["results"]] == [0, 1]
        for result in each["results"]:
            alike = want[each["row"]["id"], result["sample"]]
            assert (result["tokens"], result["text"], result["seed"]) == (alike.tokens, alike.text, alike.seed)
            assert result["logprobs"] == pytest.approx(alike.logprobs, abs=1e-4)


def test_elements_that_are_no_prompts() -> None:
    handler = Continue(None, OPTIONS, keep_going=True)
    model = handler.load_model()
    with pytest.raises(PromptError, match="row 1 of a batch has no id"):
        handler.run_inference([{"id": 1, "prompt": "a"}, {"prompt": "b"}], model)
    fine, empty = handler.run_inference([{"id": 1, "prompt": "a"}, {"id": 2, "prompt": []}], model)
    assert fine.inference[0]["finish_reason"] == "length"
    assert "row with the id 2" in empty.inference[0]["error"]
