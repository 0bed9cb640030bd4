"""`specjax vocabulary`: which tokens a drafter should be able to draft."""

from __future__ import annotations

import argparse
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
    from checkpoints import TextTokenizer
    from specjax.analysis.token_counts import TokenCounts
    from specjax.evaluation import PromptLine
    from specjax.runtime.options import GenerateOptions

DEFAULT_ROWS = 8
DEFAULT_TOTAL = 200_000
NAMED = 5
SHARE = 8
"""By default one token of so many is listed."""

DESCRIPTION = """\
Count how often each token occurs, and list the most frequent ones for --draft-vocab. A drafter that scores only these
is cheaper: with a large vocabulary much of its time goes into scores of tokens that hardly ever come.

Count what the model will write: texts of that kind (--text), or what it writes itself when it continues prompts
(--prompts). Tokens that are not listed are never drafted; the model itself says them as before. Special tokens and
those that end a text are always listed. If fewer tokens were counted than are to be listed, those with the lowest ids
fill the list up.
"""

EPILOG = """\
The file is a JSON object: "tokens" are the ids, the most frequent one first; "vocab_size" and "vocabulary", a
fingerprint, say which vocabulary they belong to.

examples:
  specjax vocabulary --model model.gguf --text corpus.txt --size 32768 --out tokens.json
  specjax vocabulary --model model.gguf --prompts questions.jsonl --total 100000 --max-tokens 512 --out tokens.json
  specjax generate --model model.gguf --draft-vocab tokens.json --prompt "Once upon a time"

Ctrl-C ends the counting: what was counted until then is written. For --text no weights are read.
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(subparsers, "vocabulary", "list the tokens to draft", DESCRIPTION, EPILOG, run)
    add_model_options(parser)
    parser.add_argument("--text", type=Path, nargs="+", default=[], metavar="F", help="files with UTF-8 text")
    parser.add_argument("--prompts", type=Path, metavar="F.jsonl", help="prompts to continue, as specjax eval has them")
    parser.add_argument(
        "--total",
        type=int,
        default=DEFAULT_TOTAL,
        metavar="N",
        help=f"with --prompts: tokens to generate in all, more or less (default: {DEFAULT_TOTAL})",
    )
    parser.add_argument(
        "--batch",
        type=int,
        default=DEFAULT_ROWS,
        metavar="B",
        help=f"with --prompts: prompts that run together (default: {DEFAULT_ROWS})",
    )
    parser.add_argument(
        "--size", type=int, metavar="N", help=f"tokens to list (default: one {SHARE}th of the model's vocabulary)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="F.json", help="where to; whole or not at all")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_decoding_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status.

    Raises:
        UsageError: there is nothing to count, or an option is out of its range.
    """
    if not args.text and args.prompts is None:
        raise UsageError("there is nothing to count; give --text, or --prompts to be continued")
    for name in ("total", "batch"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name} is {getattr(args, name)}; it must be positive")
    options = generate_options(args)

    import checkpoints
    from specjax.analysis.token_counts import TokenCounts
    from specjax.evaluation import read_prompts
    from specjax.models import registry
    from specjax.runtime.draft_vocabulary import TokenList, fingerprint, most_frequent
    from specjax.runtime.loading import bundled_model

    check_output(args.out)
    prompts = [] if args.prompts is None else read_prompts(args.prompts)
    opened = checkpoints.open_checkpoint(args.model or bundled_model(), registry.FAMILIES)
    tokenizer = opened.tokenizer(required=True)
    assert tokenizer is not None
    vocab_size = opened.config.vocab_size
    size = vocab_size // SHARE if args.size is None else args.size
    counted = TokenCounts(vocab_size)
    most_frequent(counted.counts, tokenizer, size)  # says early that there is no list of this size

    def write() -> None:
        if not counted.total:
            raise UsageError("nothing was counted: there are no tokens in the text, or none were generated")
        tokens = most_frequent(counted.counts, tokenizer, size)
        sources = [path.name for path in args.text] + [f"continuations of {args.prompts.name}" for _ in prompts[:1]]
        more = [f"{len(sources) - NAMED} more"] if len(sources) > NAMED else []
        origin = f"counted in {counted.total} tokens: {', '.join([*sources[:NAMED], *more])}"
        TokenList(vocab_size, fingerprint(tokenizer), origin, tokens).write(args.out)
        say(
            f"wrote {args.out}: {len(tokens)} of {vocab_size} tokens, which are"
            f" {counted.share_of(tokens):.2%} of the {counted.total} that were counted"
        )

    try:
        _count(args, options, prompts, counted, tokenizer)
    except KeyboardInterrupt:
        if counted.total:
            write()
        raise
    write()
    return 0


def _count(
    args: argparse.Namespace,
    options: GenerateOptions,
    prompts: list[PromptLine],
    counted: TokenCounts,
    tokenizer: TextTokenizer,
) -> None:
    from specjax.cli.progress import byte_progress, prompt_progress

    with byte_progress("text", quiet=args.quiet) as progress:
        counted.read(tokenizer, args.text, progress)
    if prompts:
        model = load_model(args, need_tokenizer=True)
        with prompt_progress(quiet=args.quiet) as shown:
            counted.generate(model, prompts, options, rows=args.batch, most=args.total, progress=shown)
