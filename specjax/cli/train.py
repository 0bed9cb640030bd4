"""`specjax train`: train the bundled model's recipe, or a small model of another family."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specjax.cli.options import add_command, check_output
from specjax.cli.runtime import UsageError

DESCRIPTION = """\
Train a small model and what drafts for it, or with --drafter a drafter for a model that you have (see below). Text is
by default the source files of this Python's own standard library. The Qwen3.5-style model with its
multi-token-prediction block is how the bundled model was made; a tenth of its size are the Gemma-4-style target with an
assistant, and the Step-3.5-style model with three chained heads.

Nothing is downloaded. The vocabulary is trained first, then the model; both see the training files only. Some modules
(textwrap, calendar, heapq, queue, ...) are held out for evaluation.
"""

EPILOG = """\
The folder DIR receives:
  run.json       family, recipe, model size, Python version, hash and size of the text, names of the held-out files
  tokenizer.json the vocabulary
  metrics.jsonl  one line per step and per held-out evaluation
  checkpoints/   the newest two checkpoints
  loss.png       the curves
  report.json    when finished: losses, bits per byte and agreement of the drafts on all held-out text

Stop with Ctrl-C; the same command continues where it stopped and ends with the same parameters, bit for bit, as a run
that was never stopped. Equal recipes on equal text and hardware give equal models.

With --drafter the model of --target stands still, and a drafter learns what it says: EAGLE-3 by the training-time test,
DFlash and DSpark on blocks of masks. The folder then has no tokenizer, and loss.png also shows how often each draft is
what the target says. For drafts of your own texts give these with --text.

examples:
  specjax train --drafter eagle3 --target model.gguf --out runs/eagle3 --export eagle3.gguf
  specjax generate --model model.gguf --drafter eagle3.gguf --prompt "def main(" --compare
  specjax train --out runs/demo --minutes 90 --export demo.gguf
  specjax train --out runs/demo --export demo.gguf --type q8_0     (continue, or export what is finished)
  specjax train --family gemma4 --out runs/gemma4 --export gemma4.gguf   (and gemma4-assistant.gguf)
  specjax train --head-of runs/demo --out runs/demo-head --export demo.gguf
  specjax generate --model demo.gguf --prompt "def main(" --draft 3 --compare
"""

FAMILIES = ("qwen3_5", "gemma4", "step3_5")
DRAFTERS = ("eagle3", "dflash", "dspark")
FOR_DRAFTERS = ("target", "text", "layers", "draft_vocab", "block", "draft_steps")
FOR_MODELS = ("family", "head_of", "mtp_weight")
"""Options that only the one kind of run has."""
DEFAULT_FAMILY = "qwen3_5"
DEFAULT_HEAD_STEPS = 300
DRAFTER_RECIPE: dict[str, Any] = {
    "steps": 2000,
    "batch_size": 4,
    "length": 256,
    "learning_rate": 8e-3,
    "mtp_steps": 5,
    "mtp_sequences": 1,
    "eval_every": 100,
}


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the command to the program's parser."""
    parser = add_command(
        subparsers,
        "train",
        "train the bundled model's recipe, or another family's, on the Python standard library",
        DESCRIPTION,
        EPILOG,
        run,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the run")
    parser.add_argument(
        "--family",
        choices=FAMILIES,
        help=f"family of the model (default: {DEFAULT_FAMILY}, or that of the run that DIR or --head-of names)",
    )
    parser.add_argument(
        "--drafter", choices=DRAFTERS, help="train a drafter of this kind for the model of --target, which stands still"
    )
    drafter = parser.add_argument_group("with --drafter")
    drafter.add_argument("--target", metavar="FILE", help="the model to draft for (default: the bundled model)")
    drafter.add_argument(
        "--text", type=Path, nargs="+", metavar="PATH", help="text files, or folders of them, instead of the library's"
    )
    drafter.add_argument("--layers", type=int, metavar="N", help="layers of the drafter (default: 1, in blocks 2)")
    drafter.add_argument(
        "--draft-vocab",
        type=int,
        metavar="N",
        help="the drafter knows the N most frequent tokens of the text, and has an output head for them (default: all"
        " tokens, by the target's own head)",
    )
    drafter.add_argument("--block", type=int, metavar="B", help="slots of a block (default: 8)")
    drafter.add_argument(
        "--draft-steps", type=int, metavar="K", help="drafts that training unrolls, for eagle3 (default: 5)"
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="optimizer steps (default: those of the family's recipe, 1400 for the bundled model; 2000 for a drafter); "
        "may be changed on "
        "resuming as long as the learning rate has not begun to decay, which it does over the last 40 %% of the steps",
    )
    length.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="time a few steps first, and choose the number that fits into M minutes (new runs only)",
    )
    parser.add_argument(
        "--batch", type=int, metavar="B", help="sequences per step (default: the recipe's, 4 for the bundled model)"
    )
    parser.add_argument(
        "--length", type=int, metavar="T", help="tokens per sequence (default: the recipe's, 512 for the bundled model)"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="seed of initial parameters and text order (default: 0)")
    parser.add_argument(
        "--mtp-weight",
        type=float,
        metavar="W",
        help="weight of the drafter's loss beside the trunk's (default: 0.2); 0 leaves the drafter untrained",
    )
    parser.add_argument(
        "--head-of",
        type=Path,
        metavar="DIR",
        help="keep the trunk of the run in DIR as it is, and teach its drafter what the trunk says (a new run in "
        "--out); learning rate 1e-3 unless the run exists",
    )
    parser.add_argument(
        "--export",
        type=Path,
        metavar="FILE.gguf",
        help="write the model when training ends; an assistant goes into FILE-assistant.gguf beside it",
    )
    parser.add_argument(
        "--type",
        choices=["q8_0", "f16", "bf16", "f32"],
        default="q8_0",
        help="type of the exported matrices (default: q8_0)",
    )
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
    from specjax.training.run import run as run_recipe
    from specjax.training.run_folder import RunFolder

    if args.export is not None:
        check_output(args.export)
    if args.minutes is not None and args.minutes <= 0:
        raise UsageError(f"--minutes is {args.minutes:g}; it must be positive")
    folder, progress = RunFolder(args.out), Progress()
    if args.drafter is not None:
        return train_drafter(args, folder, progress)
    refuse(args, FOR_DRAFTERS, "that train a drafter: add --drafter")
    start = None if args.head_of is None else RunFolder(args.head_of)
    family = chosen_family(args, folder, start)
    recipe = chosen_recipe(args, folder, family)
    outcome = run_recipe(folder, family.demo_config, recipe, standard_library(), progress, start)
    if not outcome.finished:
        progress.say(f"stopped after step {int(outcome.state.step)}; the same command continues from there")
        return 130
    progress.say(f"finished; curves in {folder.loss_plot}, figures in {folder.report}")
    if args.export is not None:
        for path in export_gguf(folder, args.export, args.type.upper()):
            progress.say(f"wrote {path}")
    return 0


def train_drafter(args: argparse.Namespace, folder: Any, progress: Any) -> int:
    """Train a drafter, and export when asked to. Returns the exit status: 130 when the run was interrupted.

    Raises:
        UsageError: an option is for runs that train a model.
    """
    from specjax.runtime.loading import load
    from specjax.training.corpus import standard_library, text_files
    from specjax.training.drafters.registry import KINDS
    from specjax.training.drafters.run import DrafterRun
    from specjax.training.loop import steps_within
    from specjax.training.recipe import Recipe

    refuse(args, FOR_MODELS, "that train a model, not a drafter")
    refuse(args, ("block",) if args.drafter == "eagle3" else ("draft_steps",), f"of other drafters than {args.drafter}")
    given = {"steps": args.steps, "batch_size": args.batch, "length": args.length, "seed": args.seed}
    given["mtp_steps"] = args.draft_steps
    if args.minutes is not None and folder.description.exists():
        raise UsageError(f"--minutes is for new runs; {args.out} holds one (use --steps)")
    begun = folder.read_recipe() or Recipe(**DRAFTER_RECIPE)
    recipe = replace(begun, **{name: value for name, value in given.items() if value is not None})
    model = load(args.target, need_tokenizer=True)
    corpus = standard_library() if args.text is None else text_files(args.text)
    sizes = {"layers": args.layers, "draft_vocab": args.draft_vocab, "block": args.block}
    training = DrafterRun(KINDS[args.drafter], model, corpus, recipe, **sizes)
    if args.minutes is not None:
        recipe = training.recipe = steps_within(args.minutes, training.task)
    progress.say(f"a {args.drafter} drafter for {model.path}, {recipe.steps} steps; the first one compiles")
    params = training.train(folder, progress)
    if params is None:
        progress.say("stopped; the same command continues from there")
        return 130
    progress.say(f"finished; curves in {folder.loss_plot}, figures in {folder.report}")
    if args.export is not None:
        training.export(params, args.export, args.type.upper())
        progress.say(f"wrote {args.export}")
    return 0


def refuse(args: argparse.Namespace, names: Sequence[str], whose: str) -> None:
    """Raise `UsageError` if an option is given that is for other runs."""
    for name in names:
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is for runs {whose}")


def chosen_family(args: argparse.Namespace, folder: Any, start: Any) -> Any:
    """The family of the folder's run, else of the run that gives the trunk, else the one named or the default.

    Raises:
        UsageError: another one is named than the run has.
    """
    from specjax.training.families.registry import FAMILIES as families

    previous = next((run for run in (folder, start) if run is not None and run.read_recipe() is not None), None)
    if previous is None:
        return families[args.family or DEFAULT_FAMILY]
    family = previous.read_family()
    if args.family not in (None, family.name):
        raise UsageError(f"--family is {args.family}, but {previous.path} holds a run of a {family.name} model")
    return family


def chosen_recipe(args: argparse.Namespace, folder: Any, family: Any) -> Any:
    """The recipe of the folder's run, or the family's, with the settings that the command line names.

    Raises:
        UsageError: `--minutes` for a run that exists already, or `--head-of` for one of a whole model.
        ValueError: a setting out of range.
    """
    from specjax.training.loop import steps_within
    from specjax.training.trainer import ModelTask

    previous = folder.read_recipe()
    if previous is not None and args.minutes is not None:
        raise UsageError(f"--minutes is for new runs; {args.out} holds one of {previous.steps} steps (use --steps)")
    if previous is not None and args.head_of is not None and not previous.head_only:
        raise UsageError(
            f"--head-of starts a new run that trains only a head, but {args.out} holds one of a whole model: choose"
            " another --out, or leave --head-of out to continue that run"
        )
    settings = {
        "steps": args.steps,
        "batch_size": args.batch,
        "length": args.length,
        "seed": args.seed,
        "mtp_weight": args.mtp_weight,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    default = family.recipe
    if args.head_of is not None:
        head = {"steps": DEFAULT_HEAD_STEPS, "learning_rate": 1e-3, "mtp_sequences": default.batch_size}
        default = replace(default, **head, head_only=True)
    recipe = replace(previous or default, **given)
    return recipe if args.minutes is None else steps_within(args.minutes, ModelTask(family.demo_config, recipe))
