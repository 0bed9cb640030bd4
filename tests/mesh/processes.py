"""Starting the processes of a job on this machine: two, with two devices each, which are parts of the CPU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROCESSES = 2
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


@contextmanager
def running(
    command: Sequence[str], *, slurm: bool = False, last: Mapping[str, str] | None = None
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The same command of Python in each process; what is left of them at the end is killed.

    How to meet the others is said by options at the command's end, or as SLURM says it. The last process has further
    variables in its environment.
    """
    port = free_port()
    environment = os.environ | {
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, Path(__file__).parent, Path(__file__).parents[1]))),
    }
    with ExitStack() as stack:
        started: list[subprocess.Popen[bytes]] = []
        for index in range(PROCESSES):
            options = ["--coordinator", f"localhost:{port}", "--processes", str(PROCESSES), "--process", str(index)]
            step = {"JOB_ID": "1", "STEP_NODELIST": "localhost", "NTASKS": str(PROCESSES)}
            step |= {"PROCID": str(index), "LOCALID": str(index)}
            told = {f"SLURM_{name}": value for name, value in step.items()} | {"JAX_COORDINATOR_PORT": str(port)}
            process = subprocess.Popen(
                [sys.executable, *command, *(["--coordinator", "auto"] if slurm else options)],
                env=environment | (told if slurm else {}) | ((last or {}) if index == PROCESSES - 1 else {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            started.append(stack.enter_context(process))
            stack.callback(process.kill)
        yield started


def outputs(command: Sequence[str], *, slurm: bool = False, seconds: float = 300) -> list[tuple[str, str]]:
    """What the processes of a command have written to their standard outputs and errors, once all have ended well."""
    with running(command, slurm=slurm) as started:
        pairs = [process.communicate(timeout=seconds) for process in started]
    said = [(out.decode(), errors.decode()) for out, errors in pairs]
    assert [process.returncode for process in started] == [0] * len(started), said
    return said
