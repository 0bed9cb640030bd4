"""What was measured on a kind of device, as data: the fastest block sizes of kernels, and which kernels to prefer.

A kernel module makes one `Tunable`, and asks `config_for` while it is traced: a configuration is the one given, or
the one that `python -m pallas_kernels.tune` found fastest for the very sizes, or the one a rule proposes. `choices`
says which implementations are the fastest. Both lie in `tuned/<device kind>.json`, in the folder that SPECJAX_TUNED
names and then in this package's. Files are read once in a process.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

import jax

from pallas_kernels.choices import Choice, as_data, from_data
from pallas_kernels.files import replace_text
from pallas_kernels.table import TABLE, Dims, Platforms, made_for

FOLDER_VARIABLE = "SPECJAX_TUNED"
PACKAGE_FOLDER = Path(__file__).parent / "tuned"

C = TypeVar("C")


_TUNABLES: dict[tuple[str, str], Tunable[Any]] = {}


@dataclass(frozen=True)
class Tunable(Generic[C]):
    """A kernel whose block sizes are worth measuring. The tuner and the files of winners know it once it is made.

    A configuration that changes how sums are rounded goes by sizes without the numbers of rows and tokens: a token's
    result must not depend on the company it is computed in.

    Attributes:
        operation, impl: names as in the operation's table; interpreters share the entry of the kernel they interpret.
        Config: frozen dataclass of int, bool and str; it raises ValueError for what no kernel can do.
        heuristic: the configuration for sizes that were not measured.
        candidates: what to measure.
        shapes: the sizes to measure unless others are asked for: those of real models.
        example: arguments of those sizes, random numbers: results of configurations are compared.
        run: called with an example and `config`; whoever times it compiles it.
    """

    operation: str
    impl: str
    Config: type[C]
    heuristic: Callable[[Dims], C]
    candidates: Callable[[Dims], Sequence[C]]
    shapes: tuple[Dims, ...]
    example: Callable[[Dims], tuple[Any, ...]]
    run: Callable[..., Any]

    def __post_init__(self) -> None:
        _TUNABLES[self.operation, self.impl] = self

    @property
    def platforms(self) -> Platforms:
        """Where the kernel can be timed."""
        return made_for(self.impl)

    def call(self, dims: Dims) -> str:
        """What `same_call` gives for a winner of these sizes."""
        return _call(self.operation, self.impl, dims)


def tunables() -> dict[tuple[str, str], Tunable[Any]]:
    """All that there are, by operation and implementation: kernels make theirs when the package is imported."""
    return dict(_TUNABLES)


def config_for(tunable: Tunable[C], dims: Dims, config: C | None = None) -> C:
    """The configuration to run with: `config`, else what was measured on this device for these sizes, else the rule.

    Raises:
        ValueError: `config` is of another kernel, or a file of winners is broken.
    """
    if config is None:
        configs, _ = _measured(device_kind(), _folders())
        return configs.get(tunable.call(dims)) or tunable.heuristic(dims)
    if not isinstance(config, tunable.Config):
        raise ValueError(
            f"{tunable.operation}: config of {tunable.impl} is {config!r}; accepted: "
            f"{tunable.Config.__module__}.{tunable.Config.__name__}"
        )
    return config


@dataclass(frozen=True)
class Winner:
    """The fastest configuration of a kernel for some sizes, as measured with a version of jax."""

    operation: str
    impl: str
    dims: Mapping[str, Any]
    config: Any
    microseconds: float
    jax: str


@dataclass(frozen=True)
class Measurements:
    """What a file holds.

    Attributes:
        device: the kind of device.
        winners: one for each kernel and sizes, see `same_call`.
        choices: of implementations, by their keys.
    """

    device: str
    winners: Sequence[Winner] = ()
    choices: Mapping[str, Choice] = field(default_factory=dict)


def choices() -> Mapping[str, Choice]:
    """Which implementations are the fastest on the default device, by the keys of choices.

    Raises:
        ValueError: a file of measurements is broken.
    """
    return _measured(device_kind(), _folders())[1]


def digest() -> str:
    """A number of all block sizes that count on the default device: what was timed with others may have changed.

    Raises:
        ValueError: a file of measurements is broken.
    """
    configs, _ = _measured(device_kind(), _folders())
    return hashlib.sha256(repr(sorted(configs.items())).encode()).hexdigest()[:12]


def device_kind() -> str:
    """What JAX calls the default device, such as "TPU v5 lite"."""
    return jax.devices()[0].device_kind


def file_of(kind: str) -> Path:
    """Where measurements on a kind of device are written: in the folder of SPECJAX_TUNED, or else in this package's."""
    return _folders()[0] / _file_name(kind)


def read(path: Path, device: str) -> Measurements:
    """What a file holds; nothing if it does not exist.

    Raises:
        ValueError: the file is broken, of another device, or means nothing to this package; names file and key.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Measurements(device)
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    _expect_keys(path, "the file", content, {each.name for each in fields(Measurements)})
    if content["device"] != device:
        raise ValueError(f"{path}: device is {content['device']!r}; measurements of such a device are in another file")
    if not isinstance(content["winners"], list):
        raise ValueError(f"{path}: winners is {content['winners']!r}; accepted: a list")
    winners = [_winner(path, f"winners[{index}]", entry) for index, entry in enumerate(content["winners"])]
    try:
        found = from_data(content["choices"])
        for choice in found.values():
            _check_names(choice)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Measurements(device, winners, found)


def write(path: Path, measurements: Measurements) -> None:
    """Replace the file by one with these measurements; at no time is there half a file."""
    winners = [asdict(winner) for winner in measurements.winners]
    content = {"device": measurements.device, "winners": winners, "choices": as_data(measurements.choices)}
    replace_text(path, json.dumps(content, indent=1) + "\n")
    _measured.cache_clear()


def same_call(winner: Winner) -> str:
    """Equal for winners of one kernel and the same sizes, of which a file keeps one."""
    return _call(winner.operation, winner.impl, winner.dims)


def _winner(path: Path, key: str, entry: Any) -> Winner:
    names = {field.name for field in fields(Winner)}
    _expect_keys(path, key, entry, names)
    known = tunables()
    if (entry["operation"], entry["impl"]) not in list(known):  # of what can be compared, but not always hashed
        accepted = ", ".join(" ".join(name) for name in known)
        raise ValueError(
            f"{path}: {key} is of {entry['operation']!r}, {entry['impl']!r}, which is not tuned; known: {accepted}"
        )
    tunable = known[entry["operation"], entry["impl"]]
    _expect_keys(path, f"{key}.dims", entry["dims"], set(tunable.shapes[0]))
    for axis, example in tunable.shapes[0].items():
        if type(entry["dims"][axis]) is not type(example):
            raise ValueError(
                f"{path}: {key}.dims.{axis} is {entry['dims'][axis]!r}; accepted: {type(example).__name__}"
            )
    hints = get_type_hints(tunable.Config)
    _expect_keys(path, f"{key}.config", entry["config"], set(hints))
    for name, kind in hints.items():
        if type(entry["config"][name]) is not kind:
            raise ValueError(f"{path}: {key}.config.{name} is {entry['config'][name]!r}; accepted: {kind.__name__}")
    if type(entry["microseconds"]) not in (int, float) or not entry["microseconds"] > 0:
        raise ValueError(f"{path}: {key}.microseconds is {entry['microseconds']!r}; accepted: a number above 0")
    try:
        return Winner(**{**entry, "config": tunable.Config(**entry["config"])})
    except ValueError as error:
        raise ValueError(f"{path}: {key}.config: {error}") from error


def _check_names(choice: Choice) -> None:
    if choice.operation not in TABLE:
        raise ValueError(f"choices name the operation {choice.operation!r}; known: {', '.join(TABLE)}")
    known = TABLE[choice.operation]
    if unknown := sorted({*choice.order, *choice.left_out} - set(known)):
        raise ValueError(f"choices of {choice.operation} name {unknown[0]!r}; known: {', '.join(known)}")


def _expect_keys(path: Path, key: str, value: Any, names: set[str]) -> None:
    if not isinstance(value, dict) or set(value) != names:
        got = sorted(value) if isinstance(value, dict) else value
        raise ValueError(f"{path}: {key} has {got}; accepted: an object with {', '.join(sorted(names))}")


@cache
def _measured(kind: str, folders: tuple[Path, ...]) -> tuple[dict[str, Any], dict[str, Choice]]:
    configs: dict[str, Any] = {}
    chosen: dict[str, Choice] = {}
    for folder in reversed(folders):
        found = read(folder / _file_name(kind), kind)
        configs |= {same_call(winner): winner.config for winner in found.winners}
        chosen |= found.choices
    return configs, chosen


def _folders() -> tuple[Path, ...]:
    own = os.environ.get(FOLDER_VARIABLE)
    return (Path(own).expanduser(), PACKAGE_FOLDER) if own else (PACKAGE_FOLDER,)


def _file_name(kind: str) -> str:
    return re.sub("[^a-z0-9]+", "_", kind.lower()).strip("_") + ".json"


def _call(operation: str, impl: str, dims: Dims) -> str:
    return json.dumps([operation, impl, dict(dims)], sort_keys=True)
