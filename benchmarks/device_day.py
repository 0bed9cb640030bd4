"""A day with a device in one command: slices of under ten minutes, each of which leaves its results.

    python benchmarks/device_day.py gpu --out day          # or tpu; cpu runs small sizes, to try this script
    python benchmarks/device_day.py gpu --out day --list   # what there is to do, and what is done
    python benchmarks/device_day.py gpu --out day          # again: goes on with what has not passed

Every slice is a command in a process of its own, with a limit of time. What it printed lies in OUT/NAME.log, and its
figures in OUT/NAME.json. After each slice OUT/day.json and OUT/day.md are written anew: what passed, and all figures,
also the block sizes and choices that were found. Ctrl-C, or a connection that breaks, ends the slice that runs.
This process never opens the device, which may belong to one process at a time.

| slice | what it finds |
| --- | --- |
| device | what the device is; nothing else is done if there is none, or another one than before |
| tune-* | block sizes, kept in SPECJAX_TUNED or in the package |
| choices | which implementations are the fastest, compared with the reference; kept there too |
| kernels-* | times of kernels against XLA, kernels of others where they are installed, and the rate of copies |
| model-* | steps of models with random weights in released shapes, by `specjax bench`, and how near they come to the
least time, by roofline.py; and steps of llama.cpp, if LLAMA_BENCH names a llama-bench that was built for the device |

All slices take two to two and a half hours at most. Models need 20 GB in the folder, and a device with 32 GB.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from day_page import page
from day_slices import LLAMA_BENCH, MODELS, ROOT, Slice, device, slices

LAST_WORDS = 10
"""Seconds in which a slice whose time is over can tidy up."""
DONE = 0, 1
"""Statuses of commands that have come to their end."""


@dataclass(frozen=True)
class Outcome:
    """What came of a slice.

    Attributes:
        status: "passed", "failed", "out of time" or "interrupted".
        seconds: that it took.
        said: the end of what it printed.
        ended: when, in seconds of the epoch.
    """

    status: str
    seconds: float
    said: str
    ended: float


class Day:
    """What has been done in a folder, and what is left."""

    def __init__(self, platform: str, out: Path) -> None:
        """
        Args:
            platform: "gpu", "tpu" or "cpu".
            out: the folder of all results.
        """
        self.out = out
        self.work = [device(platform), *slices(platform, out)]
        self.outcomes: dict[str, Outcome] = {}
        with suppress(AttributeError, KeyError, TypeError):  # of a file that something else has written
            found = self.figures_of("day")["slices"].items()
            self.outcomes = {name: Outcome(**outcome) for name, outcome in found}

    def figures_of(self, name: str) -> Any:
        """What a slice has found; None if there is nothing whole."""
        with suppress(OSError, ValueError):
            return json.loads((self.out / f"{name}.json").read_text())
        return None

    def status(self, each: Slice) -> str:
        """What came of a slice; "to do", or "to do again" because something it depends on has changed."""
        if (outcome := self.outcomes.get(each.name)) is None:
            return "to do"
        later = (
            name
            for name, other in self.outcomes.items()
            if name.startswith(each.after or ("-",)) and other.status == "passed" and other.ended > outcome.ended
        )
        return "to do again" if outcome.status == "passed" and any(later) else outcome.status

    def do(self, each: Slice, lock: IO[str]) -> Outcome:
        """Do a slice, and write all results. Figures from before stay if it finds none."""
        own, before = self.out / f"{each.name}.json", self.out / f"{each.name}.before"
        if self.status(each) in ("passed", "to do again") and own.exists():
            own.replace(before)  # else it would go on with them
        outcome = self.outcomes[each.name] = Outcome("interrupted", 0, "", 0)
        try:
            outcome = run(each, self.out, lock)
        finally:
            if before.exists():
                before.unlink() if own.exists() else before.replace(own)
            self.outcomes[each.name] = outcome
            self.write()
        return outcome

    def write(self) -> None:
        """All results as one JSON, and as tables."""
        names = [*self.outcomes, *(path.stem for path in sorted(self.out.glob("llama.cpp-*.json")))]
        found = {name: figures for name in names if (figures := self.figures_of(name)) is not None}
        found |= {path.stem: path.read_text() for path in sorted(self.out.glob("roofline-*.txt"))}
        with suppress(OSError, ValueError, KeyError):
            found["tuned"] = json.loads(Path(found["device"]["tuned"]).read_text())
        outcomes = {name: asdict(outcome) for name, outcome in self.outcomes.items()}
        for name, text in (
            ("day.json", json.dumps({"slices": outcomes, "figures": found}, indent=1)),
            ("day.md", page(outcomes, found)),
        ):
            temporary = self.out / f"{name}.part"
            temporary.write_text(text + "\n")
            temporary.replace(self.out / name)


def run(each: Slice, out: Path, lock: IO[str]) -> Outcome:
    """Run a slice; what it leaves lies in the folder.

    Args:
        lock: stays locked until the slice has ended, also if this process is killed.
    """
    begin, log, output = time.monotonic(), out / f"{each.name}.log", out / f"{each.name}.part"
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    status, attempts = "failed", 0
    with log.open("w") as errors:
        while status == "failed" and attempts < each.attempts:
            attempts += 1
            with output.open("w") as printed:
                with _heard_interrupts():
                    process = subprocess.Popen(
                        each.command,
                        cwd=ROOT,
                        stdout=printed if each.figures else errors,
                        stderr=errors,
                        env={**os.environ, "PYTHONPATH": paths},
                        start_new_session=True,
                        pass_fds=[lock.fileno()],
                    )
                try:
                    code = process.wait(max(0.0, begin + each.limit - time.monotonic()))
                except subprocess.TimeoutExpired:
                    status = "out of time"
                    break
                finally:
                    if process.poll() is None:
                        _end(process)
            if code == 0:
                status = "passed"
            if code in DONE:
                break
    if each.figures and status == "passed":
        output.replace(out / f"{each.name}.json")
    output.unlink(missing_ok=True)
    said = log.read_text(errors="replace").strip().splitlines()[-3:]
    return Outcome(status, round(time.monotonic() - begin, 1), "\n".join(said), time.time())


@contextmanager
def _heard_interrupts() -> Iterator[None]:
    """What is started here hears them. A program in the background of a script ignores them, and so would that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(process: subprocess.Popen) -> None:
    """As Ctrl-C does, so that it can tidy up; what does not listen is killed."""
    os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(LAST_WORDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def locked(out: Path) -> Iterator[IO[str]]:
    """The folder's lock. SystemExit if another process works there: two would time each other's work."""
    with (out / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"another device_day.py, or a slice that it has begun, still runs in {out}; wait for it or end it")
        yield lock


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _same_device(day: Day, lock: IO[str]) -> None:
    """Look what the device is. SystemExit if there is none, or if the folder has results of another."""
    before = day.figures_of("device")
    outcome = day.do(day.work[0], lock)
    if outcome.status != "passed":
        sys.exit(f"device: {outcome.status}: {outcome.said}")
    now = day.figures_of("device")
    print(f"device: {now['machine']}", flush=True)
    if before is not None and (before["platform"], before["device"]) != (now["platform"], now["device"]):
        (day.out / "device.json").write_text(json.dumps(before))
        day.write()
        sys.exit(f"{day.out} has results of {before['device']}, and this is {now['device']}: give another --out")


def main() -> int:
    """Do what is left; returns 1 if a slice has not passed, and 130 if it was interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("platform", choices=list(MODELS))
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for all results")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="slices that begin so, also if they have passed"
    )
    parser.add_argument("--list", action="store_true", help="say what there is to do")
    args = parser.parse_args()
    if (llama := os.environ.get(LLAMA_BENCH)) and shutil.which(llama) is None:
        parser.error(f"{LLAMA_BENCH} is {llama!r}, which is no program")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {args.out}: {error.strerror}")
    day = Day(args.platform, args.out.absolute())
    wanted = [each for each in day.work if not args.only or each.name.startswith(tuple(args.only))]
    if not wanted:
        parser.error(
            f"--only {' '.join(args.only)}: there is no such slice; there are {', '.join(e.name for e in day.work)}"
        )
    if args.list:
        for each in day.work:
            print(f"{each.name:<24} {day.status(each):<12} {' '.join(map(str, each.command))}")
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup has SIGHUP ignored
            signal.signal(number, _interrupt)
    try:
        with locked(day.out) as lock:
            _same_device(day, lock)
            for each in wanted:
                if each is day.work[0] or (not args.only and day.status(each) == "passed"):
                    continue
                print(f"{each.name}, at most {each.limit:.0f} s ...", end=" ", flush=True)
                outcome = day.do(each, lock)
                print(f"{outcome.status}, {outcome.seconds} s", flush=True)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on with what has not passed")
        return 130
    left = {name: outcome for name, outcome in day.outcomes.items() if outcome.status != "passed"}
    for name, outcome in left.items():
        print(f"{name}: {outcome.status}: {outcome.said}")
    return min(len(left), 1)


if __name__ == "__main__":
    sys.exit(main())
