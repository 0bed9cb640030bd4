"""An engine's programs are measured before they are built: all that they call, once, and where it is asked for."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import jax
import pytest
from tiny_models import DENSE, make_params

from pallas_kernels import memory, using
from pallas_kernels.choices import key_of
from pallas_kernels.measuring import measure
from pallas_kernels.measuring.timing import Effort
from pallas_kernels.recording import recording
from specjax.decoding.decoder import Decoder
from specjax.decoding.settings import DraftConfig, Settings
from specjax.models.qwen3_5 import Qwen35MTP, Qwen35Target
from specjax.runtime.engine import Engine
from specjax.runtime.kernels import calls_of
from specjax.runtime.notices import listener
from specjax.runtime.request import Request

DECODER = Decoder(Qwen35Target(DENSE), Qwen35MTP(DENSE), "greedy", 1)
PLAIN = Decoder(Qwen35Target(DENSE), None, "greedy", 0)  # fewer programs, where it does not matter what they are
QUICK = Effort(copies=1, cache_bytes=1, seconds=0, runs=1)


@pytest.fixture
def params() -> dict:
    return make_params(DENSE)


def run(engine: Engine) -> list[int]:
    job = engine.submit(Request(tuple(range(1, 20)), 6, Settings(draft=DraftConfig(n_max=engine.decoder.max_drafts))))
    for _ in engine.run():
        pass
    return job.tokens


def test_all_that_programs_call_is_known_before_they_run(params: dict) -> None:
    """What is missing would be chosen by the table, whatever is measured."""
    before = {key_of(*call) for call in calls_of(DECODER, params, seats=2, slots=64)}
    with recording() as made:
        run(Engine(DECODER, params, seats=2, slots=64))
    assert made.made
    assert {key_of(*call) for call in made.made} <= before


def test_on_a_cpu_nothing_is_measured_unless_it_is_asked_for(
    params: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path))
    said: list[str] = []
    token = listener.set(lambda line: said.append(line) if "kinds of calls" in line else None)
    # As it is, but for the time: what is left over is measured another time.
    monkeypatch.setattr("specjax.runtime.kernels.measure", partial(measure, effort=QUICK, budget=1))
    try:
        engine = Engine(PLAIN, params, seats=2, slots=64)
        assert not engine.experience.measured
        before = run(engine)
        with using("xla"):
            Engine(PLAIN, params, seats=2, slots=64, experience=engine.experience)
        assert not said
        with using("measure"):
            Engine(PLAIN, params, seats=2, slots=64, experience=engine.experience)
            found = dict(memory.remembered())
            assert found
            assert found.keys() <= engine.experience.measured
            first, last, rest = said
            assert first.startswith(f"measuring kernels for {len(engine.experience.measured)} kinds of calls;")
            assert f"measured kernels for {len(found)} kinds of calls in " in last
            assert last.endswith(f" s; kept in {memory.file()}")
            assert f"{len(engine.experience.measured) - len(found)} kinds of calls were not measured" in rest
            Engine(PLAIN, params, seats=2, slots=64, experience=engine.experience)
            assert len(said) == 3, "a second engine of the model measures nothing"
        assert run(Engine(PLAIN, params, seats=2, slots=64)) == before
        assert len(said) == 3
    finally:
        listener.reset(token)


def test_what_is_named_is_not_measured(params: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setenv("SPECJAX_CACHE", "/nowhere")
    monkeypatch.setattr("specjax.runtime.kernels.worth_measuring", lambda calls, anew: asked.extend(calls) or [])
    with using("matmul.float=xla_dot", platform="cpu"):
        Engine(PLAIN, params, seats=1, slots=32)
    operations = {operation for operation, _ in asked}
    assert "matmul.float" not in operations
    assert "cache_attention" in operations
