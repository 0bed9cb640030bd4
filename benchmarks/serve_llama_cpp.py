"""This server and llama.cpp's on the same file: tokens a second of 16 clients, and the time until the first token.

The engine without a server, to which all requests are given at once, is the limit: it has no clients to wait for.

    python benchmarks/serve_llama_cpp.py --server path/to/llama-server --model model.gguf

All get the same prompts as token ids, decode greedily, and go on after the end of text, with and without drafts of the
model's MTP head. Each turn has prompts of its own, which begin differently, so that nobody can take anything from what
came before; with `--again` it has the same ones, which both servers keep. They take turns, because the speed of
machines drifts: what counts are ratios within a run. Needs a `llama-server` of llama.cpp that knows
`--spec-type draft-mtp`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from llama_cpp import free_port
from machine import description
from serve_clients import ask, percentile, running_process, specjax_server

import specjax
from specjax.runtime.engine import Engine
from specjax.runtime.loading import bundled_model
from specjax.runtime.request import Job

PROMPTS = Path(__file__).parent / "prompts.jsonl"
PREFIX_BYTES = 2**28
"""What the server keeps of prompts unless it is told otherwise."""

Figures = dict[str, float]


def measure(url: str, prompts: list[list[int]], clients: int, max_tokens: int) -> Figures:
    """All prompts by so many clients: tokens a second, and the seconds until first tokens."""

    def one(prompt: list[int]) -> Any:
        return ask(url, {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True})

    with ThreadPoolExecutor(clients) as pool:
        begin = time.perf_counter()
        answers = [*pool.map(one, prompts)]
        took = time.perf_counter() - begin
    return _figures(sum(answer.tokens for answer in answers), took, [answer.first for answer in answers])


def _figures(tokens: int, seconds: float, firsts: list[float]) -> Figures:
    return {
        "tokens_per_second": tokens / seconds,
        "first_token_p50": percentile(firsts, 0.5),
        "first_token_p95": percentile(firsts, 0.95),
    }


def measure_engine(
    model: specjax.Model, engine: Engine, options: specjax.GenerateOptions, prompts: list[list[int]]
) -> Figures:
    """The same of an engine that is given all requests at once; first tokens are those of the first in its seats."""
    requests = [model.request(prompt, options) for prompt in prompts]
    begin, tokens = time.perf_counter(), 0
    jobs = [engine.submit(request) for request in requests]
    firsts: dict[Job, float] = {}
    while not engine.idle:
        for update in engine.step(live=True):
            tokens += len(update.tokens)
            if update.tokens:
                firsts.setdefault(update.job, time.perf_counter() - begin)
    return _figures(tokens, time.perf_counter() - begin, [firsts[job] for job in jobs[: engine.seats]])


@contextmanager
def our_server(log: Path, model: Path, draft: int | str, args: argparse.Namespace) -> Iterator[str]:
    """A server of this project while inside; yields its address."""
    options = ("--seats", args.clients, "--slots", args.slots, "--draft", draft, "--packed", args.packed)
    with specjax_server(log, "--model", model, *options) as (url, _):
        yield url


@contextmanager
def their_server(log: Path, model: Path, draft: int, args: argparse.Namespace) -> Iterator[str]:
    """llama.cpp's."""
    port = free_port()
    command = [
        *(args.server, "-m", model, "--host", "127.0.0.1", "--port", port, "-np", args.clients),
        *("-c", args.clients * args.slots, "-t", args.threads, "--no-warmup", "--fit", "off"),
        *(("--spec-type", "draft-mtp", "--spec-draft-n-max", draft) if draft else ()),
    ]
    with running_process(command, port, log) as (url, _):
        yield url


def main() -> int:
    """Measure both servers and the engine in turns, print figures and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="llama-server of llama.cpp")
    parser.add_argument("--model", type=Path, default=None, help="GGUF file (default: the bundled model)")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--slots", type=int, default=1024, help="tokens of a seat")
    parser.add_argument("--draft", type=int, default=3, help="K; besides, both decode plainly, and ours also with auto")
    parser.add_argument("--packed", default="a16", help="a8 rounds activations as llama.cpp does")
    parser.add_argument("--again", action="store_true", help="the same prompts in every turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    path = args.model or bundled_model()
    model = specjax.load(path, packed=args.packed)
    texts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines() if line]

    def prompts_of(turn: int) -> list[list[int]]:
        numbers = range(args.requests) if args.again else range(turn * args.requests, (turn + 1) * args.requests)
        return [model.encode(f"{number}: {texts[number % len(texts)]}") for number in numbers]

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        runs: dict[str, Callable[[list[list[int]]], Figures]] = {}
        for draft in (0, args.draft, "auto"):
            url = stack.enter_context(our_server(Path(folder) / f"{draft}.log", path, draft, args))
            runs[f"specjax {draft}"] = partial(measure, url, clients=args.clients, max_tokens=args.max_tokens)
        for draft in (0, args.draft):
            url = stack.enter_context(their_server(Path(folder) / f"their{draft}.log", path, draft, args))
            runs[f"llama.cpp {draft}"] = partial(measure, url, clients=args.clients, max_tokens=args.max_tokens)
            options = specjax.GenerateOptions(max_tokens=args.max_tokens, draft=draft, ignore_eos=True)
            engine = model.engine([options], seats=args.clients, slots=args.slots, prefix_bytes=PREFIX_BYTES)
            runs[f"engine {draft}"] = partial(measure_engine, model, engine, options)
        for run in runs.values():
            run(prompts_of(0))  # what is built at first use is not timed
        figures: dict[str, list[Figures]] = {name: [] for name in runs}
        for turn in range(1, args.turns + 1):
            for name, run in sorted(runs.items(), reverse=not turn % 2):
                figures[name].append(run(prompts_of(turn)))
                print(f"{name}: {figures[name][-1]}", flush=True)
    medians = {
        name: {figure: median(each[figure] for each in rows) for figure in rows[0]} for name, rows in figures.items()
    }
    print(f"\n{description()}, {args.clients} clients, {path.name}, --packed {args.packed}")
    print(f"{'drafts':16} {'tokens/s':>10} {'of llama.cpp':>14} {'first p50':>10} {'first p95':>10}")
    for name, found in medians.items():
        theirs = medians[f"llama.cpp {0 if name.endswith(' 0') else args.draft}"]
        ratio = found["tokens_per_second"] / theirs["tokens_per_second"]
        seconds = " ".join(f"{found[each]:9.3f}s" for each in ("first_token_p50", "first_token_p95"))
        print(f"{name:16} {found['tokens_per_second']:10.1f} {ratio:14.2f} {seconds}")
    if args.out:
        args.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
