"""Choice of an implementation by platform and arguments, with a reason for every one that is passed over."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_kernels import override, tuning

Dims = Mapping[str, Any]
"""What is static in a call: sizes by axis letter, and names, such as {"T": 4, "Dk": 128} or {"format": "Q8_0"}."""


def _fits(dims: Dims) -> str | None:
    return None


@dataclass(frozen=True)
class Implementation:
    """One way to compute an operation.

    `platforms` are those (as named by `jax.default_backend()`) on which it is chosen without being named; `unfit` says
    why it cannot serve a call of some sizes, or returns None.
    """

    name: str
    run: Callable[..., Any]
    platforms: frozenset[str] = frozenset()
    unfit: Callable[[Dims], str | None] = _fits


ANYWHERE = frozenset({"cpu", "gpu", "tpu", "METAL", "mps"})


def choose(
    operation: str, implementations: Sequence[Implementation], impl: str | None, dims: Dims, platform: str | None = None
) -> Implementation:
    """The implementation called `impl`, or the first that fits on the platform (default: see `current_platform`).

    A named implementation is checked against the arguments but not against the platform, so that a program can be
    lowered for another machine. Where `impl` is None, SPECJAX_KERNELS or `using` may name one in the same sense, or
    leave only those in plain XLA; and one that was measured to be the fastest on this device goes before the others.
    Raises ValueError when nothing fits.
    """
    platform = override.current_platform() if platform is None else platform
    if impl is None:
        for candidate in _in_order(operation, implementations, platform):
            if _refusal(operation, candidate, dims, platform) is None:
                return candidate
        raise ValueError(f"no implementation fits. {_explained(operation, implementations, dims, platform)}")
    for candidate in implementations:
        if candidate.name == impl:
            reason = candidate.unfit(dims)
            if reason is None:
                return candidate
            raise ValueError(f"{operation}: impl={impl!r} does not fit: {reason}. {_fitting(implementations, dims)}")
    raise ValueError(f"{operation}: impl={impl!r} is not known. {_fitting(implementations, dims)}")


def explain(operation: str, implementations: Sequence[Implementation], dims: Dims, platform: str | None = None) -> str:
    """One line for each implementation: chosen, and whether SPECJAX_KERNELS or `using` had a say; fits; or why not.

    Raises:
        ValueError: a platform on which nothing would ever be chosen.
    """
    if platform is not None and platform not in ANYWHERE:
        raise ValueError(f"explain: platform is {platform!r}; accepted: {', '.join(sorted(ANYWHERE, key=str.lower))}")
    return _explained(operation, implementations, dims, platform)


def _explained(operation: str, implementations: Sequence[Implementation], dims: Dims, platform: str | None) -> str:
    platform = override.current_platform() if platform is None else platform
    forced = override.current()
    lines = [f"{operation} on {platform}, {', '.join(f'{axis}={size}' for axis, size in dims.items())}:"]
    reasons = {
        candidate.name: _refusal(operation, candidate, dims, platform)
        for candidate in _in_order(operation, implementations, platform)
    }
    chosen = next((name for name, reason in reasons.items() if reason is None), None)
    because = ""
    if forced.forces(operation):
        because = f" ({forced.source})"
    elif chosen is not None and chosen == tuning.preferred(platform).get(operation):
        because = f" (measured on {tuning.device_kind()})"
    for candidate in implementations:
        reason = reasons[candidate.name]
        verdict = "fits" if reason is None else f"passed over: {reason}"
        if candidate.name == chosen:
            verdict = f"chosen{because}"
        lines.append(f"  {candidate.name:<{max(len(i.name) for i in implementations)}}  {verdict}")
    return "\n".join(lines)


def _in_order(operation: str, implementations: Sequence[Implementation], platform: str) -> list[Implementation]:
    measured = tuning.preferred(platform).get(operation)
    return sorted(implementations, key=lambda candidate: candidate.name != measured)


def _refusal(operation: str, candidate: Implementation, dims: Dims, platform: str) -> str | None:
    forced = override.current()
    if (reason := forced.refusal(operation, candidate.name)) is not None:
        return reason
    measured = tuning.preferred(platform).get(operation)
    if operation in forced.named or platform in candidate.platforms or candidate.name == measured:
        return candidate.unfit(dims)
    if candidate.platforms:
        return f"chosen on {', '.join(sorted(candidate.platforms))} only"
    return "by name only"


def _fitting(implementations: Sequence[Implementation], dims: Dims) -> str:
    names = [candidate.name for candidate in implementations if candidate.unfit(dims) is None]
    return f"Leave impl unset, or name one that fits: {', '.join(names)}"
