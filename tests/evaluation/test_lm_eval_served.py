"""The harness asks a server, as any API of OpenAI's form, and has the figures that it has with transformers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_lm_eval import FIXTURES, MAX_LENGTHS, MODELS, TASKS, check_figures

pytestmark = pytest.mark.harness


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    sys.path.insert(0, str(FIXTURES.parent / "serving"))
    try:
        from running import serving
    finally:
        sys.path.pop(0)
    import specjax
    from specjax.serving.app import Access
    from specjax.serving.service import Settings

    model = specjax.load(FIXTURES / MODELS["llama"], drafter="ngram", need_tokenizer=True)
    settings = Settings("llama", specjax.GenerateOptions(draft=2), seats=4, slots=1024)
    with serving(model, settings, Access()) as running:
        yield f"{running.url}/v1/completions"


@pytest.mark.parametrize("task", MAX_LENGTHS)
def test_the_harness_asks_a_server(task: str, url: str, tmp_path: Path) -> None:
    """`--model local-completions`. It takes a token off `max_length`, and another one where it computes windows."""
    length = MAX_LENGTHS[task] + (2 if task == "tiny_text" else 1)
    settings = {
        "model": "llama",
        "base_url": url,
        "tokenizer": FIXTURES / MODELS["llama"],
        "num_concurrent": 2,
        "tokenized_requests": True,
        "max_length": length,
        "max_retries": 1,
        "seed": 0,
    }
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--tasks", task]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in settings.items())]
    command += ["--include_path", ".", "--output_path", str(tmp_path)]
    environment = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    ran = subprocess.run(command, cwd=TASKS, env={**os.environ, **environment}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    check_figures(tmp_path, task)
