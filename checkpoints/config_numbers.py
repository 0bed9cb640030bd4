"""Numbers of a config with which nothing can be computed, whatever the family."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.source import TensorInfo

_POSITIVE = {
    "context_length",
    "factor",
    "head_width",
    "high_freq_factor",
    "logit_cap",
    "low_freq_factor",
    "norm_eps",
    "num_heads",
    "num_kv_heads",
    "original_context",
    "vocab_size",
    "width",
}
_NO_SIZE = {"context_length", "original_context", "window"}
"""Integers that are no axis of a tensor: they may be as large as they like."""
_BASE, _LEAST, _MOST = "rope_theta", 1.0, 1e30
"""Frequencies are its powers with exponents from -1 to 0. Those of a base up to 1 would not fall, and those of a larger
one not be numbers in float32."""
_ANY_SIZE = 1 << 20
"""Sizes up to this one are left to the comparison of shapes, which says more."""


def check_numbers(config: Any, tensors: Mapping[str, TensorInfo], where: str) -> None:
    """
    Args:
        config: of a model; its fields may be configs, or tuples of them.
        tensors: the tensor table of the file.
        where: the file's name, for the message.

    Raises:
        ConfigError: numbers are not finite, negative, zero where that makes no sense, or sizes that no tensor of the
            file has room for. All are listed.
    """
    largest = max([_ANY_SIZE, *(math.prod(info.shape) for info in tensors.values())])
    wrong = [f"{name} is {value!r}: {reason}" for name, value, reason in _wrong(config, largest)]
    if wrong:
        raise ConfigError(
            f"{where}: the metadata describe no model: {'; '.join(dict.fromkeys(wrong))}; download or convert it again"
        )


def _wrong(config: Any, largest: int, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    for field in fields(config):
        value, name = getattr(config, field.name), prefix + field.name
        if field.type == "int" and not isinstance(value, int):
            yield name, value, "it must be a whole number"
        for part in value if isinstance(value, tuple) else (value,):
            if is_dataclass(part):
                yield from _wrong(part, largest, f"{name}.")
            elif isinstance(part, (int, float)) and (reason := _reason(field.name, part, largest)):
                yield name, part, reason
    used, experts = getattr(config, "experts_per_token", 1), getattr(config, "num_experts", 1)
    if not 1 <= used <= experts:
        yield f"{prefix}experts_per_token", used, f"it must be between 1 and the number of experts, {experts}"


def _reason(name: str, value: float, largest: int) -> str | None:
    if not math.isfinite(value):
        return "it must be finite"
    if name == _BASE and not _LEAST < value < _MOST:
        return f"it must lie between {_LEAST:g} and {_MOST:g}"
    if value < 0 or (value == 0 and name in _POSITIVE):
        return "it must be positive" if name in _POSITIVE else "it must not be negative"
    if isinstance(value, int) and value > largest and name not in _NO_SIZE:
        return f"the largest tensor has {largest} values"
    return None
