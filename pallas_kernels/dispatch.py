"""Choice of an implementation by platform and arguments, with a reason for every one that is passed over."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from pallas_kernels import override, tuning
from pallas_kernels.table import ANYWHERE, BY_NAME, TABLE, Dims, Platforms

Unfit = Callable[[Dims], str | None]
"""Says why an implementation cannot serve a call of some sizes, or returns None."""


def _fits(dims: Dims) -> str | None:
    return None


class Form(NamedTuple):
    """What computes, and what it cannot serve."""

    run: Callable[..., Any]
    unfit: Unfit = _fits


@dataclass(frozen=True)
class Implementation:
    """One way to compute an operation.

    `platforms` are those on which it is chosen without being named.
    """

    name: str
    run: Callable[..., Any]
    platforms: Platforms = BY_NAME
    unfit: Unfit = _fits


@dataclass(frozen=True)
class Operation:
    """What can be computed in several ways.

    Attributes:
        name: as in the table.
        implementations: in order of preference.
    """

    name: str
    implementations: tuple[Implementation, ...]

    def names(self) -> list[str]:
        """Names of the implementations, in order of preference."""
        return [each.name for each in self.implementations]


def operation(name: str, **forms: Form) -> Operation:
    """An operation of the table, with what computes each of its implementations.

    Raises:
        TypeError: the table has other implementations.
    """
    if TABLE[name].keys() != forms.keys():
        raise TypeError(f"{name}: implementations are {', '.join(forms)}; the table has {', '.join(TABLE[name])}")
    return Operation(
        name, tuple(Implementation(impl, forms[impl].run, on, forms[impl].unfit) for impl, on in TABLE[name].items())
    )


def kernel(
    name: str, run: Callable[..., Any], unfit: Unfit = _fits, interpreted_unfit: Unfit | None = None
) -> dict[str, Form]:
    """A kernel for a device and the same in its interpreter, which may serve calls that the device does not."""
    interpreted = Form(partial(run, interpret=True), interpreted_unfit or unfit)
    return {name: Form(run, unfit), f"{name}_interpret": interpreted}


def choose(operation: Operation, impl: str | None, dims: Dims, platform: str | None = None) -> Implementation:
    """The implementation called `impl`, or the first that fits on the platform (default: see `current_platform`).

    A named implementation is checked against the arguments but not against the platform, so that a program can be
    lowered for another machine. Where `impl` is None, SPECJAX_KERNELS or `using` may name one in the same sense, or
    leave only those in plain XLA; and those that were measured to be the fastest on this device go before the others.
    Raises ValueError when nothing fits.
    """
    platform = override.current_platform() if platform is None else platform
    if impl is None:
        for candidate in _in_order(operation, platform):
            if _refusal(operation, candidate, dims, platform) is None:
                return candidate
        raise ValueError(f"no implementation fits. {_explained(operation, dims, platform)}")
    for candidate in operation.implementations:
        if candidate.name == impl:
            reason = candidate.unfit(dims)
            if reason is None:
                return candidate
            raise ValueError(f"{operation.name}: impl={impl!r} does not fit: {reason}. {_fitting(operation, dims)}")
    raise ValueError(f"{operation.name}: impl={impl!r} is not known. {_fitting(operation, dims)}")


def explain(operation: Operation, dims: Dims, platform: str | None = None) -> str:
    """One line for each implementation: chosen, and whether SPECJAX_KERNELS or `using` had a say; fits; or why not.

    Raises:
        ValueError: a platform on which nothing would ever be chosen.
    """
    if platform is not None and platform not in ANYWHERE:
        raise ValueError(f"explain: platform is {platform!r}; accepted: {', '.join(sorted(ANYWHERE))}")
    return _explained(operation, dims, override.current_platform() if platform is None else platform)


def _explained(operation: Operation, dims: Dims, platform: str) -> str:
    forced = override.current()
    lines = [f"{operation.name} on {platform}, {', '.join(f'{axis}={size}' for axis, size in dims.items())}:"]
    reasons = {each.name: _refusal(operation, each, dims, platform) for each in _in_order(operation, platform)}
    chosen = next((name for name, reason in reasons.items() if reason is None), None)
    because = ""
    if forced.forces(operation.name):
        because = f" ({forced.source})"
    elif chosen in tuning.preferred(platform).get(operation.name, ()):
        because = f" (measured on {tuning.device_kind()})"
    for name in operation.names():
        reason = reasons[name]
        verdict = "fits" if reason is None else f"passed over: {reason}"
        if name == chosen:
            verdict = f"chosen{because}"
        lines.append(f"  {name:<{max(map(len, operation.names()))}}  {verdict}")
    return "\n".join(lines)


def _in_order(operation: Operation, platform: str) -> list[Implementation]:
    first = override.current().named.get(operation.name) or tuning.preferred(platform).get(operation.name, ())
    place = {name: number for number, name in enumerate(first)}
    return sorted(operation.implementations, key=lambda candidate: place.get(candidate.name, len(place)))


def _refusal(operation: Operation, candidate: Implementation, dims: Dims, platform: str) -> str | None:
    forced = override.current()
    if (reason := forced.refusal(operation.name, candidate.name)) is not None:
        return reason
    measured = candidate.name in tuning.preferred(platform).get(operation.name, ())
    if measured or operation.name in forced.named or platform in candidate.platforms:
        return candidate.unfit(dims)
    if candidate.platforms:
        return f"chosen on {', '.join(sorted(candidate.platforms))} only"
    return "by name only"


def _fitting(operation: Operation, dims: Dims) -> str:
    names = [candidate.name for candidate in operation.implementations if candidate.unfit(dims) is None]
    return f"Leave impl unset, or name one that fits: {', '.join(names)}"
