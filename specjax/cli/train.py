"""`specjax train`: train the bundled model's recipe."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from specjax.cli.options import check_output
from specjax.cli.runtime import UsageError

DESCRIPTION = """\
Train a small Qwen3.5-style model with its multi-token-prediction block, on the source files of this Python's own
standard library. This is how the bundled model was made.

Nothing is downloaded. The vocabulary is trained first, then the model; both see the training files only. Some modules
(textwrap, calendar, heapq, queue, ...) are held out for evaluation.
"""

EPILOG = """\
The folder DIR receives:
  run.json       recipe, model size, Python version, hash and size of the text, names of the held-out files
  tokenizer.json the vocabulary
  metrics.jsonl  one line per step and per held-out evaluation
  checkpoints/   the newest two checkpoints
  loss.png       the curves
  report.json    when finished: losses, bits per byte and agreement of the drafts on all held-out text

Stop with Ctrl-C; the same command continues where it stopped and ends with the same parameters, bit for bit, as a run
that was never stopped. Equal recipes on equal text and hardware give equal models.

examples:
  specjax train --out runs/demo --minutes 90 --export demo.gguf
  specjax train --out runs/demo --export demo.gguf --type q8_0     (continue, or export what is finished)
  specjax train --head-of runs/demo --out runs/demo-head --export demo.gguf
  specjax generate --model demo.gguf --prompt "def main(" --draft 3 --compare
"""

DEFAULT_STEPS = 1400
DEFAULT_HEAD_STEPS = 300


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the command to the program's parser."""
    parser = subparsers.add_parser(
        "train",
        help="train the bundled model's recipe on the Python standard library",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the run")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help=f"optimizer steps (default: {DEFAULT_STEPS}, as for the bundled model); may be changed on resuming "
        "as long as the learning rate has not begun to decay, which it does over the last 40 %% of the steps",
    )
    length.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="time a few steps first, and choose the number that fits into M minutes (new runs only)",
    )
    parser.add_argument("--batch", type=int, metavar="B", help="sequences per step (default: 4)")
    parser.add_argument("--length", type=int, metavar="T", help="tokens per sequence (default: 512)")
    parser.add_argument("--seed", type=int, metavar="S", help="of initial parameters and text order (default: 0)")
    parser.add_argument(
        "--mtp-weight",
        type=float,
        metavar="W",
        help="weight of the MTP block's loss beside the trunk's (default: 0.2); 0 leaves the block untrained",
    )
    parser.add_argument(
        "--head-of",
        type=Path,
        metavar="DIR",
        help="keep the trunk of the run in DIR as it is, and teach its MTP block what the trunk says (a new run in "
        "--out); learning rate 1e-3 unless the run exists",
    )
    parser.add_argument("--export", type=Path, metavar="FILE.gguf", help="write the model when training ends")
    parser.add_argument(
        "--type",
        choices=["q8_0", "f16", "bf16", "f32"],
        default="q8_0",
        help="type of the exported matrices (default: q8_0)",
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Train, and export when asked to. Returns the exit status: 130 when the run was interrupted."""
    try:
        import matplotlib  # noqa: F401
        import optax  # noqa: F401
    except ImportError as error:
        raise UsageError(f"specjax train needs {error.name}; install it with: pip install 'specjax[train]'") from error
    from specjax.training.corpus import standard_library
    from specjax.training.export import export_gguf
    from specjax.training.progress import Progress
    from specjax.training.recipe import demo_config
    from specjax.training.run import run as run_recipe
    from specjax.training.run_folder import RunFolder

    if args.export is not None:
        check_output(args.export)
    if args.minutes is not None and args.minutes <= 0:
        raise UsageError(f"--minutes is {args.minutes:g}; it must be positive")
    folder, progress = RunFolder(args.out), Progress()
    recipe = chosen_recipe(args, folder)
    start = None if args.head_of is None else RunFolder(args.head_of)
    outcome = run_recipe(folder, demo_config(), recipe, standard_library(), progress, start)
    if not outcome.finished:
        progress.say(f"stopped after step {int(outcome.state.step)}; the same command continues from there")
        return 130
    progress.say(f"finished; curves in {folder.loss_plot}, figures in {folder.report}")
    if args.export is not None:
        export_gguf(folder, args.export, args.type.upper())
        progress.say(f"wrote {args.export}")
    return 0


def chosen_recipe(args: argparse.Namespace, folder: Any) -> Any:
    """The recipe of the folder's run, or the default one, with the settings that the command line names.

    Raises:
        UsageError: `--minutes` for a run that exists already, or `--head-of` for one of a whole model.
        ValueError: a setting out of range.
    """
    from specjax.training.recipe import Recipe, demo_config
    from specjax.training.trainer import steps_within

    previous = folder.read_recipe()
    if previous is not None and args.minutes is not None:
        raise UsageError(f"--minutes is for new runs; {args.out} holds one of {previous.steps} steps (use --steps)")
    if previous is not None and args.head_of is not None and not previous.head_only:
        raise UsageError(
            f"--head-of begins a run that trains a head alone; {args.out} holds one of a whole model: choose another"
            " --out, or leave --head-of out to continue it"
        )
    settings = {
        "steps": args.steps,
        "batch_size": args.batch,
        "length": args.length,
        "seed": args.seed,
        "mtp_weight": args.mtp_weight,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    default = Recipe(steps=DEFAULT_STEPS)
    if args.head_of is not None:
        default = Recipe(steps=DEFAULT_HEAD_STEPS, learning_rate=1e-3, mtp_sequences=default.batch_size, head_only=True)
    recipe = replace(previous or default, **given)
    return recipe if args.minutes is None else steps_within(args.minutes, demo_config(), recipe)
