"""Options that several commands share, and how they are read."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specjax.cli.runtime import UsageError, say

if TYPE_CHECKING:
    from specjax.runtime.model import Model
    from specjax.runtime.options import GenerateOptions

DTYPES = ("float32", "bfloat16", "float16")
PACKED = ("a16", "a8", "off")
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "turbo2", "turbo3", "turbo4")
SAMPLING = ("top_k", "top_p", "min_p")
DRAFTING = ("draft_n_min", "draft_p_min", "draft_skip_streak")


def add_command(
    subparsers: Any, name: str, help: str, description: str, epilog: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """Add a command to the program's parser; `run` runs it and returns the exit status."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = subparsers.add_parser(name, help=help, description=description, epilog=epilog, formatter_class=formatter)
    parser.set_defaults(run=run)
    return parser


def add_model_options(parser: argparse.ArgumentParser, *, positional: bool = False) -> None:
    """--model (or MODEL by its position), --dtype, --packed, --place, --mesh and its hosts, --kernels."""
    name: dict[str, Any] = {"dest": "model", "nargs": "?"} if positional else {}
    parser.add_argument(
        *(() if positional else ("--model",)),
        **name,
        type=Path,
        metavar="FILE|DIR",
        help="a GGUF file, a folder with Hugging Face safetensors, or the name of a model on the Hugging Face hub, such"
        " as Qwen/Qwen3.5-4B (default: the bundled model)",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="type of weight matrices that are not packed (default: float32)",
    )
    parser.add_argument(
        "--packed",
        choices=PACKED,
        default="a16",
        help="quantized weights stay as the file packs them, and are multiplied with activations rounded to 16 bits or"
        " to 8 (faster, less exact, as llama.cpp does); off decodes them to --dtype (default: a16)",
    )
    parser.add_argument(
        "--place",
        action="append",
        default=[],
        metavar="REGEX=PLACE",
        help="where parameters lie whose path the expression is found in (specjax inspect --tensors shows the paths; a"
        " draft model's begin with draft.): a device such as cpu:0 or gpu:1, a memory such as pinned_host, which is"
        " host memory, or gpu:1/pinned_host; can be repeated, the first rule that matches decides",
    )
    parser.add_argument(
        "--mesh",
        metavar="ROWSxMODEL",
        help="devices that share the work, such as 1x4: the model is split into MODEL parts, and the texts of a"
        " batch over ROWS (default: one device)",
    )
    parser.add_argument(
        "--exact",
        action="store_true",
        help="logits do not depend on --mesh, bit by bit; devices send each other more",
    )
    add_host_options(parser)
    parser.add_argument(
        "--kernels",
        metavar="SPEC",
        help="auto, by device and sizes: what is fastest is measured at first use of a model on a GPU or TPU, and"
        " remembered; measure, measure anew, also on a CPU; xla, plain XLA only; or pairs such as"
        " gated_delta.verify=xla_recurrent,matmul.packed=xla_dequant (default: what SPECJAX_KERNELS says, or auto)",
    )


def add_host_options(parser: argparse.ArgumentParser) -> None:
    """--coordinator, --processes and --process, see `specjax.cli.hosts`."""
    hosts = parser.add_argument_group(
        "several hosts", "the same command in each process; --mesh is of all their devices, and process 0 speaks"
    )
    hosts.add_argument(
        "--coordinator",
        metavar="HOST:PORT|auto",
        help="where the processes meet: an address of process 0 and a free port there; auto asks SLURM, Open MPI, Cloud"
        " TPU or GKE, also for the two numbers (default: one process)",
    )
    hosts.add_argument("--processes", type=int, metavar="N", help="how many processes there are")
    hosts.add_argument("--process", type=int, metavar="I", help="which of them this one is, from 0")


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    """Add --prompt, --prompt-file and --tokens, of which one may be given."""
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="text to continue")
    prompt.add_argument(
        "--prompt-file", metavar="F", help="continue the text of a file, taken as it is; - is the standard input"
    )
    prompt.add_argument("--tokens", type=token_ids, metavar="1,2,3", help="continue these token ids")


def add_decoding_options(
    parser: argparse.ArgumentParser, *, most_tokens: str = "128", temperature: str = "0", own: bool = True, **draft: Any
) -> None:
    """Everything that `GenerateOptions` holds.

    Args:
        most_tokens, temperature: what the help says of the defaults of these.
        own: whether there are --seed and --logprobs, which are no defaults for the texts of others.
        draft: other settings of the option --draft.
    """
    decoding = parser.add_argument_group("decoding")
    decoding.add_argument(
        "--max-tokens", type=int, metavar="N", help=f"tokens to generate at most (default: {most_tokens})"
    )
    decoding.add_argument("--ignore-eos", action="store_true", help="go on after a token that ends the text")
    decoding.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        help="end the text before this string, wherever it stands in it; can be repeated",
    )
    decoding.add_argument(
        "--json-schema",
        type=schema_text,
        metavar="FILE|TEXT",
        help="the text is JSON that this schema allows: a file, or the schema itself, which begins with {",
    )
    decoding.add_argument("--regex", metavar="R", help="the text is one that this expression matches as a whole")
    decoding.add_argument(
        "--grammar-after", metavar="TOKEN", help="the schema or the expression holds after this token, such as </think>"
    )
    decoding.add_argument(
        "--logit-bias",
        action="append",
        type=token_bias,
        metavar="TOKEN=X",
        help="add X to the logit of a token, which is given by its id; -100 is as good as never; can be repeated",
    )
    decoding.add_argument(
        "--presence-penalty", type=float, metavar="X", help="take X off the logits of tokens that the text has already"
    )
    decoding.add_argument(
        "--frequency-penalty", type=float, metavar="X", help="take X off them as often as the text has the token"
    )
    if own:
        decoding.add_argument(
            "--logprobs",
            type=int,
            metavar="N",
            help="also report the log-probability of each token, and of the N most probable ones there (in JSON)",
        )
    decoding.add_argument("--kv-type-k", choices=KV_TYPES, help="how keys are kept in KV caches (default: f32)")
    decoding.add_argument("--kv-type-v", choices=KV_TYPES, help="how values are kept (default: f32)")

    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--temperature", type=float, metavar="T", help=f"0 is greedy (default: {temperature})")
    sampling.add_argument("--top-k", type=int, metavar="K", help="draw from the K most probable tokens (0: all)")
    sampling.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the smallest set of probability P (1: all)"
    )
    sampling.add_argument("--min-p", type=float, metavar="P", help="leave out tokens below P times the best (0: none)")
    if own:
        sampling.add_argument("--seed", type=int, metavar="S", help="seed of all random draws (default: 0)")

    drafting = parser.add_argument_group("drafting")
    drafting.add_argument(
        "--drafter",
        action="append",
        metavar="FILE|DIR|ngram|mtp",
        help="what drafts: a drafter made for the model (an assistant, EAGLE-3, DFlash, DSpark), a small model with the"
        " same vocabulary, ngram, which looks up what followed the last tokens before, or mtp, the model's own MTP"
        " head; can be repeated, and the first one that has drafts for a text serves it, in each round (default: mtp,"
        " if the model has it)",
    )
    drafting.add_argument(
        "--draft-vocab",
        type=draft_vocabulary,
        metavar="FILE|N",
        help="the drafter scores only these tokens of the model's, which makes drafts cheaper: a file that specjax"
        " vocabulary wrote, or the N lowest ids; special tokens are always among them (default: all)",
    )
    one_number: dict[str, Any] = {
        "type": draft_count,
        "metavar": "K|auto",
        "help": "tokens to draft in a round, at most 15; 0 is plain decoding; auto finds the fastest number, 0 to 8,"
        " while decoding (default: 3 if there is a drafter)",
    }
    drafting.add_argument("--draft", **(one_number | draft))
    drafting.add_argument(
        "--draft-by",
        action="append",
        metavar="NAME",
        help="of several drafters the one that drafts: ngram, mtp, or the name of its file; can be repeated. The others"
        " are kept up, for prompts or requests that name them (default: all)",
    )
    drafting.add_argument(
        "--accept",
        choices=("rejection", "block", "coupled"),
        help="when sampling: rejection and block keep the distribution, and block, which judges the drafts of a round"
        " together, accepts more; coupled gives the very tokens of plain sampling with the same seed (default:"
        " rejection)",
    )
    drafting.add_argument("--draft-n-min", type=int, metavar="N", help="drop drafts shorter than N (default: 0)")
    drafting.add_argument(
        "--draft-p-min", type=float, metavar="P", help="stop drafting when the head is less sure than P (default: 0)"
    )
    drafting.add_argument(
        "--draft-skip-streak",
        type=int,
        metavar="S",
        help="after S rounds in a row without an accepted draft, skip drafting for a round (default: 0, never)",
    )
    drafting.add_argument(
        "--rollback",
        choices=("snapshot", "replay", "auto"),
        help="how rejected tokens leave the recurrent state (default: auto, the faster one)",
    )


def draft_count(text: str) -> int | str:
    """One of the values of --draft: a number, or "auto"."""
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError as error:
        hint = "a number of drafts or auto is, and a model's path goes before the options"
        raise argparse.ArgumentTypeError(f"{text!r} is not what --draft takes: {hint}") from error


def draft_vocabulary(text: str) -> int | Path:
    """One of the values of --draft-vocab: a number, or a path."""
    return int(text) if text.isdecimal() else Path(text)


def schema_text(text: str) -> str:
    """The value of --json-schema: the schema as text."""
    if text.lstrip().startswith("{"):
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"cannot read the schema {text}: {error}") from error


def token_bias(text: str) -> tuple[int, float]:
    """One of the values of --logit-bias: an id, and what is added."""
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not an id and a number like 42=-100") from error


def token_ids(text: str) -> list[int]:
    """Token ids from a text such as "1,2,3"."""
    try:
        return [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of token ids like 1,2,3") from error


def generate_options(args: argparse.Namespace) -> GenerateOptions:
    """The decoding options of a command line.

    Raises:
        ValueError: an option is out of its range, or options contradict each other.
    """
    from specjax.runtime.options import GenerateOptions

    values = {field.name: getattr(args, field.name, None) for field in fields(GenerateOptions)}
    given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    idle = [_flag(name) for name in SAMPLING if name in given]
    if idle and not given.get("temperature"):
        warnings.warn(f"{', '.join(idle)}: no effect on greedy decoding; give a --temperature to sample", stacklevel=2)
    return GenerateOptions(**{**given, "draft": _draft_option(args)})


def _draft_option(args: argparse.Namespace) -> Any:
    from specjax.decoding.settings import DraftConfig
    from specjax.runtime.options import AUTO_DRAFTS, DEFAULT_DRAFTS

    given = {name: getattr(args, name) for name in DRAFTING if getattr(args, name) is not None}
    if not given:
        return args.draft
    if args.draft == 0:
        raise UsageError(f"{', '.join(map(_flag, given))}: of no use with --draft 0, which does not draft")
    n_max = {None: DEFAULT_DRAFTS, "auto": AUTO_DRAFTS}.get(args.draft, args.draft)
    others = {name.removeprefix("draft_"): value for name, value in given.items()}
    return DraftConfig(n_max=n_max, auto=args.draft == "auto", **others)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def read_prompt(args: argparse.Namespace) -> str | list[int] | None:
    """The prompt as the command line gives it: text, token ids, or None.

    Raises:
        OSError: the file cannot be read.
        UsageError: its contents are not UTF-8.
    """
    if args.prompt_file is None:
        return args.tokens if args.prompt is None else args.prompt
    data = standard_input(args) if args.prompt_file == "-" else Path(args.prompt_file).read_bytes()
    try:
        return data.decode("utf-8")  # not as text files are read, which turns \r\n into \n
    except UnicodeDecodeError as error:
        raise UsageError(f"{args.prompt_file} is not UTF-8 text: {error}") from error


def standard_input(args: argparse.Namespace) -> bytes:
    """All that comes from there. Of several processes the first one reads it, and tells the others."""
    if getattr(args, "coordinator", None) is None:
        return sys.stdin.buffer.read()
    from specjax.mesh.hosts import agreed, is_first

    return agreed(sys.stdin.buffer.read().decode("latin-1") if is_first() else "").encode("latin-1")


def load_model(args: argparse.Namespace, *, need_tokenizer: bool) -> Model:
    """The model of the command line, with the drafter it names."""
    from specjax.cli.progress import byte_progress
    from specjax.cli.slow_products import slow_products
    from specjax.runtime.loading import load
    from specjax.runtime.placement import summary

    quiet = getattr(args, "quiet", False)
    with byte_progress("loading", quiet=quiet) as progress:
        model = load(
            args.model,
            drafter=getattr(args, "drafter", None),  # commands that do not decode have none
            draft_vocab=getattr(args, "draft_vocab", None),
            dtype=args.dtype,
            packed=None if args.packed == "off" else args.packed,
            place=args.place,
            mesh=getattr(args, "mesh", None),
            exact=getattr(args, "exact", False),
            need_tokenizer=need_tokenizer,
            progress=progress,
        )
    if not quiet:
        if args.place:
            say(f"placed {summary(model.params)}")
        if why := slow_products(model, args.kernels):
            say(f"quantized weights are decoded anew for every product, which is slow: {why} (--packed off: once)")
    return model


def check_output(path: Path) -> None:
    """Say early that a file cannot be written, before hours have been spent on its contents.

    Raises:
        UsageError: the folder does not exist or is not writable, or the path is something else than a file.
    """
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {folder}")
    if path.exists() and not path.is_file():
        raise UsageError(f"cannot write {path}: it exists and is not a file")
    # Files are replaced by renaming, which is a change of the folder; of a link, that of the file that it leads to.
    if not os.access(path.resolve().parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UsageError(f"cannot write {path}: permission denied")
