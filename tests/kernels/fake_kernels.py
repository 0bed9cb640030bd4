"""An operation whose implementations go wrong in all ways, for a worker to meet: x times two."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from pallas_kernels.cases.case import Case, Given, Outcome
from pallas_kernels.dispatch import Implementation, Operation, choose
from pallas_kernels.random_numbers import normal
from pallas_kernels.table import ANYWHERE, BY_NAME, Dims


def _doubled(x: Array) -> Array:
    return 2 * x


def _rounds_of_work(rounds: int) -> Callable[[Array], Array]:
    return lambda x: lax.fori_loop(0, rounds, lambda _, y: jnp.sin(y) + y - jnp.sin(y), 2 * x)


def on_host(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Array], Array]:
    """A function of numpy as a kernel."""
    return lambda x: jax.pure_callback(function, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _refused(x: Array) -> Array:
    raise NotImplementedError("no such layout\nand more")


def _abort(x: np.ndarray) -> np.ndarray:
    os.abort()


def _fail(x: np.ndarray) -> np.ndarray:
    raise RuntimeError("an illegal address")


def _killed(x: np.ndarray) -> np.ndarray:
    """As by a system that has no memory left."""
    os.kill(os.getpid(), signal.SIGKILL)
    return x


def _sleep(x: np.ndarray) -> np.ndarray:
    time.sleep(600)
    return x


def _unfit(dims: Dims) -> str | None:
    return "only for widths of 7" if dims["N"] != 7 else None


def _too_large(x: Array) -> Array:
    raise RuntimeError("RESOURCE_EXHAUSTED: out of memory while trying to allocate 5 GB")


def _operation(name: str, *others: Implementation, law: Callable[[Array], Array] = _doubled) -> Operation:
    usual = Implementation("usual", _rounds_of_work(20), ANYWHERE)
    return Operation(name, (usual, *others, Implementation("reference", law)))


def case_of(operation: Operation) -> Callable[[Dims], Case]:
    """From sizes to the case of an operation that doubles x."""

    def case(dims: Dims) -> Case:
        def call(impl: str | None, given: Given) -> Outcome:
            return Outcome(choose(operation, impl, dims).run(given.x))

        def cruel(given: Given) -> tuple[Given, Given]:
            return given._replace(x=given.x.at[0].set(jnp.nan)), given

        def judged(given: Given, outcome: Outcome) -> Array:
            return outcome.results[1:]

        return Case(operation, dims, lambda seed: Given(normal(seed, 64, dims["N"])), call, cruel, judged)

    return case


OPERATIONS = {
    each.name: each
    for each in (
        _operation(
            "bad",
            Implementation("slow", _rounds_of_work(100)),
            Implementation("wrong", lambda x: 2.1 * x),
            Implementation("leaking", lambda x: 2 * x + 0 * x[0]),
            Implementation("not_compiling", _refused),
            Implementation("crashing", on_host(_abort)),
            Implementation("failing", on_host(_fail)),
            Implementation("unfit", _doubled, BY_NAME, _unfit),
            Implementation("fast", _doubled),
            Implementation("reads_all", lambda x: 2 * x + 0 * x[0], ANYWHERE, reads_all=True),
        ),
        _operation(
            "fatal",
            Implementation("crashing", on_host(_abort)),
            Implementation("failing", on_host(_fail)),
            Implementation("fast", _doubled),
        ),
        _operation("good", Implementation("fast", _doubled)),
        _operation("hanging", Implementation("endless", on_host(_sleep)), Implementation("fast", _doubled)),
        _operation("alone"),
        _operation("starving", Implementation("killed", on_host(_killed)), Implementation("fast", _doubled)),
        _operation("large", Implementation("fast", _doubled), Implementation("larger", _too_large)),
        _operation("lawless", Implementation("fast", _doubled), law=on_host(_abort)),
    )
}
CASES: Mapping[str, Callable[[Dims], Case]] = {name: case_of(each) for name, each in OPERATIONS.items()}
