"""What is tried of a call: implementations are compiled and compared with the law, and those that agree are timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from pallas_kernels.cases.case import Case, Given
from pallas_kernels.choices import group_of
from pallas_kernels.dispatch import Implementation
from pallas_kernels.measuring.agreement import AGREES, largest_error, numbers
from pallas_kernels.measuring.timing import Effort, Timing, timing
from pallas_kernels.table import made_for

COMPILING, RUNNING = "did not compile", "failed when it ran"


@dataclass(frozen=True)
class Trial:
    """An implementation, and how many microseconds a call takes, or why it is left out; neither before it is tried."""

    impl: str
    microseconds: float | None = None
    left_out: str | None = None

    @property
    def settled(self) -> bool:
        """Whether something was found of it."""
        return self.microseconds is not None or self.left_out is not None


def candidates(case: Case, platform: str) -> list[Implementation]:
    """What can be tried of a call on a platform, the first being what the table takes there.

    Kernels for prompts are left out of calls of few rows: compiling them takes time, and they are slower there.
    """
    of_prompts = group_of(case.dims).get("many", True)
    fitting = [
        each
        for each in tried(case, platform)
        if each.unfit(case.dims) is None and (of_prompts or not each.name.endswith("_prefill"))
    ]
    return sorted(fitting, key=lambda each: platform not in each.platforms)


def tried(case: Case, platform: str) -> list[Implementation]:
    """The implementations that are made for a platform: no interpreters, no reference."""
    return [
        each
        for each in case.operation.implementations
        if platform in made_for(each.name) and each.name != "reference" and not each.name.endswith("_interpret")
    ]


class Failure(Exception):
    """An implementation cannot be used; the message says why."""


def prepared(case: Case, settled: Iterable[str], effort: Effort, ready: dict[str, Timing]) -> Iterator[Trial]:
    """Compile the implementations of a call that are not settled yet, and compare them with the law.

    Args:
        ready: takes those that agree.

    Yields:
        Each one before it is tried, and those that are left out.

    Raises:
        RuntimeError: the law itself cannot be computed here, or no memory is left.
    """
    some = [each for each in candidates(case, jax.default_backend()) if each.name not in settled]
    material = material_of(case, effort)
    given = material[0]
    poisoned, finite = jax.jit(case.cruel)(given) if case.cruel else (given, given)
    checks = [("random", given, given), ("cruel", poisoned, finite)][: 2 if case.cruel else 1]
    judged = jax.jit(case.judged)
    wanted = [numbers(case.wanted(*twins)) for _, *twins in checks]
    for each in some:
        yield Trial(each.name)
        try:
            program = _compiled(partial(_program, case, each.name, given))
            for (name, cruel, harmless), want in zip(checks, wanted, strict=True):
                _compare(program, judged, name, harmless if each.reads_all else cruel, want)
            ready[each.name] = _compiled(partial(timing, case, each.name, material, effort))
        except Failure as failure:
            yield Trial(each.name, left_out=str(failure))


def timed(case: Case, ready: Mapping[str, Timing], effort: Effort) -> Iterator[Trial]:
    """Time what `prepared` found to agree: yields each before it is timed, and after it."""
    material = [case.in_use(given) for given in material_of(case, effort)] if ready else []
    for index, (name, run) in enumerate(ready.items()):
        yield Trial(name)
        try:
            if index == 0:
                run(material)  # a device that was idle is slow at first
            yield Trial(name, microseconds=round(run(material) * 1e6, 2))
        except Exception as error:  # whatever a device says
            _not_for_want_of_memory(error)
            yield Trial(name, left_out=f"{RUNNING}, many times in a row: {line_of(error)}")


def material_of(case: Case, effort: Effort) -> list[Given]:
    """Copies of what calls use."""
    return [case.make(seed) for seed in range(effort.copies_of(case))]


def _program(case: Case, impl: str, given: Given) -> jax.stages.Compiled:
    return jax.jit(partial(case.call, impl)).lower(given).compile()


def _compiled(compile_it: Callable[[], Any]) -> Any:
    try:
        return compile_it()
    except Exception as error:  # whatever a compiler says
        _not_for_want_of_memory(error)
        raise Failure(f"{COMPILING}: {line_of(error)}") from error


def _compare(program: Any, judged: Any, name: str, given: Given, want: list[np.ndarray]) -> None:
    try:
        got = numbers(judged(given, program(given)))
    except Exception as error:  # whatever a device says
        _not_for_want_of_memory(error)
        raise Failure(f"{RUNNING}, on {name} input: {line_of(error)}") from error
    if not (off := largest_error(got, want)) <= AGREES:
        raise Failure(f"results differ by {off:.0e} on {name} input, where {AGREES:.0e} is accepted")


def _not_for_want_of_memory(error: Exception) -> None:
    """Others may hold the memory now: then it is the call that cannot be measured, and no implementation's fault."""
    if "RESOURCE_EXHAUSTED" in str(error):
        raise error


def line_of(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
