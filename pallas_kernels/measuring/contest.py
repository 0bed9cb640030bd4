"""The configurations of a kernel against each other: compiled side by side, compared, and timed one after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from pallas_kernels.measuring.agreement import AGREES, largest_error, numbers
from pallas_kernels.measuring.attempts import Attempts
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable, Winner

THREADS = max(1, min(8, (os.cpu_count() or 1) // 2))
"""Configurations that are compiled at the same time."""
PATIENCE = 60.0
"""Seconds after which a configuration that is still compiled is named; who interrupts it then says that it hangs."""
BATCHES = 5


@dataclass(frozen=True)
class Contest:
    """The configurations of a kernel for some sizes.

    Attributes:
        tunable, dims: the kernel and the sizes.
        seconds: to spend on timing a configuration at least.
        attempts: knows what is being tried.
        say: takes lines for people.
    """

    tunable: Tunable[Any]
    dims: Dims
    seconds: float
    attempts: Attempts
    say: Callable[[str], None]

    @property
    def configs(self) -> Sequence[Any]:
        """The rule's proposal first, then the others."""
        return list(dict.fromkeys([self.tunable.heuristic(self.dims), *self.tunable.candidates(self.dims)]))

    def winner(self, *, anew: bool) -> Winner | None:
        """The fastest of those whose results agree with the rule's, or with the first that works; None if none works.

        Args:
            anew: try also what processes before this one never got past.
        """
        tried = [each for each in self.configs if anew or not self._guilty(each)]
        example = self.tunable.example(self.dims)
        times: dict[Any, float] = {}
        first: tuple[Any, list[np.ndarray]] | None = None
        for config, compiled in self._compiled(tried, example).items():
            with self._trying(config):
                program = compiled.result()
                got = numbers(program(*example))
                judge, wanted = first = first or (config, got)
                if not (off := largest_error(got, wanted)) <= AGREES:
                    why = f"its results differ by {off:.0e} from those of {judge}"
                    self._say("left out", f"{config}: {why}, where {AGREES:.0e} is accepted")
                    continue
                times[config] = microseconds(program, example, self.seconds)
                rule = "  (the rule)" if config == self.tunable.heuristic(self.dims) else ""
                self.say(f"  {times[config]:12.2f} us  {config}{rule}")
        if not times:
            self.say("  no configuration runs")
            return None
        best = min(times, key=lambda config: times[config])
        names = self.tunable.operation, self.tunable.impl
        return Winner(*names, dict(self.dims), best, round(times[best], 3), jax.__version__)

    def _compiled(self, configs: Sequence[Any], example: tuple[Any, ...]) -> dict[Any, Future[jax.stages.Compiled]]:
        """All that can be lowered, when they are compiled or have failed: compilers use the device that times."""
        compiled: dict[Any, Future[jax.stages.Compiled]] = {}
        alone = any(self._name(config) in self.attempts.suspects for config in configs)
        pool = ThreadPoolExecutor(THREADS)
        try:
            for config in configs:
                self._say("compiling", str(config))
                # Lowering is Python, which threads do not make faster, and not all of it is known to bear them.
                lowered = None
                with self._trying(config):
                    lowered = jax.jit(partial(self.tunable.run, config=config)).lower(*example)
                if lowered is not None:
                    compiled[config] = pool.submit(self._compile, config, lowered)
                if alone:
                    self._await(compiled)
            self._await(compiled)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            self.attempts.forgive(PATIENCE)
            raise
        finally:
            pool.shutdown()
        return compiled

    def _await(self, compiled: Mapping[Any, Future[jax.stages.Compiled]]) -> None:
        while wait(compiled.values(), PATIENCE).not_done:
            for config in [each for each, future in compiled.items() if future.running()]:
                self._say("still", f"compiling {config}")

    def _compile(self, config: Any, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        with self.attempts.trying(self._name(config)):
            return lowered.compile()

    @contextmanager
    def _trying(self, config: Any) -> Iterator[None]:
        """What a compiler or a device refuses is a result like others, and said."""
        try:
            with self.attempts.trying(self._name(config)):
                yield
        except Exception as error:
            self._say("refused", f"{config}: {(str(error).splitlines() or [type(error).__name__])[0]}")

    def _guilty(self, config: Any) -> bool:
        found = self._name(config) in self.attempts.guilty
        if found:
            self._say("left out", f"{config}: a run that tried it hung or crashed; --anew tries it again")
        return found

    def _name(self, config: Any) -> str:
        return f"jax {jax.__version__}: {self.tunable.call(self.dims)} {config}"

    def _say(self, what: str, about: str) -> None:
        self.say(f"  {what:>12}     {about}")


def microseconds(program: Callable[..., Any], example: tuple[Any, ...], seconds: float) -> float:
    """Per call, the median of several batches of calls that are queued one after the other."""

    def batch(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls - 1):
            program(*example)
        jax.block_until_ready(program(*example))
        return time.perf_counter() - start

    batch(1)
    calls = max(1, int(seconds / BATCHES / max(batch(1), 1e-7)))
    return sorted(batch(calls) for _ in range(BATCHES))[BATCHES // 2] / calls * 1e6
