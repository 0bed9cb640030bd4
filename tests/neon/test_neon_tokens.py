"""The bundled model on a processor with NEON, which is qemu: it says what it says on the machine that qemu runs on."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import pytest
from tokens import said

from pallas_kernels import native

pytestmark = pytest.mark.neon


def test_the_kernels_are_those_for_neon() -> None:
    assert platform.machine() == "aarch64"
    assert native.reason() is None
    assert native.instruction_set() == "neon"


def test_the_bundled_model_says_what_it_says_elsewhere() -> None:
    """The closest decision among these tokens has a margin of 0.01, so that rounding changes none."""
    assert said() == json.loads(Path(os.environ["TOKENS_ELSEWHERE"]).read_text())
