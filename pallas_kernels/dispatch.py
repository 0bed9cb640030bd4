"""Choice of an implementation by platform and arguments, with a reason for every one that is passed over."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from pallas_kernels import override, recording
from pallas_kernels.capability import since_hopper
from pallas_kernels.preference import Preference, preference
from pallas_kernels.table import ANYWHERE, BY_NAME, TABLE, Dims, Platforms

Unfit = Callable[[Dims], str | None]
"""Says why an implementation cannot serve a call of some sizes, or returns None."""


def _fits(dims: Dims) -> str | None:
    return None


class Form(NamedTuple):
    """What computes, and what it cannot serve.

    Attributes:
        run: the function.
        unfit: see `Unfit`.
        reads_all: whether it also reads what must leave no trace in the results, and needs finite numbers there.
    """

    run: Callable[..., Any]
    unfit: Unfit = _fits
    reads_all: bool = False


@dataclass(frozen=True)
class Implementation:
    """One way to compute an operation.

    `platforms` are those on which it is chosen without being named. The others are those of its `Form`.
    """

    name: str
    run: Callable[..., Any]
    platforms: Platforms = BY_NAME
    unfit: Unfit = _fits
    reads_all: bool = False


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
        name,
        tuple(
            Implementation(impl, forms[impl].run, on, forms[impl].unfit, forms[impl].reads_all)
            for impl, on in TABLE[name].items()
        ),
    )


def kernel(
    name: str, run: Callable[..., Any], unfit: Unfit = _fits, interpreted_unfit: Unfit | None = None
) -> dict[str, Form]:
    """A kernel for a device and the same in its interpreter, which may serve calls that the device does not."""
    interpreted = Form(partial(run, interpret=True), interpreted_unfit or unfit)
    return {name: Form(run, unfit), f"{name}_interpret": interpreted}


def mosaic_gpu_kernel(name: str, run: Callable[..., Any], unfit: Unfit) -> dict[str, Form]:
    """The same for a kernel in Mosaic GPU, which knows no GPU before Hopper."""
    return kernel(name, run, since_hopper(unfit), unfit)


def triton_kernel(name: str, run: Callable[..., Any], unfit: Callable[..., str | None]) -> dict[str, Form]:
    """The same for a Triton kernel: `unfit` takes `interpreted` too, because its interpreter needs fewer packages."""
    return kernel(name, run, unfit, partial(unfit, interpreted=True))


def choose(operation: Operation, impl: str | None, dims: Dims, platform: str | None = None) -> Implementation:
    """The implementation called `impl`, or the first that fits on the platform (default: see `current_platform`).

    A named implementation is checked against the arguments but not against the platform, so that a program can be
    lowered for another machine. Where `impl` is None, `preference` says which go first, and which not at all.
    Raises ValueError when nothing fits.
    """
    platform = override.current_platform() if platform is None else platform
    if impl is None:
        recording.note(operation.name, dims)
        preferred = _preferred(operation, dims, platform)
        for candidate in _in_order(operation, preferred):
            if _refusal(preferred, candidate, dims, platform) is None:
                return candidate
        raise ValueError(f"no implementation fits. {_explained(operation, dims, platform)}")
    for candidate in operation.implementations:
        if candidate.name == impl:
            reason = candidate.unfit(dims)
            if reason is None:
                return candidate
            raise ValueError(f"{operation.name}: impl={impl!r} does not fit: {reason}. {_fitting(operation, dims)}")
    raise ValueError(f"{operation.name}: impl={impl!r} is not known. {_fitting(operation, dims)}")


def could_take(operation: Operation, candidate: Implementation, dims: Dims) -> bool:
    """Whether an implementation fits a call for which another one may be chosen, and was not left out there."""
    preferred = preference(operation.name, dims, override.current_platform())
    return candidate.unfit(dims) is None and preferred.refusal(candidate.name) is None


def explain(operation: Operation, dims: Dims, platform: str | None = None) -> str:
    """One line for each implementation: chosen, fits, or why not; and what was said or measured of it.

    Raises:
        ValueError: a platform on which nothing would ever be chosen.
    """
    if platform is not None and platform not in ANYWHERE:
        raise ValueError(f"explain: platform is {platform!r}; accepted: {', '.join(sorted(ANYWHERE))}")
    return _explained(operation, dims, override.current_platform() if platform is None else platform)


def _explained(operation: Operation, dims: Dims, platform: str) -> str:
    lines = [f"{operation.name} on {platform}, {', '.join(f'{axis}={size}' for axis, size in dims.items())}:"]
    preferred = _preferred(operation, dims, platform)
    refusals = {each.name: _refusal(preferred, each, dims, platform) for each in _in_order(operation, preferred)}
    chosen = next((name for name, reason in refusals.items() if reason is None), None)
    for name in operation.names():
        verdict, remark = refusals[name] or "fits", preferred.remark(name)
        if name == chosen:
            verdict, remark = "chosen", preferred.because(name)
        said = f" ({remark})" if remark and verdict in ("fits", "chosen") else ""
        lines.append(f"  {name:<{max(map(len, operation.names()))}}  {verdict}{said}")
    return "\n".join(lines)


def _preferred(operation: Operation, dims: Dims, platform: str) -> Preference:
    """What goes first. Where everything that fits was left out, the table decides: a model must be able to run."""
    preferred = preference(operation.name, dims, platform)
    if any(_refusal(preferred, each, dims, platform) is None for each in operation.implementations):
        return preferred
    return preference(operation.name, dims, platform, by_measurements=False)


def _in_order(operation: Operation, preferred: Preference) -> list[Implementation]:
    place = {name: number for number, name in enumerate(preferred.first)}
    return sorted(operation.implementations, key=lambda candidate: place.get(candidate.name, len(place)))


def _refusal(preferred: Preference, candidate: Implementation, dims: Dims, platform: str) -> str | None:
    """Why an implementation is not taken, in the words of `explain`."""
    if (reason := preferred.refusal(candidate.name)) is not None:
        return reason
    if candidate.name in preferred.first or platform in candidate.platforms:
        reason = candidate.unfit(dims)
    elif candidate.platforms:
        reason = f"chosen on {', '.join(sorted(candidate.platforms))} only"
    else:
        reason = "by name only"
    return reason and f"passed over: {reason}"


def _fitting(operation: Operation, dims: Dims) -> str:
    names = [candidate.name for candidate in operation.implementations if candidate.unfit(dims) is None]
    return f"Leave impl unset, or name one that fits: {', '.join(names)}"
