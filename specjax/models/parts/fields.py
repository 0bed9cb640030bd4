"""Fields of a config that a file states key by key: one table to read and to write them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fields:
    """Fields of a config, each with the key under which files of one kind have it.

    Attributes:
        config_type: the class of the config, which says which fields are floating-point numbers.
        keys: field -> key.
        defaults: field -> what it is if a file lacks the key. Keys of all other fields must be there.
    """

    config_type: type
    keys: Mapping[str, str]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def required(self) -> tuple[str, ...]:
        """The keys that must be there."""
        return tuple(key for name, key in self.keys.items() if name not in self.defaults)

    def read(self, get: Callable[[str], Any], number: Callable[[float], float] = float) -> dict[str, Any]:
        """The values of the fields.

        Args:
            get: gives the value of a key; None for one that is absent.
            number: what a floating-point number is for the config, given that of the file.
        """
        values, floats = {}, self._floats
        for name, key in self.keys.items():
            value = get(key)
            if value is None:
                values[name] = self.defaults.get(name)
            else:
                values[name] = number(value) if name in floats else value
        return values

    def write(self, config: Any) -> dict[str, Any]:
        """The values of the keys."""
        values, floats = {}, self._floats
        for name, key in self.keys.items():
            value = getattr(config, name)
            values[key] = float(value) if name in floats and value is not None else value
        return values

    @property
    def _floats(self) -> set[str]:
        # Annotations are texts, such as "float" and "float | None".
        return {field.name for field in dataclasses.fields(self.config_type) if str(field.type).startswith("float")}
