"""This server and llama.cpp's on the same file: tokens a second of 16 clients, and the time until the first token.

The engine without a server, to which all requests are given at once, is the limit: it has no clients to wait for.

    python benchmarks/serve_llama_cpp.py --server path/to/llama-server --model model.gguf

Both get the same prompts as token ids, decode greedily, and go on after the end of text, with and without drafts of the
model's MTP head. They take turns, because the speed of machines drifts: what counts are ratios within a run. Needs a
`llama-server` of llama.cpp that knows `--spec-type draft-mtp`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from llama_cpp import free_port
from serve_clients import ask, percentile, running_process, specjax_server

import specjax
from specjax.runtime.engine import Engine
from specjax.runtime.loading import bundled_model
from specjax.runtime.request import Job, Request

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


def measure_engine(engine: Engine, requests: list[Request]) -> Figures:
    """The same of an engine that is given all requests at once; first tokens are those of the first in its seats."""
    begin, tokens = time.perf_counter(), 0
    jobs = [engine.submit(request) for request in requests]
    firsts: dict[Job, float] = {}
    while not engine.idle:
        for update in engine.step():
            tokens += len(update.tokens)
            if update.tokens:
                firsts.setdefault(update.job, time.perf_counter() - begin)
    return _figures(tokens, time.perf_counter() - begin, [firsts[job] for job in jobs[: engine.seats]])


def main() -> int:
    """Measure both servers and the engine in turns, print figures and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="llama-server of llama.cpp")
    parser.add_argument("--model", type=Path, default=None, help="GGUF file (default: the bundled model)")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--slots", type=int, default=1024, help="tokens of a seat")
    parser.add_argument("--draft", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    path = args.model or bundled_model()
    model = specjax.load(path)
    texts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines() if line]
    prompts = [model.encode(texts[index % len(texts)]) for index in range(args.requests)]
    figures: dict[str, list[dict[str, float]]] = {}
    for draft in (0, args.draft):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            port, seats = free_port(), args.clients
            theirs = [
                *(args.server, "-m", path, "--host", "127.0.0.1", "--port", port, "-np", seats),
                *("-c", seats * args.slots, "-t", args.threads, "--no-warmup", "--fit", "off"),
                *(("--spec-type", "draft-mtp", "--spec-draft-n-max", draft) if draft else ()),
            ]
            log = Path(folder)
            urls = {
                "specjax": stack.enter_context(
                    specjax_server(
                        log / "ours.log", "--model", path, "--seats", seats, "--slots", args.slots, "--draft", draft
                    )
                )[0],
                "llama.cpp": stack.enter_context(running_process(theirs, port, log / "theirs.log"))[0],
            }
            options = specjax.GenerateOptions(max_tokens=args.max_tokens, draft=draft, ignore_eos=True)
            requests = [model.request(prompt, options) for prompt in prompts]
            engine = model.engine([options], seats=seats, slots=args.slots, prefix_bytes=PREFIX_BYTES)
            runs: dict[str, Callable[[], Figures]] = {
                name: partial(measure, url, prompts, args.clients, args.max_tokens) for name, url in urls.items()
            }
            runs["engine"] = partial(measure_engine, engine, requests)
            for run in runs.values():
                run()  # what is built at first use is not timed
            for turn in range(args.turns):
                for name, run in sorted(runs.items(), reverse=bool(turn % 2)):
                    found = run()
                    figures.setdefault(f"{name} draft={draft}", []).append(found)
                    print(f"{name} draft={draft}: {found}", flush=True)
    medians = {
        name: {figure: median(each[figure] for each in rows) for figure in rows[0]} for name, rows in figures.items()
    }
    print(f"\n{'':22} {'tokens/s':>10} {'first p50':>10} {'first p95':>10}")
    for name, found in medians.items():
        seconds = " ".join(f"{found[each]:9.3f}s" for each in ("first_token_p50", "first_token_p95"))
        print(f"{name:22} {found['tokens_per_second']:10.1f} {seconds}")
    for draft in (0, args.draft):
        ours = medians[f"specjax draft={draft}"]["tokens_per_second"]
        for name, what in (("llama.cpp", "llama.cpp's speed"), ("engine", "the engine's")):
            print(f"draft={draft}: {ours / medians[f'{name} draft={draft}']['tokens_per_second']:.2f} times {what}")
    if args.out:
        args.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
