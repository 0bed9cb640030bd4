"""The same GGUF in llama.cpp's server and here: equal tokens, equal numbers of accepted drafts?

The model is rewritten as F32 and both programs decode greedily with float32 KV caches, so that what differs is
rounding alone. Every divergence is reported with the margin between the two candidates' logits; an answer that lacks
tokens diverges where it ends, without a margin. After a divergence the texts differ, so drafts are counted only over
prompts whose tokens are all equal. The server's `ignore_eos` forbids the end-of-text token where ours merely goes on
after it: a text that ends early is compared up to its end.

    python benchmarks/llama_cpp.py --server path/to/llama-server

Needs a `llama-server` of llama.cpp that knows `--spec-type draft-mtp`.
"""

from __future__ import annotations

import argparse
import json
import math
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import checkpoints
import specjax
from specjax.analysis.divergence import find_divergence
from specjax.models.registry import FAMILIES
from specjax.runtime.loading import bundled_model

PROMPTS = Path(__file__).parent / "prompts.jsonl"
START_SECONDS = 120


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """POST JSON, get JSON."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)


@contextmanager
def running_server(server: str, model: Path, drafts: int, threads: int, log: Path) -> Iterator[str]:
    """Start llama-server on a free port; yields its address and stops it afterwards."""
    port = free_port()
    command = [
        *(server, "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-c", "1024", "-np", "1"),
        *("-t", str(threads), "-fa", "off", "-ctk", "f32", "-ctv", "f32", "-ctkd", "f32", "-ctvd", "f32"),
        *("--temp", "0", "--no-warmup", "--fit", "off"),
        *(("--spec-type", "draft-mtp", "--spec-draft-n-max", str(drafts)) if drafts else ()),
    ]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(START_SECONDS * 5):
                if process.poll() is not None:
                    raise SystemExit(f"llama-server ended with {process.returncode}:\n{log.read_text()[-3000:]}")
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=5)
                    break
                except (urllib.error.URLError, OSError):
                    time.sleep(0.2)
            else:
                raise SystemExit(f"llama-server did not start within {START_SECONDS} s:\n{log.read_text()[-3000:]}")
            yield url
        finally:
            process.terminate()
            process.wait()


def complete(url: str, prompt: list[int], max_tokens: int, **settings: Any) -> dict[str, Any]:
    """Greedy completion of token ids by the server; `settings` are more of the endpoint's own."""
    return post(
        f"{url}/completion",
        {
            "prompt": prompt,
            "n_predict": max_tokens,
            "temperature": 0,
            "top_k": 1,
            "return_tokens": True,
            "cache_prompt": False,
            "ignore_eos": True,
            **settings,
        },
    )


def compared(
    model: specjax.Model, options: specjax.GenerateOptions, mine: specjax.Generation, theirs: list[int]
) -> dict[str, Any]:
    """Where the tokens part, if they do: at a difference, or where one answer is shorter than the other."""
    assert model.tokenizer is not None
    divergence = find_divergence(model, mine.prompt_tokens, options, mine.tokens, theirs)
    if divergence is None:
        return {"diverges_at": None, "ended": False, "margin": None}
    return {
        "diverges_at": divergence.position,
        "ended": divergence.tokens[0] in model.tokenizer.eos_ids,
        "margin": divergence.margin if math.isfinite(divergence.margin) else None,
    }


def main() -> int:
    """Compare, print a table, and exit with 1 if tokens differ at more than a near-tie."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="llama-server of llama.cpp")
    parser.add_argument("--model", default=None, help="GGUF file (default: the bundled model)")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSONL with a `prompt` per line")
    parser.add_argument("--draft", type=int, default=3, help="draft tokens per round")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--near-tie", type=float, default=1e-3, help="logit margin up to which a divergence is a tie")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()

    source = bundled_model() if args.model is None else Path(args.model)
    model = specjax.load(source)
    prompts = [json.loads(line)["prompt"] for line in args.prompts.read_text().splitlines() if line]
    options = specjax.GenerateOptions(max_tokens=args.max_tokens, draft=args.draft, ignore_eos=True)
    ours = [model.generate(prompt, options) for prompt in prompts]

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        f32 = Path(folder) / "model-f32.gguf"
        checkpoints.write_gguf(f32, FAMILIES, model.config, model.params, model.tokenizer)
        with running_server(args.server, f32, args.draft, args.threads, Path(folder) / "server.log") as url:
            for index, mine in enumerate(ours):
                answer = complete(url, mine.prompt_tokens, args.max_tokens)
                theirs, timings = answer.get("tokens", []), answer["timings"]
                rows.append(
                    {
                        "prompt": index,
                        "tokens": len(theirs),
                        **compared(model, options, mine, theirs),
                        "drafted": [mine.stats.drafted, timings.get("draft_n", 0)],
                        "accepted": [mine.stats.accepted, timings.get("draft_n_accepted", 0)],
                        "tokens_per_second": [mine.tokens_per_second, timings["predicted_per_second"]],
                    }
                )

    print(f"{source.name}, greedy, K = {args.draft}, {args.max_tokens} tokens; ours / llama.cpp")
    print(f"{'prompt':>6} {'equal':>8} {'margin':>9} {'drafted':>11} {'accepted':>11}")
    for row in rows:
        equal = "all" if row["diverges_at"] is None else str(row["diverges_at"])
        margin = "" if row["margin"] is None else f"{row['margin']:.2e}"
        if row["ended"]:
            equal, margin = f"{row['diverges_at']}, end", ""
        drafted, accepted = ("{} / {}".format(*row[key]) for key in ("drafted", "accepted"))
        print(f"{row['prompt']:>6} {equal:>8} {margin:>9} {drafted:>11} {accepted:>11}")
    same = [row for row in rows if row["diverges_at"] is None]
    mine, theirs = (sum(row["accepted"][side] for row in same) for side in (0, 1))
    difference = abs(mine - theirs) / max(theirs, 1)
    ended = sum(row["ended"] for row in rows)
    print(
        f"{len(same) + ended} of {len(rows)} prompts equal ({ended} up to the end of the text); accepted drafts of the"
        f" {len(same)} whole ones {mine} / {theirs} ({difference:.1%} apart)"
    )
    if args.out:
        args.out.write_text(json.dumps({"model": source.name, "draft": args.draft, "rows": rows}, indent=1) + "\n")
    apart = [row for row in rows if row["diverges_at"] is not None and not row["ended"]]
    unexplained = [row for row in apart if row["margin"] is None or row["margin"] > args.near_tie]
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
