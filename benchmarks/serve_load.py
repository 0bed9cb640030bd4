"""Load on a server: many clients for some minutes, on the loopback only.

    python benchmarks/serve_load.py                        # 64 clients, five minutes, the bundled model
    python benchmarks/serve_load.py --clients 8 --seconds 20

Each kind of request is asked alone first. Under load every answer must be the one that it got alone; a difference is
looked at: where two logits tie, rounding that depends on the number of rows may decide. The memory of the server must
stay within 5 % from the time on when every kind has been asked (a fifth of the run). Exits with 1 if an answer was an
error, if one differs at more than a near-tie, or if memory grew.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from serve_clients import Answer, ask, percentile, specjax_server

import specjax
from specjax.analysis.divergence import find_divergence

PROMPTS = Path(__file__).parent / "prompts.jsonl"
GROWTH = 1.05


def kinds(prompts: list[str], most_drafts: int) -> list[dict[str, Any]]:
    """Requests of many kinds: greedy and drawn, by all rules, of many lengths and depths."""
    found: list[dict[str, Any]] = []
    for index, prompt in enumerate(prompts):
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": 16 + 24 * (index % 5), "seed": index}
        rule = ("rejection", "block", "coupled")[index % 3]
        found.append({**body, "temperature": 0, "draft": index % (most_drafts + 1)})
        found.append({**body, "temperature": 0.8, "accept": rule, "top_p": 0.95, "stop": ["\n\n\n"]})
    return found


def resident(process: subprocess.Popen[bytes]) -> int:
    """Bytes of memory that a process has."""
    fields = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in fields if line.startswith("VmRSS:"))


def near_tie(model: specjax.Model, body: dict[str, Any], here: str, there: str) -> bool:
    """Whether two greedy texts part where two logits tie."""
    if body["temperature"]:
        return False
    prompt, options = model.encode(body["prompt"]), specjax.GenerateOptions(max_tokens=body["max_tokens"])
    own = model.encode_further(here), model.encode_further(there)
    difference = find_divergence(model, prompt, options, *own)
    return difference is None or difference.near_tie


def main() -> int:
    """Put load on a server, print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model's file (default: the bundled model)")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seats", type=int, default=16)
    parser.add_argument("--slots", type=int, default=1024)
    parser.add_argument("--draft", type=int, default=3)
    parser.add_argument("--prefix-bytes", default="32M", help="memory for prompts that start alike; full soon if small")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSONL with a `prompt` per line")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    prompts = [json.loads(line)["prompt"] for line in args.prompts.read_text().splitlines() if line]
    bodies = kinds(prompts, args.draft)
    answers: list[Answer] = []
    different: list[tuple[dict[str, Any], str, str]] = []
    errors: Counter[str] = Counter()
    memory: list[int] = []
    model_option = [] if args.model is None else ["--model", args.model]
    arguments = [*model_option, "--seats", args.seats, "--slots", args.slots, "--draft", args.draft]
    arguments += ["--prefix-bytes", args.prefix_bytes]
    with (
        tempfile.TemporaryDirectory() as folder,
        specjax_server(Path(folder) / "server.log", *arguments, "--queue", 4 * args.clients) as (url, process),
    ):
        alone = [ask(url, body).text for body in bodies]
        print(f"{len(bodies)} kinds of requests have been asked alone; now {args.clients} clients", flush=True)
        end = time.monotonic() + args.seconds

        def client(number: int) -> None:
            rng = random.Random(number)
            while time.monotonic() < end:
                kind = rng.randrange(len(bodies))
                try:
                    answer = ask(url, bodies[kind])
                except Exception as error:  # whatever it is, it counts
                    errors[repr(error)[:200]] += 1
                    continue
                answers.append(answer)
                if answer.text != alone[kind]:
                    different.append((bodies[kind], alone[kind], answer.text))

        threads = [threading.Thread(target=client, args=(number,)) for number in range(args.clients)]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(min(1.0, args.seconds / 20))
            if time.monotonic() > begin + args.seconds / 5:
                memory.append(resident(process))
        took = time.monotonic() - begin
        status = process.poll()
        if errors or status is not None:
            print((Path(folder) / "server.log").read_text()[-5000:])
    ties = 0
    if different:
        model = specjax.load(args.model)
        ties = sum(near_tie(model, *each) for each in different)
    growth = max(memory) / memory[0] if memory else 1.0
    figures = {
        "clients": args.clients,
        "seconds": took,
        "requests": len(answers),
        "errors": dict(errors),
        "different": len(different),
        "near_ties": ties,
        "tokens_per_second": sum(answer.tokens for answer in answers) / took,
        "first_token_p50": percentile([answer.first for answer in answers], 0.5),
        "first_token_p95": percentile([answer.first for answer in answers], 0.95),
        "answer_p95": percentile([answer.last for answer in answers], 0.95),
        "memory_bytes": memory[0] if memory else 0,
        "memory_growth": growth,
    }
    for name, value in figures.items():
        print(f"{name:20} {value:.4g}" if isinstance(value, float) else f"{name:20} {value}")
    if args.out:
        args.out.write_text(json.dumps(figures, indent=1) + "\n")
    failed = errors or len(different) > ties or growth > GROWTH or status is not None or not answers
    print("FAILED" if failed else "all answers are those of requests alone; memory is flat")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
