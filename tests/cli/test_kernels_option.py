"""--kernels chooses the implementations that a command computes with."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from program import Cli

from pallas_kernels import native
from specjax.cli.main import main

RUN = ("generate", "--tokens", "1,2,3", "--max-tokens", "4", "--ignore-eos")


def test_the_choice_reaches_the_kernels(cli: Cli, gguf: Path) -> None:
    refused = cli(*RUN, "--model", gguf, "--kernels", "cache_attention=xla_floats", "--kv-type-k", "q8_0")
    assert refused.status == 2
    assert re.search("xla_floats +passed over: q8_0 is no float type", refused.err)


def test_an_unknown_kernel_is_named(cli: Cli, gguf: Path) -> None:
    error = cli(*RUN, "--model", gguf, "--kernels", "matmul.packed=cuda").error
    assert "matmul.packed has no implementation 'cuda'; known: cpu_native, " in error


def test_a_wrong_variable_is_not_blamed_on_the_file(gguf: Path) -> None:
    """In a process of its own, where nothing has been traced before."""
    wrong = {
        "matmul.packed=cuda": "matmul.packed has no implementation 'cuda'; known: ",
        "fast": "'fast' is not understood; accepted: auto, xla, measure, or OPERATION=IMPL,...",
    }
    program = f"""
import os, sys
from specjax.cli.main import main
model = sys.argv[1]
for spec in {list(wrong)}:
    os.environ["SPECJAX_KERNELS"] = spec
    print(spec, main(["inspect", model, "--json"]), main([*{RUN}, "--model", model]), flush=True)
"""
    ran = subprocess.run([sys.executable, "-c", program, str(gguf)], capture_output=True, text=True, check=True)
    assert [line for line in ran.stdout.splitlines() if line[0] not in " {}"] == [f"{spec} 0 2" for spec in wrong]
    for line, (spec, message) in zip(ran.stderr.splitlines(), wrong.items(), strict=True):
        assert line.startswith(f"specjax: error: SPECJAX_KERNELS={spec}: {message}")


SLOW = "quantized weights are decoded anew for every product, which is slow: "


@pytest.fixture(scope="module")
def quantized(shallow: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of one layer with matrices that stay packed."""
    path = tmp_path_factory.mktemp("quantized") / "small.gguf"
    assert main(["quantize", str(shallow), str(path), "--type", "Q8_0"]) == 0
    return path


@pytest.fixture
def said(cli: Cli, tmp_path: Path) -> Callable[..., list[str]]:
    """What a command says of slow products."""

    def run(*options: object) -> list[str]:
        ran = cli("logits", "--tokens", "1,2,3", "--out", tmp_path / "logits.npy", "--model", *options)
        assert ran.status == 0
        return [line.split(SLOW)[1] for line in ran.err.splitlines() if SLOW in line]

    return run


@pytest.mark.skipif(not native.available(), reason="there are no native kernels on this machine")
def test_products_without_kernels_are_said_to_be_slow(
    said: Callable[..., list[str]], shallow: Path, quantized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kernels in ("xla", "matmul.packed=xla_dequant"):
        why = f"--kernels {kernels} leaves no other way (--packed off: once)"
        assert said(quantized, "--kernels", kernels) == [why]
    assert said(quantized) == said(shallow, "--kernels", "xla") == []
    assert said(quantized, "--kernels", "xla", "--packed", "off") == []
    monkeypatch.setenv("SPECJAX_KERNELS", "xla")
    assert said(quantized) == ["SPECJAX_KERNELS=xla leaves no other way (--packed off: once)"]


def test_a_machine_without_native_kernels_says_what_is_missing(
    said: Callable[..., list[str]], quantized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "reason", lambda: "there is no library")
    assert said(quantized) == ["there is no library (--packed off: once)"]
