"""What was measured of implementations: which of them a call takes first, and why others are left out.

Calls that differ only in the company of a token, such as the number of rows, share a choice: a token's result should
not depend on the company it is computed in. Few rows and many are two choices, because kernels are made for one or the
other. Caches are told apart by powers of two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from pallas_kernels.table import Dims

COMPANY = ("B", "T", "M", "rows")
"""Axes that say how many sequences, tokens or rows share a call."""
FEW = 16
"""So many rows at most are those of a round."""


def group_of(dims: Dims) -> dict[str, Any]:
    """The sizes by which calls share a choice."""
    group = {axis: size for axis, size in dims.items() if axis not in COMPANY and size not in (None, False)}
    if "S" in group and "window" not in group:
        group["S"] = 1 << (group["S"] - 1).bit_length()
    if (rows := dims.get("T", dims.get("M"))) is not None:
        group["many"] = rows > FEW
    return group


def key_of(operation: str, dims: Dims) -> str:
    """Equal for calls that share a choice."""
    return _key(operation, group_of(dims))


def _key(operation: str, group: Mapping[str, Any]) -> str:
    return json.dumps([operation, dict(group)], sort_keys=True)


@dataclass(frozen=True)
class Choice:
    """What was measured for the calls of a group.

    Attributes:
        operation: its name in the table.
        group: see `group_of`.
        measured: the dims of the call that was timed.
        order: the implementations whose results agree with the law, in the order in which a call takes the first that
            fits.
        microseconds: that a call took, by implementation.
        left_out: by implementation why it must not be chosen.
    """

    operation: str
    group: Mapping[str, Any]
    measured: Mapping[str, Any]
    order: tuple[str, ...]
    microseconds: Mapping[str, float]
    left_out: Mapping[str, str]

    @cached_property
    def key(self) -> str:
        """That of its calls, see `key_of`."""
        return _key(self.operation, self.group)

    def time_of(self, impl: str) -> str:
        """How long it takes, in words; "" if that is not known."""
        return f"{self.microseconds[impl]:.{self._digits(impl)}f} us" if impl in self.microseconds else ""

    def _digits(self, impl: str) -> int:
        return 0 if self.microseconds[impl] >= 10 else 2

    def because(self, impl: str, device: str) -> str:
        """What was measured of an implementation, against the fastest of the others."""
        if impl not in self.microseconds:
            return ""
        other = min((name for name in self.order if name != impl), key=self._time, default=None)
        against = f" against {self.time_of(other)} of {other}" if other else ""
        return f"measured on {device}: {self.time_of(impl)}{against}"

    def _time(self, impl: str) -> float:
        return self.microseconds[impl]


def as_data(choices: Mapping[str, Choice]) -> list[dict[str, Any]]:
    """Choices by their keys, as JSON takes them."""
    return [asdict(choice) for _, choice in sorted(choices.items())]


def from_data(content: Any) -> dict[str, Choice]:
    """Choices by their keys.

    Raises:
        ValueError: `content` is not what `as_data` gives; it says which entry is wrong.
    """
    if not isinstance(content, list):
        raise ValueError(f"choices is {content!r}; accepted: a list")
    read = [_choice(f"choices[{index}]", entry) for index, entry in enumerate(content)]
    return {choice.key: choice for choice in read}


def _choice(key: str, entry: Any) -> Choice:
    names = {each.name for each in fields(Choice)}
    if not isinstance(entry, dict) or set(entry) != names:
        got = sorted(entry) if isinstance(entry, dict) else entry
        raise ValueError(f"{key} has {got}; accepted: an object with {', '.join(sorted(names))}")
    for name in ("group", "measured", "microseconds", "left_out"):
        if not isinstance(entry[name], dict):
            raise ValueError(f"{key}.{name} is {entry[name]!r}; accepted: an object")
    order = entry["order"]
    if not isinstance(order, list) or not all(isinstance(impl, str) for impl in order):
        raise ValueError(f"{key}.order is {order!r}; accepted: a list of names")
    if not set(order) <= set(entry["microseconds"]):
        raise ValueError(f"{key}.order is {order!r}, of which not all are in microseconds")
    if not all(type(time) in (int, float) and time > 0 for time in entry["microseconds"].values()):
        raise ValueError(f"{key}.microseconds is {entry['microseconds']!r}; accepted: numbers above 0")
    if not isinstance(entry["operation"], str) or not all(isinstance(why, str) for why in entry["left_out"].values()):
        raise ValueError(f"{key}: operation and the reasons of left_out are texts")
    return Choice(**{**entry, "order": tuple(order)})
