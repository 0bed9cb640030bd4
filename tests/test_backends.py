"""What serves which platform: plain XLA all of them, native kernels CPUs, kernels for accelerators when named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import jax
import pytest
from small_model import write_small_model

import specjax
from pallas_kernels import native, operations
from pallas_kernels.dispatch import ANYWHERE, Implementation
from specjax.decoding.loop import decode_chunk

PACKAGE = Path(operations.__file__).parent
TABLES = operations.tables()
APPLE = ("METAL", "mps")
"""What jax-metal calls its platform, and its successor."""


@pytest.mark.parametrize("operation", TABLES)
def test_every_operation_has_a_form_in_plain_xla_for_all_platforms_and_sizes(operation: str) -> None:
    always = Implementation("any", max).unfit
    general = [
        implementation
        for implementation in TABLES[operation]
        if implementation.name.startswith("xla_") and implementation.unfit is always
    ]
    assert frozenset().union(*(implementation.platforms for implementation in general)) >= {*ANYWHERE, *APPLE}


@pytest.mark.parametrize("operation", TABLES)
def test_kernels_for_accelerators_run_when_named_and_native_ones_on_cpus(operation: str) -> None:
    """Until they have been timed on a device, see the README."""
    for implementation in TABLES[operation]:
        if re.match("pallas|triton|reference", implementation.name):
            assert not implementation.platforms
        if implementation.name == "cpu_native":
            assert implementation.platforms == {"cpu"}


def test_nothing_is_built_on_the_deprecated_lowering_of_pallas_to_triton() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            assert not any("pallas.triton" in f"{module}.{name}" for name in names), path


def kernels_of_a_round(path: Path, platform: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a round would call besides XLA's own operations, by the choices that are made on a platform."""
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    jax.clear_caches()
    model = specjax.load(path)
    stream = model.stream("def f(", draft=2, max_tokens=12, ignore_eos=True, kv_type_k="q8_0", kv_type_v="turbo3")
    state, _ = stream.batch.start()
    program = decode_chunk.lower(stream.batch.decoder, model.params, state, 2).as_text()
    jax.clear_caches()
    return [
        name for name in re.findall(r"custom_call @([\w.]+)", program) if re.search("specjax_|triton|mosaic|tpu", name)
    ]


def test_on_apple_a_model_is_plain_xla(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As far as can be seen without such a device: what is chosen there, run here."""
    path = write_small_model(tmp_path / "small.gguf")
    for platform in APPLE:
        assert kernels_of_a_round(path, platform, monkeypatch) == []
    if native.available():
        assert "specjax_attend" in kernels_of_a_round(path, "cpu", monkeypatch)
