"""Choices made for the program as a whole: SPECJAX_KERNELS in the environment, or `using` around calls.

The choice is made when a function is traced. `using` is part of the keys of JAX's caches, so that functions that were
jitted before are traced anew inside it. The variable is not: set it before the first call.

A program for a machine that is not at hand is traced inside `using(platform=...)`: then kernels and layouts are those
of that platform, and not of the device that traces it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import jax

from pallas_kernels.table import TABLE

VARIABLE = "SPECJAX_KERNELS"
AUTO, XLA, MEASURE = "auto", "xla", "measure"
PLATFORMS = ("cpu", "gpu", "tpu", "metal", "mps")
"""The platforms by the names of `jax.default_backend()`. An NVIDIA GPU is a "gpu", though `jax.export` calls it "cuda".
"metal" and "mps" are what plugins for Apple GPUs call theirs, metaljax and jax-mps.
"""

_using = jax.make_user_context(default_value=None)
_platform = jax.make_user_context(default_value=None)
_measured = jax.make_user_context(default_value=True)


@dataclass(frozen=True)
class Override:
    """A specification that was read and checked.

    Attributes:
        source: where the specification comes from, for messages.
        only_xla: implementations in plain XLA and no others.
        measure: whoever can is to measure anew what is fastest.
        named: by operation its implementations, of which the first that fits a call is taken.
    """

    source: str
    only_xla: bool = False
    measure: bool = False
    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def forces(self, operation: str) -> bool:
        """Whether it names an implementation for an operation."""
        return self.only_xla or operation in self.named

    def refusal(self, operation: str, impl: str) -> str | None:
        """Why an implementation may not be chosen, or None."""
        allowed = impl.startswith("xla_") if self.only_xla else impl in self.named.get(operation, (impl,))
        return None if allowed else self.source


@contextmanager
def using(spec: str | None = None, *, platform: str | None = None, measured: bool | None = None) -> Iterator[None]:
    """Choose implementations by a specification inside the context, in place of that of SPECJAX_KERNELS.

    Args:
        spec: "auto", by what was measured, by platform and by arguments; "measure", the same, and who makes programs of
            models measures anew before; "xla", only those in plain XLA; or pairs of an operation and an implementation,
            such as "gated_delta.verify=pallas_tpu,matmul.packed=xla_dequant", or several of which the first that fits a
            call is taken, such as "cache_attention=pallas_tpu+pallas_tpu_prefill". An `impl` that a call names goes
            before all of them. None leaves what holds outside.
        platform: one of `PLATFORMS`: choose implementations and layouts as on that platform, for a program that is
            lowered for it. None leaves what holds outside; outside all contexts that is the default device's.
        measured: whether it counts what was measured on the device; otherwise "auto" goes by the table alone. None
            leaves what holds outside; outside all contexts it counts.

    Raises:
        ValueError: an operation, an implementation or a platform that is not known.
    """
    if platform not in (None, *PLATFORMS):
        raise ValueError(f"using: platform is {platform!r}; accepted: {', '.join(PLATFORMS)}")
    if spec is not None:
        _parsed(spec, f"using({spec!r})")
    with (
        _using(_using.value if spec is None else spec),
        _platform(_platform.value if platform is None else platform),
        _measured(_measured.value if measured is None else measured),
    ):
        yield


def measurements_count() -> bool:
    """Whether it counts here what was measured on the device."""
    return _measured.value


def current_platform() -> str:
    """The platform by which implementations and layouts are chosen now."""
    return _platform.value or jax.default_backend()


def current() -> Override:
    """What holds now.

    Raises:
        ValueError: SPECJAX_KERNELS names an operation or an implementation that is not known.
    """
    inside = _using.value
    if inside is not None:
        return _parsed(inside, f"using({inside!r})")
    spec = os.environ.get(VARIABLE) or AUTO
    return _parsed(spec, f"{VARIABLE}={spec}")


@cache
def _parsed(spec: str, source: str) -> Override:
    if spec in (AUTO, XLA, MEASURE):
        return Override(source, only_xla=spec == XLA, measure=spec == MEASURE)
    named: dict[str, tuple[str, ...]] = {}
    for pair in spec.split(","):
        operation, _, names = (part.strip() for part in pair.partition("="))
        impls = tuple(impl.strip() for impl in names.split("+"))
        if not (operation and all(impls)):
            raise ValueError(
                f"{source}: {pair!r} is not understood; accepted: {AUTO}, {XLA}, {MEASURE}, or OPERATION=IMPL,..."
            )
        if operation not in TABLE:
            raise ValueError(f"{source}: operation {operation!r} is not known; known: {', '.join(TABLE)}")
        if unknown := [impl for impl in impls if impl not in TABLE[operation]]:
            known = ", ".join(TABLE[operation])
            raise ValueError(f"{source}: {operation} has no implementation {unknown[0]!r}; known: {known}")
        if named.setdefault(operation, impls) != impls:
            raise ValueError(f"{source}: {operation} is given twice, {'+'.join(named[operation])} and {names}")
    return Override(source, named=named)
