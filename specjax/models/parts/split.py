"""The config of one part of a model that is split over the devices of a mesh."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from specjax.mesh.shards import exact


class Indivisible(ValueError):
    """Some numbers of a model cannot be divided by the number of parts.

    Attributes:
        wrong: the names of the numbers, with their values.
    """

    def __init__(self, parts: int, wrong: Sequence[str]) -> None:
        super().__init__(
            f"the model cannot be split into {parts} parts, because these numbers cannot be divided by it:"
            f" {', '.join(wrong)}; choose another number of parts"
        )
        self.wrong = tuple(wrong)


@dataclass(frozen=True)
class Divisible:
    """What configs say of splitting their models; a family whose models can be split replaces `shard`.

    Attributes:
        unit: parts have a multiple of so many hidden columns, as blocks of packed matrices have them.
    """

    unit: int = field(default=1, kw_only=True, repr=False)

    def shard(self, parts: int) -> Self:
        """The config of one of so many equal parts: with its heads and hidden columns. Width and vocabulary stay.

        Raises:
            ValueError: the model cannot be split so; the message lists what does not divide.
        """
        raise ValueError(
            f"a model with a {type(self).__name__} cannot be split into {parts} parts: this family runs on one device"
        )

    @property
    def segments(self) -> Mapping[str, Sequence[int]]:
        """What stands side by side on an axis that is split, see `specjax.mesh.plan.Segments`."""
        return {}

    @property
    def shared(self) -> Collection[str]:
        """Components of the paths of KV heads, of which there may be fewer than parts: neighbours have the same."""
        return ("k_proj", "v_proj", "k_bias", "v_bias")

    def divided(
        self,
        parts: int,
        *names: str,
        padded: Sequence[str] = (),
        shared: Sequence[str] = (),
        kept: Sequence[str] = (),
        inner: Sequence[str] = (),
    ) -> Self:
        """The config with some of its numbers divided by the number of parts.

        Args:
            parts: into how many the model is split.
            names: the numbers that are divided.
            padded: those that are rounded up if they do not divide, to whole units. What fills them up is zeros.
            shared: those that may also be fewer than the parts, so that several parts have the same one.
            kept: those that must divide too, but which a part is told whole.
            inner: fields that are such configs themselves, or None.

        Raises:
            Indivisible: some numbers cannot be divided; all are listed.
        """
        changes: dict[str, Any] = {}
        wrong = [f"{name} ({getattr(self, name)})" for name in kept if getattr(self, name) % parts]
        for name in padded:
            number, step = getattr(self, name), parts * self.unit
            if exact() and number % parts:
                wrong.append(f"{name} ({number})")
            changes[name] = -(-number // step) * self.unit if number % step else number // parts
        for name in (*names, *shared):
            number = getattr(self, name)
            if number % parts == 0:
                changes[name] = number // parts
            elif name in shared and parts % number == 0:
                changes[name] = 1
            else:
                wrong.append(f"{name} ({number})")
        for name in inner:
            try:
                inside = getattr(self, name)
                changes[name] = None if inside is None else replace(inside, unit=self.unit).shard(parts)
            except Indivisible as error:
                wrong += [f"{name}.{each}" for each in error.wrong]
        if wrong:
            raise Indivisible(parts, wrong)
        return replace(self, **changes)
