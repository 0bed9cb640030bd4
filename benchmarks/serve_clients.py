"""A server and its clients, for the benchmarks of serving: one process each way, all on the loopback."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_cpp import free_port

START_SECONDS = 1800
"""How long a server may take to load and to compile."""


@dataclass(frozen=True)
class Answer:
    """A streamed answer.

    Attributes:
        text: all of it.
        tokens: how many it has, as the server says.
        first, last: seconds until its first piece and its end, counted from the request.
        usage: what else the server says.
    """

    text: str
    tokens: int
    first: float
    last: float
    usage: Mapping[str, Any]


def ask(url: str, body: Mapping[str, Any]) -> Answer:
    """Ask for a completion as a stream."""
    whole = {**body, "stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(whole).encode(), {"Content-Type": "application/json"}
    )
    begin, first, text, usage = time.perf_counter(), 0.0, [], {}
    with urllib.request.urlopen(request, timeout=600) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            for choice in event.get("choices", ()):
                if choice["text"] and not first:
                    first = time.perf_counter() - begin
                text.append(choice["text"])
            usage = event.get("usage") or usage
    last = time.perf_counter() - begin
    return Answer("".join(text), usage.get("completion_tokens", 0), first or last, last, usage)


@contextmanager
def running_process(command: Sequence[object], port: int, log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a server while inside; yields its address and its process once it is healthy."""
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as output:
        process = subprocess.Popen([*map(str, command)], stdout=output, stderr=subprocess.STDOUT)
        try:
            end = time.monotonic() + START_SECONDS
            while True:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{command[0]} did not start:\n{log.read_text()[-3000:]}")
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=5)
                    break
                except (urllib.error.URLError, OSError):
                    time.sleep(0.2)
            yield url, process
        finally:
            process.terminate()
            process.wait()


@contextmanager
def specjax_server(log: Path, *arguments: object) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`specjax serve` with these arguments on a free port, as `running_process`."""
    port = free_port()
    command = [sys.executable, "-m", "specjax", "serve", "--port", port, *arguments]
    with running_process(command, port, log) as running:
        yield running


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the values lies."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
