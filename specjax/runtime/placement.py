"""Where parameters lie: rules REGEX=PLACE that put some of them on a device, or into one of its memories.

An expression is searched for in a parameter's path, such as `mtp.block.mlp.up_proj.weight`, and the first rule that
matches decides, as with `--override-tensor` of llama.cpp. PLACE is a device, a memory of the default device, or both:
`cpu:1`, `pinned_host`, `gpu:0/pinned_host`.

A program runs on one device, and so all parameters lie on one device. Those in its host memory are read over while a
program runs, each time it comes to them (`specjax.models.parts.apply`), so that the device need not hold them all at
once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from checkpoints.mapping.reading import Values
from checkpoints.mapping.table import PLAIN, Form
from checkpoints.mapping.tree import flatten
from specjax.errors import SpecjaxError
from specjax.models.parts.apply import in_device_memory
from specjax.models.protocol import Params

EXAMPLES = 5
"""How many paths an error shows."""


@dataclass(frozen=True)
class PlacementRule:
    """One rule REGEX=PLACE.

    Attributes:
        text: as it was given.
        pattern: searched for in paths.
        sharding: where parameters go.
    """

    text: str
    pattern: re.Pattern[str]
    sharding: SingleDeviceSharding

    @classmethod
    def parse(cls, text: str) -> PlacementRule:
        """Read a rule from its text. The expression may contain `=`.

        Raises:
            SpecjaxError: the text is not REGEX=PLACE, there is no such place, or programs cannot read that place.
        """
        expression, _, place = text.rpartition("=")
        if not expression or not place:
            raise SpecjaxError(f"placement rule {text!r} is not REGEX=PLACE, such as 'mtp=pinned_host'")
        try:
            pattern = re.compile(expression)
        except re.error as error:
            raise SpecjaxError(f"placement rule {text!r}: {expression!r} is no regular expression: {error}") from error
        return cls(text, pattern, _sharding(place, text))


@dataclass(frozen=True)
class Placement:
    """Rules for all parameters of a model and its drafter.

    Attributes:
        rules: of those that match a path the first decides; what none matches goes to the default device.
    """

    rules: tuple[PlacementRule, ...] = ()

    @classmethod
    def parse(cls, rules: Sequence[str], paths: Sequence[str]) -> Placement:
        """Rules from their texts, checked against the paths of the parameters that there are.

        Raises:
            SpecjaxError: a rule is malformed, or places nothing; or they spread the parameters over several devices.
        """
        placement = cls(tuple(map(PlacementRule.parse, rules)))
        placement._check_every_rule_places(paths)
        placement._check_one_device(paths)
        return placement

    def put(self, path: str, values: Values, form: Form = PLAIN) -> Any:
        """The parameter of a path as JAX arrays where the rules want it."""
        rule = self._rule(path)
        return jax.device_put(form(values.read()), rule.sharding if rule else None)

    def _rule(self, path: str) -> PlacementRule | None:
        return next((rule for rule in self.rules if rule.pattern.search(path)), None)

    def _check_every_rule_places(self, paths: Sequence[str]) -> None:
        used = {rule for rule in map(self._rule, paths) if rule}
        for rule in self.rules:
            if rule in used:
                continue
            if matched := [path for path in paths if rule.pattern.search(path)]:
                raise SpecjaxError(
                    f"placement rule {rule.text!r} places nothing: earlier rules, which have precedence, match all of"
                    f" its {len(matched)} parameters ({_some(matched)}); put it before them"
                )
            raise SpecjaxError(
                f"placement rule {rule.text!r} matches none of {len(paths)} parameters; there are {_some(paths)};"
                " `specjax inspect --tensors` lists those of a file"
            )

    def _check_one_device(self, paths: Sequence[str]) -> None:
        by_device: dict[str, list[str]] = {}
        for path in paths:
            rule = self._rule(path)
            by_device.setdefault(_name(_device(rule.sharding) if rule else _default_device()), []).append(path)
        if len(by_device) > 1:
            parts = "; ".join(f"{len(own)} on {device} ({_some(own, 2)})" for device, own in by_device.items())
            device = next(name for name in by_device if name != _name(_default_device()))
            raise SpecjaxError(
                f"the placement rules spread the parameters over {len(by_device)} devices, and a program runs on one:"
                f" {parts}. Place everything on one, such as '.*={device}'; what has no room there can lie in its host"
                f" memory: 'mtp={device}/pinned_host', as an earlier rule"
            )


def summary(params: Params) -> str:
    """How many parameters and bytes are in each place."""
    counts: dict[str, tuple[int, int]] = {}
    for parameter in flatten(params).values():
        leaves = jax.tree.leaves(parameter)
        device, kind = _device(leaves[0].sharding), leaves[0].sharding.memory_kind
        where = _name(device) + ("" if kind == device.default_memory().kind else f"/{kind}")
        number, size = counts.get(where, (0, 0))
        counts[where] = number + 1, size + sum(leaf.nbytes for leaf in leaves)
    return ", ".join(
        f"{number} parameter{'s' * (number > 1)} ({size / 1e6:.1f} MB) on {where}"
        for where, (number, size) in counts.items()
    )


def _sharding(place: str, rule: str) -> SingleDeviceSharding:
    local = jax.local_devices()
    devices = {device.platform: device for device in reversed(local)} | {_name(device): device for device in local}
    name, slash, kind = place.partition("/")
    if not slash and name not in devices:
        name, kind = "", place  # a memory of the default device
    device = devices.get(name) if name else _default_device()
    kinds = [memory.kind for memory in (device or _default_device()).addressable_memories()]
    if device is None or ((kind or slash) and kind not in kinds):
        raise SpecjaxError(
            f"placement rule {rule!r}: there is no {place!r}; devices are {', '.join(map(_name, local))}, their"
            f" memories {', '.join(kinds)}; host memory is pinned_host"
        )
    sharding = SingleDeviceSharding(device, memory_kind=kind or None)
    try:
        probe = jax.device_put(np.zeros(2, np.float32), sharding)
        jax.block_until_ready(jax.jit(lambda x: in_device_memory(x) + 1)(probe))
    except (RuntimeError, ValueError) as error:
        raise SpecjaxError(
            f"placement rule {rule!r}: programs on {_name(device)} cannot read {kind}: {error}"
        ) from error
    return sharding


def _default_device() -> jax.Device:
    """The device of arrays that no rule places."""
    return _device(jnp.zeros(()).sharding)


def _device(sharding: jax.sharding.Sharding) -> jax.Device:
    (device,) = sharding.device_set
    return device


def _name(device: jax.Device) -> str:
    return f"{device.platform}:{device.id}"


def _some(paths: Sequence[str], number: int = EXAMPLES) -> str:
    """A few paths, taken from all parts of the list."""
    step = -(-len(paths) // number)
    return ", ".join(paths[::step]) + (", ..." if len(paths) > number else "")
