"""Which implementations of an operation go first, and why: the one place that decides it.

1. Those that SPECJAX_KERNELS or `using` name, see `override`. They leave no others.
2. What was measured on this device for such a call: in the user's cache folder (`memory`), or else in a file of
   `tuned` (`tuning`). Implementations that did not compile, crashed or disagreed with the law are left out.
3. The order of the table, on the platforms that it says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax

from pallas_kernels import memory, override, tuning
from pallas_kernels.choices import Choice, key_of
from pallas_kernels.table import Dims


@dataclass(frozen=True)
class Preference:
    """For a call.

    Attributes:
        first: implementations that go before the others.
        because: why one of them is taken, or "".
        remark: what to say of one that is not taken though it fits, or "".
        refusal: why one must not be taken, or None.
    """

    first: tuple[str, ...]
    because: Callable[[str], str]
    remark: Callable[[str], str]
    refusal: Callable[[str], str | None]


def _nothing(impl: str) -> str:
    return ""


def preference(operation: str, dims: Dims, platform: str, *, by_measurements: bool = True) -> Preference:
    """What goes first in a call of such sizes on a platform; of what was measured nothing counts if it is not to."""
    forced = override.current()
    if forced.forces(operation):
        return Preference(
            forced.named.get(operation, ()),
            lambda impl: forced.source,
            _nothing,
            partial(_passed_over, forced, operation),
        )
    choice = measured(operation, dims, platform) if by_measurements else None
    if choice is None:
        return Preference((), _nothing, _nothing, lambda impl: None)
    device = tuning.device_kind()
    return Preference(
        choice.order,
        because=lambda impl: choice.because(impl, device),
        remark=lambda impl: choice.time_of(impl),
        refusal=lambda impl: f"left out: {choice.left_out[impl]}" if impl in choice.left_out else None,
    )


def _passed_over(forced: override.Override, operation: str, impl: str) -> str | None:
    reason = forced.refusal(operation, impl)
    return None if reason is None else f"passed over: {reason}"


def measured(operation: str, dims: Dims, platform: str) -> Choice | None:
    """What was measured for such a call on the default device, unless that is not to count here.

    Processes that work on one program must choose alike, and each has files of its own: they go by the table.
    """
    if platform != jax.default_backend() or not override.measurements_count() or jax.process_count() > 1:
        return None
    key = key_of(operation, dims)
    return memory.remembered().get(key) or tuning.choices().get(key)
