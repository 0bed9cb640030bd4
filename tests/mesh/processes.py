"""Starting the processes of a job on this machine: two, with two devices each, which are parts of the CPU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROCESSES = 2
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


def start(command: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """The same command of Python in each process, with the options that say how to meet the others at its end."""
    coordinator, started = f"localhost:{free_port()}", []
    paths = (ROOT, Path(__file__).parent, Path(__file__).parents[1])
    environment = os.environ | {
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }
    for index in range(PROCESSES):
        options = ["--coordinator", coordinator, "--processes", str(PROCESSES), "--process", str(index)]
        started.append(
            subprocess.Popen(
                [sys.executable, *command, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    return started


def outputs(started: Sequence[subprocess.Popen[bytes]], seconds: float = 300) -> list[tuple[str, str]]:
    """What the processes have written to their standard outputs and errors, once all have ended well."""
    try:
        said = [tuple(each.decode() for each in process.communicate(timeout=seconds)) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * len(started), said
    return said  # type: ignore[return-value]
