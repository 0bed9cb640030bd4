"""What serves which platform: plain XLA all of them, native kernels CPUs, kernels for accelerators when named."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import jax
import pytest
from small_model import write_small_model
from wants import alike

import pallas_kernels
import specjax
from pallas_kernels import explanation, native
from pallas_kernels.dispatch import Implementation, Operation
from pallas_kernels.table import ANYWHERE, TABLE
from specjax.decoding.loop import decode_chunk
from specjax.decoding.new_state import idle_state

PACKAGE = Path(pallas_kernels.__file__).parent
APPLE = ("METAL", "metal", "mps")
"""What jax-metal calls its platform, and what metaljax and jax-mps do."""


def operations() -> dict[str, Operation]:
    """Those that the folders of the package declare, by name."""
    modules = [module for name, module in sys.modules.items() if name.startswith("pallas_kernels.")]
    values = [value for module in modules for value in vars(module).values()]
    nested = [each for value in values if isinstance(value, dict) for each in value.values()]
    return {value.name: value for value in (*values, *nested) if isinstance(value, Operation)}


OPERATIONS = operations()


def test_the_table_is_what_the_folders_declare() -> None:
    assert OPERATIONS.keys() == TABLE.keys()
    assert explanation._EXPLAIN.keys() == TABLE.keys()


@pytest.mark.parametrize("operation", TABLE)
def test_every_operation_has_a_form_in_plain_xla_for_all_platforms_and_sizes(operation: str) -> None:
    always = Implementation("any", max).unfit
    general = [
        implementation
        for implementation in OPERATIONS[operation].implementations
        if implementation.name.startswith("xla_") and implementation.unfit is always
    ]
    assert frozenset().union(*(implementation.platforms for implementation in general)) >= {*ANYWHERE, *APPLE}


@pytest.mark.parametrize("operation", TABLE)
def test_kernels_for_accelerators_run_when_named_and_native_ones_on_cpus(operation: str) -> None:
    """Until they have been timed on a device, see docs/kernels.md."""
    for implementation in OPERATIONS[operation].implementations:
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
    decoder = stream.engine.decoder
    program = decode_chunk.lower(decoder, model.params, idle_state(decoder, alike(1), 64), 2).as_text()
    jax.clear_caches()
    return [
        name for name in re.findall(r"custom_call @([\w.]+)", program) if re.search("specjax_|triton|mosaic|tpu", name)
    ]


@pytest.mark.slow
def test_on_apple_a_model_is_plain_xla(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As far as can be seen without such a device: what is chosen there, run here."""
    path = write_small_model(tmp_path / "small.gguf")
    for platform in APPLE:
        assert kernels_of_a_round(path, platform, monkeypatch) == []
    if native.available():
        assert "specjax_attend" in kernels_of_a_round(path, "cpu", monkeypatch)
