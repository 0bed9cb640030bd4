"""`python -m pallas_kernels.tune`: time the configurations of kernels on this device and keep the fastest."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from pallas_kernels.measuring.attempts import Attempts
from pallas_kernels.measuring.contest import Contest
from pallas_kernels.table import Dims
from pallas_kernels.tuning import (
    FOLDER_VARIABLE,
    Tunable,
    device_kind,
    file_of,
    read,
    same_call,
    tunables,
    write,
)

EPILOG = f"""\
The fastest configuration for each set of sizes is written to a file per kind of device: in the folder that
{FOLDER_VARIABLE} names, or else in the package. Programs of other processes use it from then on, for these very sizes.

A run goes on where the one before it ended: sizes whose winner in the file was measured with this version of jax are
known. A configuration counts if its results agree with those of the rule. What makes a run hang or crash is named in a
file *.trying beside the winners, and left out by later runs. After a crash that may be the run after the next: of what
was compiled side by side, the next finds out which it was.

examples:
  python -m pallas_kernels.tune --dry-run
  python -m pallas_kernels.tune --operation hadamard --shapes N=128,rows=4096 --shapes N=256,rows=4096
"""
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pallas_kernels.tune",
        description="Time the configurations of kernels on this device and keep the fastest.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--operation", action="append", metavar="NAME", help="only this one; can be repeated")
    parser.add_argument("--impl", action="append", metavar="NAME", help="only this implementation; can be repeated")
    parser.add_argument(
        "--shapes", action="append", metavar="A=1,B=2", help="these sizes in place of the usual; can be repeated"
    )
    parser.add_argument(
        "--anew", action="store_true", help="measure also what is known, and try also what hung or crashed before"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be timed")
    parser.add_argument(
        "--seconds", type=float, default=0.2, metavar="S", help="to spend on a configuration at least (default: 0.2)"
    )
    args = parser.parse_args(argv)
    if not 0 < args.seconds < math.inf:
        parser.error(f"--seconds is {args.seconds}; accepted: a number above 0")
    try:
        return _tune(args)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def _tune(args: argparse.Namespace) -> int:
    platform, kind = jax.default_backend(), device_kind()
    path = file_of(kind)
    _say(f"device: {kind}, jax {jax.__version__}; winners go to {path}")
    # A broken file or a folder that cannot be written are to be seen before the work.
    before = read(path, kind)
    winners = {same_call(winner): winner for winner in before.winners}
    attempts = Attempts(path.with_suffix(".trying"))
    if not args.dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise ValueError(f"{path.parent} is not writable; name another folder in {FOLDER_VARIABLE}")
    chosen = _chosen(args.operation, args.impl)
    here = [tunable for tunable in chosen if platform in tunable.platforms]
    for tunable in chosen:
        if tunable not in here:
            _say(f"cannot be timed here: {_name(tunable)} (runs on {', '.join(sorted(tunable.platforms))})")
    work = list(_shapes(here, args.shapes))
    if not work:
        _say("nothing to tune on this device")
        return 0
    done = known = failed = 0
    try:
        for number, (tunable, dims) in enumerate(work, 1):
            _say(f"[{number}/{len(work)}] {_name(tunable)} {_values(dims)}")
            found = winners.get(tunable.call(dims))
            if found is not None and found.jax == jax.__version__ and not args.anew:
                _say(f"  {found.microseconds:12.2f} us  {found.config}  (known; --anew measures it again)")
                known += 1
                continue
            contest = Contest(tunable, dims, args.seconds, attempts, _say)
            if args.dry_run:
                for config in contest.configs:
                    _say(f"  would time {config}")
                continue
            winner = contest.winner(anew=args.anew)
            if winner is None:
                failed += 1
                continue
            winners[same_call(winner)] = winner
            write(path, replace(before, winners=list(winners.values())))
            done += 1
    except KeyboardInterrupt:
        _say(f"interrupted: {_kept(done, known, work, path, len(winners))}")
        return INTERRUPTED
    if not args.dry_run:
        _say(_kept(done, known, work, path, len(winners)))
    return FAILED if failed else 0


def _chosen(operations: list[str] | None, impls: list[str] | None) -> list[Tunable[Any]]:
    known = tunables()
    for given, accepted in ((operations, {name for name, _ in known}), (impls, {name for _, name in known})):
        if wrong := sorted(set(given or ()) - accepted):
            raise ValueError(f"{wrong[0]!r} has nothing to tune; accepted: {', '.join(sorted(accepted))}")
    return [
        tunable
        for (operation, impl), tunable in sorted(known.items())
        if operation in (operations or [operation]) and impl in (impls or [impl])
    ]


def _shapes(tunables: Sequence[Tunable[Any]], texts: list[str] | None) -> Iterator[tuple[Tunable[Any], Dims]]:
    if texts is None:
        yield from ((tunable, dims) for tunable in tunables for dims in tunable.shapes)
        return
    for text in texts:
        dims = _parsed(text)
        fitting = [tunable for tunable in tunables if set(tunable.shapes[0]) == set(dims)]
        if tunables and not fitting:
            accepted = "; ".join(f"{_name(tunable)} {','.join(tunable.shapes[0])}" for tunable in tunables)
            raise ValueError(f"--shapes {text}: no kernel has these axes; accepted: {accepted}")
        for tunable in fitting:
            for axis, example in tunable.shapes[0].items():
                if type(dims[axis]) is not type(example) or dims[axis] in (0, ""):
                    kind = "a name" if isinstance(example, str) else "an integer, at least 1"
                    raise ValueError(f"--shapes {text}: {axis} is {dims[axis]!r}; accepted: {kind}")
        yield from ((tunable, dims) for tunable in fitting)


def _parsed(text: str) -> Dims:
    dims: dict[str, Any] = {}
    for part in text.split(","):
        axis, equals, size = part.partition("=")
        if not (axis and equals and size):
            raise ValueError(f"--shapes {text}: {part!r} is not of the form AXIS=SIZE")
        dims[axis.strip()] = int(size) if size.strip().isdigit() else size.strip()
    return dims


def _kept(done: int, known: int, work: Sequence[Any], path: Path, winners: int) -> str:
    return f"{done} of {len(work)} sets of sizes measured, {known} known before; {path} holds {winners} winners"


def _name(tunable: Tunable[Any]) -> str:
    return f"{tunable.operation} {tunable.impl}"


def _values(dims: Dims) -> str:
    return " ".join(f"{axis}={size}" for axis, size in dims.items())


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
