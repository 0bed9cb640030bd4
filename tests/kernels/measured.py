"""What tests of measuring and of its memory share: a call, a choice for it, and processes that run pieces of code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pallas_kernels.choices import Choice
from pallas_kernels.measuring.timing import Effort

DIMS = {"rows": 64, "N": 256}
QUICK = Effort(copies=1, cache_bytes=1, seconds=0.01, runs=3)


def choice(number: int) -> Choice:
    dims = {"N": number}
    return Choice("good", dims, dims, ("fast", "usual"), {"fast": 1.0, "usual": 2.0}, {})


def process(code: str, *arguments: str, **settings: object) -> subprocess.Popen:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, text=True, **settings)
