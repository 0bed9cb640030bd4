"""--kernels chooses the implementations that a command computes with."""

from __future__ import annotations

import re
from pathlib import Path

from program import Cli

RUN = ("generate", "--tokens", "1,2,3", "--max-tokens", "4", "--ignore-eos")


def test_the_choice_reaches_the_kernels(cli: Cli, gguf: Path) -> None:
    refused = cli(*RUN, "--model", gguf, "--kernels", "verify_attention=xla_floats", "--kv-type-k", "q8_0")
    assert refused.status == 2
    assert re.search("xla_floats +passed over: q8_0 is no float type", refused.err)


def test_an_unknown_kernel_is_named(cli: Cli, gguf: Path) -> None:
    error = cli(*RUN, "--model", gguf, "--kernels", "quant_matmul=cuda").error
    assert "quant_matmul has no implementation 'cuda'; known: cpu_native, " in error
