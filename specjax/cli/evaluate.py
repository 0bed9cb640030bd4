"""`specjax eval`: continue many prompts, and keep what comes of them."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specjax.cli.options import (
    add_command,
    add_decoding_options,
    add_model_options,
    check_output,
    generate_options,
    load_model,
)
from specjax.cli.runtime import UsageError, say

if TYPE_CHECKING:
    from specjax.evaluation import BadPrompt, Evaluation, PromptLine, ResultFile
    from specjax.runtime.options import GenerateOptions

DEFAULT_ROWS = 8

DESCRIPTION = """\
Continue many prompts. They run together in a batch of B rows; a row that finishes is given to the next prompt. Each
result is written as it comes. A run that was stopped is taken up again by the same command.
"""

EPILOG = """\
Lines of the prompt file are JSON objects:
  {"prompt": "def add(a, b):"}
  {"id": "second", "prompt": "class Queue:", "max_tokens": 64}
  {"id": "third", "tokens": [1, 2, 3]}
  {"prompt": "def f(", "temperature": 0.8, "seed": 3, "stop": ["\\n\\n"], "draft": 2, "samples": 4}
"id" is the line's number among the prompts, from 0, unless it is given. max_tokens, draft, draft_by, temperature,
top_k, top_p, min_p, seed, stop, ignore_eos, logit_bias, presence_penalty, frequency_penalty, json_schema, regex,
grammar_after and samples of a line hold for it instead of the command's.

With --samples N each prompt is continued N times. Sample k, from 0, is drawn with the prompt's seed plus k, and its
result has both, "sample" and "seed". A prompt that is decoded greedily is continued once.

Lines of the result file have id, index, sample, seed, text, tokens, finish_reason, prompt_tokens, rounds, drafted,
accepted, drafted_by_position and accepted_by_position, and with --logprobs also logprobs and top_logprobs, in the order
in which texts finish. Other keys of a prompt's line, such as "answer", go into the line of its result. The settings of
the run stand beside it, in R.jsonl.settings.json.

A prompt's random draws are keyed by the seed and its id. So its result depends neither on --batch nor on the order.

On several machines, give each a --shard and an --out of its own. The shards together are the results of one run, and
`specjax merge-results` puts their files together. In a job array of SLURM: --shard $SLURM_ARRAY_TASK_ID/8, with
--array=1-8.

examples:
  specjax eval --prompts questions.jsonl --out answers.jsonl
  specjax eval --model model.gguf --prompts p.jsonl --out r.jsonl --batch 16 --draft 3 --max-tokens 256
  specjax eval --prompts p.jsonl --out r.jsonl --temperature 0.8 --seed 1 --accept coupled
  specjax eval --prompts p.jsonl --out r.jsonl --samples 8 --temperature 0.8 --logprobs 0 --report r.html
  specjax eval --prompts p.jsonl --out part-2.jsonl --shard 2/4
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(subparsers, "eval", "continue many prompts in a batch", DESCRIPTION, EPILOG, run)
    add_model_options(parser)
    parser.add_argument("--prompts", type=Path, required=True, metavar="F.jsonl", help="one JSON object a line")
    parser.add_argument("--out", type=Path, required=True, metavar="R.jsonl", help="one result a line")
    parser.add_argument(
        "--batch",
        type=int,
        default=DEFAULT_ROWS,
        metavar="B",
        help=f"prompts that run together (default: {DEFAULT_ROWS})",
    )
    parser.add_argument(
        "--samples", type=int, default=1, metavar="N", help="texts for each prompt; needs a --temperature (default: 1)"
    )
    parser.add_argument(
        "--shard",
        metavar="I/N",
        help="continue only the I-th of N parts of the prompts, with I from 1 to N: prompt I, prompt I + N, and so on",
    )
    parser.add_argument(
        "--traces",
        type=Path,
        metavar="FOLDER",
        help="also write what every round of each text did, to FOLDER/PROMPT-SAMPLE.npz; see specjax.Trace",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="pass over prompts that cannot be continued: their results have an error in place of a text, and the exit"
        " status is 1",
    )
    add_telling_options(parser)
    add_decoding_options(parser)


def add_telling_options(parser: argparse.ArgumentParser) -> None:
    """--report, --json and --quiet, see `tell`."""
    parser.add_argument(
        "--report",
        type=Path,
        metavar="F.html|F.json",
        help="also write a page with plots, the figures as JSON, and the texts; one file, which loads nothing else. Or"
        " the figures alone, if the name ends in .json",
    )
    parser.add_argument("--json", action="store_true", help="the summary as one JSON object on the standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")


def check_outputs(args: argparse.Namespace, *inputs: Path) -> None:
    """Say early that the results or the report cannot be written, or that the report would overwrite another file.

    Raises:
        UsageError: as `check_output`; or the report has the name of the result file, of the prompts or of an input.
    """
    for path in filter(None, (args.out, args.report)):
        check_output(path)
    others = [args.out, args.prompts, *inputs]
    if args.report is not None and args.report.resolve() in [path.resolve() for path in others]:
        raise UsageError(f"--report {args.report} would overwrite a file of this run; give the report another name")


def run(args: argparse.Namespace) -> int:
    """Returns the exit status: 1 if there are prompts that could not be continued."""
    options = replace(generate_options(args), trace=args.traces is not None)

    from specjax.cli.progress import prompt_progress
    from specjax.evaluation import Evaluation, ResultFile, Shard, parse_prompts, samples_of, sift
    from specjax.mesh.hosts import agreed

    shard = Shard.parse(args.shard or "1/1")
    prompt_bytes = args.prompts.read_bytes()  # once: it may be a pipe
    bad: list[BadPrompt] | None = [] if args.keep_going else None
    lines = parse_prompts(prompt_bytes, str(args.prompts), bad)
    prompts = samples_of(lines, options, args.samples)
    if args.samples > 1 and len(prompts) == len(lines):
        raise UsageError(f"--samples {args.samples}: greedy decoding always says the same; give a --temperature")
    prompts = [prompt for prompt in prompts if shard.has(prompt)]
    bad = None if bad is None else [line for line in bad if shard.has(line)]
    check_outputs(args)
    settings = settings_of(args, options, prompt_bytes)
    results = ResultFile(args.out, settings)
    finished = {tuple(key) for key in agreed(list(results.results))}
    left = [prompt for prompt in prompts if prompt.key not in finished]
    if len(left) < len(prompts) and not args.quiet:
        say(f"{len(prompts) - len(left)} of {_counted(args, prompts)} are done already")
    evaluation = None
    if left:
        model = load_model(args, need_tokenizer=any(isinstance(prompt.prompt, str) for prompt in left))
        if bad is not None:
            left, unfit = sift(model, left, options)
            bad += unfit
        evaluation = Evaluation(model, left, options, args.batch) if left else None
    new_bad = [line for line in bad or () if line.key not in results.results]
    if evaluation or new_bad or not args.out.exists():  # a shard may have no prompts
        try:
            with results, prompt_progress(quiet=args.quiet) as progress:
                for line in new_bad:
                    say(line.error)
                    results.append(line.as_line())
                tokens = 0
                for done, result in enumerate(evaluation.run() if evaluation else (), start=1):
                    if result.trace is not None:
                        result.trace.save(args.traces / f"{result.index}-{result.sample}.npz")
                    results.append(result.as_line())
                    progress(done, len(left), tokens := tokens + len(result.tokens))
        except KeyboardInterrupt:
            say(f"{len(results.results)} of {_counted(args, prompts)} are done; the same command goes on from there")
            raise
    return tell(results, args, evaluation)


def _counted(args: argparse.Namespace, prompts: list[PromptLine]) -> str:
    return f"{len(prompts)} {'prompts' if len({prompt.id for prompt in prompts}) == len(prompts) else 'texts'}"


def settings_of(args: argparse.Namespace, options: GenerateOptions, prompts: bytes) -> dict[str, Any]:
    """Everything that a result depends on."""
    from specjax.evaluation.results import fingerprint_of_bytes, fingerprint_of_model
    from specjax.runtime.loading import bundled_model

    def named(source: Path | str) -> Any:
        return fingerprint_of_model(Path(source)) if Path(source).exists() else str(source)

    decoding = asdict(options)
    del decoding["margins"], decoding["trace"], decoding["rounds_per_chunk"]
    model = args.model or bundled_model()
    return {
        "prompts": fingerprint_of_bytes(prompts),
        "model": named(model),
        "drafters": [named(drafter) for drafter in args.drafter or ()],
        "draft_vocab": args.draft_vocab and named(str(args.draft_vocab)),
        "dtype": args.dtype,
        "packed": args.packed,
        "samples": args.samples,
        "shard": args.shard,
        **decoding,
    }


def tell(results: ResultFile, args: argparse.Namespace, evaluation: Evaluation | None = None) -> int:
    """Write the report and the summary that were asked for.

    Args:
        results: what is reported on.
        args: report, json and quiet count.
        evaluation: what has just run, if something has.

    Returns:
        The exit status: 1 if there are prompts that could not be continued.
    """
    from checkpoints.atomic import write_text
    from specjax.evaluation.report import figures, report

    found = list(results.results.values())
    if args.report is not None:
        if args.report.suffix == ".json":
            write_text(args.report, json.dumps(figures(found, results.settings), indent=1) + "\n")
        else:
            write_text(args.report, report(found, results.settings))
        if not args.quiet:
            say(f"wrote {args.report}")
    if args.json or not args.quiet:
        _summarize(found, evaluation, args)
    return int(any("error" in result for result in found))


def _summarize(results: list[dict[str, Any]], evaluation: Evaluation | None, args: argparse.Namespace) -> None:
    from specjax.cli.generate_report import acceptance_line
    from specjax.cli.text import console, print_rows
    from specjax.evaluation.summary import summarize

    summary = summarize(results)
    document = summary.as_document()
    reasons = ", ".join(f"{count} {reason}" for reason, count in summary.finish_reasons.most_common())
    prompts = f"{summary.prompts} ({reasons})" if reasons else "none"
    rows = [
        ("prompts", prompts + (f", and {summary.bad} with an error" if summary.bad else "")),
        *([("texts", str(summary.texts))] if summary.texts > summary.prompts else ()),
        (
            "tokens",
            f"{summary.tokens} in {summary.stats.rounds} rounds, {summary.stats.tokens_per_round:.2f} per round",
        ),
    ]
    if summary.stats.drafted:
        rows.append(("accepted", acceptance_line(summary.stats)))
    if evaluation is not None:
        speed = evaluation.tokens / evaluation.run_seconds
        document |= {
            "compile_seconds": evaluation.engine.compile_seconds,
            "run_seconds": evaluation.run_seconds,
            "tokens_per_second": speed,
        }
        rows.append(
            (
                "this run",
                f"{evaluation.tokens} tokens in {evaluation.run_seconds:.2f} s, {speed:.1f} tokens/s with prefill,"
                f" {evaluation.engine.seats} rows; compile {evaluation.engine.compile_seconds:.2f} s",
            )
        )
    if args.json:
        print(json.dumps(document))
    else:
        print_rows(console(stderr=True), rows)
