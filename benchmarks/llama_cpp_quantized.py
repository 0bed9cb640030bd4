"""Quantized files in llama.cpp and here: the same predictions, the same tokens, the same perplexity?

The model is rewritten as F32, quantized by llama-quantize and by `specjax quantize` to each type or mix, and

* llama-server continues prompts greedily from llama-quantize's file, and so does specjax, activations rounded to 8 and
  to 16 bits. Both keep float32 caches. Along llama.cpp's tokens all programs are held against products with decoded
  matrices, of which nothing is rounded: the error of a program is that of its lead of llama.cpp's first candidate over
  the second, a difference of logits. llama.cpp rounds activations to 8 bits itself: by 32 values, as "a8" does, or by
  256 where the matrix has blocks of as many, and then errs more. Where tokens part, two programs lead by opposite
  signs; leads further apart than six standard deviations of such errors are a mistake and no rounding, and are marked
  with "!". So are errors of llama.cpp that are three times those of "a8".
* llama-perplexity and specjax predict the same text from both files. As llama-perplexity does it, the second halves of
  its chunks count.

The status is 1 if there is such a mistake, or if perplexities differ by more than 0.5 %.

    python benchmarks/llama_cpp_quantized.py --binaries path/to/llama.cpp/build/bin

Needs llama-quantize, llama-server and llama-perplexity of a llama.cpp that knows the model's architecture.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import PROMPTS, complete, running_server
from quality import log_probabilities, target_params
from rich.console import Console
from rich.progress import track
from rich.table import Table

import checkpoints
import specjax
from checkpoints.quantization import QuantizeOptions, prepare
from pallas_kernels.matmul import Activations
from specjax.models.registry import FAMILIES
from specjax.runtime.loading import bundled_model
from specjax.state import KVTypes
from specjax.training.corpus import standard_library

TYPES = "F32,Q8_0,Q6_K,Q5_K_M,Q5_1,Q5_0,Q4_K_M,Q4_1,Q4_0,IQ4_XS,IQ4_NL"
ROUNDINGS: tuple[Activations, ...] = ("a8", "a16")
TOP = 8
"""Candidates that llama.cpp tells the probabilities of."""
CHARACTERS = 2000
"""Of each held-out module, in the text that is predicted."""
ALLOWED_PERPLEXITY = 5e-3
DEVIATIONS, NEAR_TIE = 6, 1e-3
"""How far leads may be apart: in standard deviations of their errors, or as float32 rounds."""
ALLOWED_ERROR = 3
"""Times that of "a8"."""
ROWS_AT_ONCE = 4
ATTEMPTS = 10
F32_CACHES = ("-ctk", "f32", "-ctv", "f32")


@dataclass(frozen=True)
class Answer:
    """What llama.cpp makes of a prompt.

    Attributes:
        prompt, tokens: ids.
        candidates: for each token the ids of the two most likely ones, [T, 2].
        leads: of the first candidate over the second, [T], a difference of logits.
        others: for each token the log-probabilities that are known, by id.
    """

    prompt: list[int]
    tokens: list[int]
    candidates: np.ndarray
    leads: np.ndarray
    others: list[dict[int, float]]


@dataclass(frozen=True)
class Parting:
    """Where the tokens of llama.cpp and ours part.

    Attributes:
        prompt, position: numbers of the prompt and of the generated token.
        ours, theirs: the tokens.
        our_lead, exact_lead, their_lead: of our token over theirs: here, with nothing rounded, and there. Ours is that
            of one pass over all tokens, and may be a little below zero where rounding of 8 bits falls out otherwise
            than token by token. Theirs is NaN if our token is none of the candidates that llama.cpp tells of.
        explained: whether the errors of both programs are so large elsewhere that this is rounding.
    """

    prompt: int
    position: int
    ours: int
    theirs: int
    our_lead: float
    exact_lead: float
    their_lead: float
    explained: bool


def run(*command: str | Path) -> str:
    """The output of a program, errors included."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def answers(server: Path, model: Path, prompts: list[list[int]], max_tokens: int, threads: int) -> list[Answer]:
    """Greedy continuations by llama.cpp."""
    with running_server(str(server), model, 0, threads, model.with_suffix(".log")) as url:
        return [_answer(prompt, complete(url, prompt, max_tokens, n_probs=TOP)) for prompt in prompts]


def _answer(prompt: list[int], reply: dict[str, Any]) -> Answer:
    others = [
        {each["id"]: each["logprob"] for each in position["top_logprobs"]}
        for position in reply["completion_probabilities"]
    ]
    ranked = [sorted(each, key=lambda token: -each[token])[:2] for each in others]  # type: ignore[arg-type]
    leads = [known[first] - known[second] for known, (first, second) in zip(others, ranked, strict=True)]
    return Answer(prompt, reply["tokens"], np.array(ranked), np.array(leads), others)


def logits_along(model: specjax.Model, found: list[Answer], length: int) -> list[np.ndarray]:
    """Log-probabilities of every token at each of llama.cpp's tokens, [T, V] per answer; answers are padded."""
    padded = np.zeros((len(found), length), np.int32)
    for row, each in zip(padded, found, strict=True):
        row[: len(each.prompt) + len(each.tokens)] = [*each.prompt, *each.tokens]
    rows = predictions(model, padded)
    return [
        row[len(each.prompt) - 1 : len(each.prompt) - 1 + len(each.tokens)]
        for row, each in zip(rows, found, strict=True)
    ]


def predictions(model: specjax.Model, tokens: np.ndarray) -> np.ndarray:
    """Log-probabilities of every next token, [B, T, V]; one program, of a few rows at a time."""
    padded = np.resize(tokens, (-(-len(tokens) // ROWS_AT_ONCE) * ROWS_AT_ONCE, tokens.shape[1]))
    parts = padded.reshape(-1, ROWS_AT_ONCE, tokens.shape[1])
    params = target_params(model)
    rows = [np.asarray(log_probabilities(model.target, params, part, KVTypes())) for part in parts]
    return np.concatenate(rows)[: len(tokens)]


def leads_of(found: list[Answer], logits: list[np.ndarray]) -> np.ndarray:
    """Of llama.cpp's first candidates over its second ones, at all tokens of all answers."""
    return np.concatenate(
        [
            np.subtract(*np.take_along_axis(row, each.candidates, axis=-1).T)
            for each, row in zip(found, logits, strict=True)
        ]
    )


def rms(errors: np.ndarray) -> float:
    """Their standard deviation from zero."""
    return float(np.sqrt(np.square(errors).mean()))


def partings(
    found: list[Answer],
    tokens: list[list[int]],
    logits: list[np.ndarray],
    exact: list[np.ndarray],
    limit: float,
    ends: frozenset[int] | set[int],
) -> list[Parting]:
    """Where our tokens are not llama.cpp's, up to the end of the text.

    Args:
        found: llama.cpp's.
        tokens: ours.
        logits, exact: along llama.cpp's tokens, ours and those of which nothing is rounded.
        limit: how far rounding takes the leads of two programs apart.
        ends: ids that end a text. llama.cpp is kept from using them, and what follows is not comparable.
    """
    result = []
    for number, (answer, mine) in enumerate(zip(found, tokens, strict=True)):
        at = next((i for i, (a, b) in enumerate(zip(mine, answer.tokens, strict=True)) if a != b or a in ends), None)
        if at is None or mine[at] in ends:
            continue
        ours, theirs = mine[at], answer.tokens[at]
        known = answer.others[at]
        here, unrounded = (float(rows[number][at][ours] - rows[number][at][theirs]) for rows in (logits, exact))
        there = known[ours] - known[theirs] if ours in known and theirs in known else math.nan
        result.append(Parting(number, at, ours, theirs, here, unrounded, there, abs(here - there) <= limit))
    return result


def perplexity(model: specjax.Model, text: str, chunks: int, length: int) -> float:
    """As llama-perplexity computes it: of the second half of each chunk."""
    windows = np.array(model.encode(text)[: chunks * length], np.int32).reshape(chunks, length)
    rows = predictions(model, windows)[:, length // 2 : -1]
    losses = -np.take_along_axis(rows, windows[:, length // 2 + 1 :, None], axis=-1)
    return math.exp(losses.mean(dtype=np.float64))


def their_perplexity(binary: Path, model: Path, text: Path, chunks: int, length: int, threads: int) -> float:
    """By llama-perplexity, which sometimes ends before its last lines are written."""
    sizes = ("-c", str(length), "-b", str(length), "--chunks", str(chunks), "-t", str(threads))
    for _ in range(ATTEMPTS):
        output = run(binary, "-m", model, "-f", text, *sizes, "-fa", "off", *F32_CACHES, "--fit", "off")
        if match := re.search(r"Final estimate: PPL = ([0-9.]+)", output):
            return float(match[1])
    raise SystemExit(f"llama-perplexity told no perplexity:\n{output[-3000:]}")


def files(binary: Path, f32: Path, types: list[str], threads: int) -> Iterator[tuple[str, Path, Path]]:
    """Of each type its name, llama-quantize's file and ours."""
    for kind in types:
        theirs, ours = (f32.with_name(f"{kind}-{who}.gguf") for who in ("theirs", "ours"))
        if kind == "F32":
            yield kind, f32, f32
            continue
        run(binary, f32, theirs, kind, str(threads))
        yield kind, theirs, prepare(f32, ours, FAMILIES, QuantizeOptions(kind)).run()


def compared(kind: str, theirs: Path, ours: Path, prompts: list[list[int]], text: Path, args: Any) -> dict[str, Any]:
    """All figures of a type, from llama-quantize's file and from ours; `args` are those of the command line."""
    found = answers(args.binaries / "llama-server", theirs, prompts, args.max_tokens, args.threads)
    exact = logits_along(specjax.load(theirs, packed=None), found, args.length)
    exact_leads = leads_of(found, exact)
    errors = {"llama.cpp": np.concatenate([each.leads for each in found]) - exact_leads}
    options = specjax.GenerateOptions(max_tokens=args.max_tokens, draft=0, ignore_eos=True)
    words = text.read_text(encoding="utf-8")
    parted, losses = {}, {}
    for packed in ROUNDINGS:
        model = specjax.load(theirs, packed=packed, need_tokenizer=True)
        assert model.tokenizer is not None
        logits = logits_along(model, found, args.length)
        errors[packed] = leads_of(found, logits) - exact_leads
        limit = max(NEAR_TIE, DEVIATIONS * math.hypot(rms(errors["llama.cpp"]), rms(errors[packed])))
        tokens = [each.tokens for each in model.generate_batch(prompts, options)]
        parted[packed] = partings(found, tokens, logits, exact, limit, model.tokenizer.eos_ids)
        losses[f"theirs, {packed}"] = perplexity(model, words, args.chunks, args.length)
        losses[f"ours, {packed}"] = perplexity(specjax.load(ours, packed=packed), words, args.chunks, args.length)
    for name, file in (("theirs", theirs), ("ours", ours)):
        losses[f"{name}, llama.cpp"] = their_perplexity(
            args.binaries / "llama-perplexity", file, text, args.chunks, args.length, args.threads
        )
    return {
        "type": kind,
        "errors": {name: {"rms": rms(each), "max": float(np.abs(each).max())} for name, each in errors.items()},
        "parted": {packed: [asdict(each) for each in where] for packed, where in parted.items()},
        "perplexity": losses,
    }


def main() -> int:
    """Print two tables, and what there is to say of each parting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=Path, required=True, help="folder with the programs of llama.cpp")
    parser.add_argument("--model", type=Path, help="GGUF file (default: the bundled model)")
    parser.add_argument("--types", default=TYPES, help="comma-separated (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--chunks", type=int, default=8, help="of the text that is predicted")
    parser.add_argument(
        "--length", type=int, default=512, help="tokens of a chunk, and of a prompt with its continuation at most"
    )
    parser.add_argument("--threads", type=int, default=1, help="of llama.cpp")
    parser.add_argument("--json", type=Path, help="write the figures, too")
    args = parser.parse_args()

    original = specjax.load(bundled_model() if args.model is None else args.model, packed=None, need_tokenizer=True)
    assert original.tokenizer is not None
    prompts = [original.encode(json.loads(line)["prompt"]) for line in PROMPTS.read_text().splitlines() if line]
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        f32, text = Path(folder) / "F32.gguf", Path(folder) / "text.txt"
        checkpoints.write_gguf(f32, FAMILIES, original.config, original.params, original.tokenizer)
        text.write_text("\n".join(document.text[:CHARACTERS] for document in standard_library().held_out), "utf-8")
        types = args.types.split(",")
        each_file = files(args.binaries / "llama-quantize", f32, types, args.threads)
        for kind, theirs, ours in track(each_file, "types", total=len(types), console=Console(stderr=True)):
            results.append(compared(kind, theirs, ours, prompts, text, args))
            if args.json is not None:
                args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if print_tables(results, len(prompts)) else 0


def print_tables(results: list[dict[str, Any]], prompts: int) -> bool:
    """The tables; returns whether there is something wrong in them."""
    wrong = False
    names = ("llama.cpp", *ROUNDINGS)
    tokens = Table("type", *(f"equal, {each}" for each in ROUNDINGS), *(f"error, {each}" for each in names))
    losses = Table("type", *(f"{whose}, {by}" for whose in ("theirs", "ours") for by in names), "apart")
    for result in results:
        found = result["errors"]
        errors = [f"{found[name]['rms']:.1e} ({found[name]['max']:.1e})" for name in names]
        if found["llama.cpp"]["rms"] > max(NEAR_TIE, ALLOWED_ERROR * found["a8"]["rms"]):
            errors[0], wrong = errors[0] + " !", True
        equal = [f"{prompts - len(result['parted'][each])} of {prompts}" for each in ROUNDINGS]
        tokens.add_row(result["type"], *equal, *errors)
        values = [result["perplexity"][f"{whose}, {by}"] for whose in ("theirs", "ours") for by in names]
        apart = max(values) / min(values) - 1
        losses.add_row(result["type"], *(f"{value:.3f}" for value in values), f"{apart:.2%}")
        wrong |= apart > ALLOWED_PERPLEXITY
    out = Console(width=120)
    out.print(tokens, losses)
    for result in results:
        for packed, where in result["parted"].items():
            for each in where:
                leads = ", ".join(f"{each[key]:+.2e}" for key in ("our_lead", "exact_lead", "their_lead"))
                mark = "" if each["explained"] else " !"
                wrong |= not each["explained"]
                out.print(
                    f"{result['type']}, {packed}, prompt {each['prompt']}, token {each['position']}:"
                    f" {each['ours']} here, {each['theirs']} there; leads here, unrounded, there: {leads}{mark}"
                )
    return wrong


if __name__ == "__main__":
    sys.exit(main())
