"""Pairing the tensors of a file with the parameters of a model, with nothing left over on either side."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from numpy.typing import DTypeLike

from checkpoints.errors import DecodedWarning, TensorMismatchError
from checkpoints.mapping.digest import WeightDigest
from checkpoints.mapping.reading import Reading, Unread, Values
from checkpoints.mapping.rule import Rule
from checkpoints.mapping.transforms import Shape
from checkpoints.mapping.tree import flatten, is_matrix, unflatten
from checkpoints.source import TensorSource
from pallas_kernels.matmul import FORMATS, Activations, QTensor, dequantize, from_blocks, prepare

INTEGERS = ("I32", "I64")
"""Types of tensors that hold int32 parameters."""
_PLAIN = (*INTEGERS, "F64", "F32", "F16", "BF16")

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all), counted in the file."""

Parameter = np.ndarray | QTensor


@dataclass(frozen=True)
class Form:
    """What becomes of the values of a file: the same array, or a matrix of packed blocks.

    Attributes:
        format: of the blocks; None for plain numbers.
        packed: how products round the other factor, see `QTensor`.
    """

    format: str | None = None
    packed: Activations = "a16"

    def __call__(self, values: np.ndarray) -> Parameter:
        """The parameter of an array, or of rows of blocks [..., N, bytes of a row]."""
        return values if self.format is None else prepare(from_blocks(values, self.format, self.packed))


PLAIN = Form()

Put = Callable[[str, Values, Form], Any]
"""Makes the parameter of a path from its values, of which it reads what it needs, and their form: a JAX array, or a
QTensor of JAX arrays."""

Outline = Callable[[str, jax.ShapeDtypeStruct, Form], Any]
"""The same with shapes: makes those of a parameter, which may say where it lies, from the shape of its values."""


def put_on_default_device(path: str, values: Values, form: Form = PLAIN) -> Any:
    """Where parameters lie unless something else is asked for."""
    del path
    return jax.device_put(form(values.read()))


def outlined_on_default_device(path: str, values: jax.ShapeDtypeStruct, form: Form = PLAIN) -> Any:
    """The shapes of what `put_on_default_device` makes."""
    del path
    return jax.eval_shape(form, values)


@dataclass(frozen=True)
class RuleTable:
    """All rules of one model in one file format.

    Attributes:
        rules: they cover every parameter of the model exactly once.
        ignored: patterns of tensor names that the model has no use for, each with a reason to be ignored.
        shapes: parameter path -> shape.
        integers: paths of int32 parameters, each with the type that its tensor has when it is written; all other
            parameters are floating-point numbers.
    """

    rules: tuple[Rule, ...]
    ignored: Mapping[str, str]
    shapes: Mapping[str, Shape]
    integers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        paths = [path for rule in self.rules for path in rule.paths]
        if sorted(paths) != sorted(self.shapes):
            without, unknown = sorted(set(self.shapes) - set(paths)), sorted(set(paths) - set(self.shapes))
            twice = sorted({path for path in paths if paths.count(path) > 1})
            raise AssertionError(
                f"rule table and model disagree: parameters without a rule {without}, rules for no parameter {unknown},"
                f" parameters with two rules {twice}"
            )

    def check(self, source: TensorSource, where: str) -> None:
        """Raise `TensorMismatchError`, with every mismatch in it, unless file and model pair up exactly."""
        tensors = source.tensors
        missing, misshapen, unsupported = [], [], []
        consumed = set()
        for rule in self.rules:
            for name, expected in zip(rule.sources, self.source_shapes(rule), strict=True):
                consumed.add(name)
                if name not in tensors:
                    missing.append(f"{name} {expected}")
                elif _without_units(tensors[name].shape) != _without_units(expected):
                    misshapen.append(f"{name}: expected {expected}, got {tensors[name].shape}")
                elif not (tensors[name].type in INTEGERS if self._is_integer(rule) else source.can_read(name)):
                    unsupported.append(f"{name}: {tensors[name].type}")
        surplus = [
            f"{name} {info.shape}"
            for name, info in tensors.items()
            if name not in consumed and not any(re.fullmatch(pattern, name) for pattern in self.ignored)
        ]
        if missing or surplus or misshapen or unsupported:
            raise TensorMismatchError(where, missing, surplus, misshapen, unsupported)

    def load(
        self,
        source: TensorSource,
        where: str,
        dtype: DTypeLike = np.float32,
        progress: Progress | None = None,
        put: Put = put_on_default_device,
        packed: Activations | None = None,
        digest: WeightDigest | None = None,
    ) -> dict[str, Any]:
        """The parameters as JAX arrays, converted one rule at a time.

        Args:
            source: the open file.
            where: its name, for messages.
            dtype: of matrices; vectors and convolutions stay float32.
            progress: called after every rule.
            put: makes the arrays.
            packed: keep quantized matrices as `QTensor`, for products whose other factor is rounded so. None: decode
                them. Types that cannot be computed with are decoded in any case.
            digest: told of every parameter.

        Raises:
            TensorMismatchError: file and model do not pair up exactly. Nothing has been read then.

        Warns:
            DecodedWarning: matrices of block formats are decoded although they were to stay packed.
        """
        self.check(source, where)
        digest = WeightDigest() if digest is None else digest
        total = sum(source.tensors[name].num_bytes for rule in self.rules for name in rule.sources)
        done = 0
        flat: dict[str, Any] = {}
        if packed is not None:
            self._warn_of_decoding(source, where, dtype)
        for rule in self.rules:
            format = self._format(rule, source) if packed is not None else None
            reading = self._reading(rule, source, None if format else self._kind(rule, dtype), format, digest)
            form = Form(format, packed) if format and packed else PLAIN
            flat |= {path: put(path, Unread(reading, path), form) for path in rule.paths}
            if not rule.paths:  # such as divisors that the config knows: reading compares
                reading.whole  # noqa: B018
            done += sum(source.tensors[name].num_bytes for name in rule.sources)
            if progress is not None:
                progress(done, total)
        return unflatten(flat)

    def outline(
        self, source: TensorSource, dtype: DTypeLike, put: Outline, packed: Activations | None = None
    ) -> dict[str, Any]:
        """What `load` would return, with shapes in place of arrays. Nothing but the tensor table is read.

        Args:
            source, dtype, packed: see `load`.
            put: makes the shapes of a parameter.
        """
        flat = {}
        for rule in self.rules:
            format = self._format(rule, source) if packed is not None else None
            for path in rule.paths:
                shape = self.shapes[path]
                if format and packed:
                    rows = (*shape[:-1], FORMATS[format].row_bytes(shape[-1]))
                    flat[path] = put(path, jax.ShapeDtypeStruct(rows, np.uint8), Form(format, packed))
                else:
                    flat[path] = put(path, jax.ShapeDtypeStruct(shape, self._kind(rule, dtype)), PLAIN)
        return unflatten(flat)

    def unload(self, params: Mapping[str, Any]) -> Iterator[tuple[str, Shape, Callable[[], np.ndarray]]]:
        """The file's tensors, in the order of the rules: name, shape, and a function that makes the array.

        Raises:
            TensorMismatchError: `params` lacks a parameter, has one too many, or one of the wrong shape.
        """
        flat = flatten(params)
        wrong = [
            f"{path}: expected {shape}, got {tuple(flat[path].shape)}"
            for path, shape in self.shapes.items()
            if path in flat and tuple(flat[path].shape) != shape
        ]
        missing = [path for path in self.shapes if path not in flat]
        surplus = [path for path in flat if path not in self.shapes]
        if wrong or missing or surplus:
            raise TensorMismatchError("parameters to be written", missing, surplus, wrong)
        for rule in self.rules:
            shapes = self.source_shapes(rule)
            for i, (name, shape) in enumerate(zip(rule.sources, shapes, strict=True)):
                yield name, shape, _Tensor(rule, i, shape, tuple(flat[path] for path in rule.paths))

    def parameters(self, rule: Rule, source: TensorSource, dtype: DTypeLike | None) -> Iterator[tuple[str, np.ndarray]]:
        """Paths and values of a rule's parameters.

        Args:
            rule: one of the table.
            source: the open file.
            dtype: of the values; None reads packed rows [..., N, bytes of a row] uint8.
        """
        yield from self._reading(rule, source, dtype, None, WeightDigest()).whole.items()

    def _reading(
        self, rule: Rule, source: TensorSource, dtype: DTypeLike | None, format: str | None, digest: WeightDigest
    ) -> Reading:
        shapes = [self.shapes[path] for path in rule.paths]
        return Reading(rule, source, shapes, dtype, format, digest)

    def _format(self, rule: Rule, source: TensorSource) -> str | None:
        """The block format that the rule's parameters can stay in."""
        types = {source.tensors[name].type for name in rule.sources}
        fit = rule.keeps_rows and len(types) == 1 and all(is_matrix(path, self.shapes[path]) for path in rule.paths)
        return types.pop() if fit and types <= FORMATS.keys() else None

    def units(self, source: TensorSource) -> dict[str, int]:
        """How many values a block has, for the paths of the parameters that can stay packed."""
        formats = ((rule, self._format(rule, source)) for rule in self.rules)
        return {path: FORMATS[format].values for rule, format in formats if format for path in rule.paths}

    def _warn_of_decoding(self, source: TensorSource, where: str, dtype: DTypeLike) -> None:
        decoded = Counter(
            source.tensors[name].type
            for rule in self.rules
            if self._format(rule, source) is None
            for name in rule.sources
            if source.tensors[name].type not in _PLAIN
        )
        if decoded:
            types = ", ".join(f"{count} of type {kind}" for kind, count in decoded.items())
            warnings.warn(
                f"{where}: nothing computes with these tensors from their packed bytes: {types}. They are decoded to"
                f" {np.dtype(dtype).name} and take that much memory; types that stay packed are {', '.join(FORMATS)}",
                DecodedWarning,
                stacklevel=4,
            )

    @property
    def integer_sources(self) -> Mapping[str, str]:
        """Names of the tensors that hold integers, each with the type that it has when it is written."""
        return {
            name: self.integers[path]
            for rule in self.rules
            for path in self.integers.keys() & set(rule.paths)
            for name in rule.sources
        }

    def _kind(self, rule: Rule, dtype: DTypeLike) -> DTypeLike:
        """What a rule's tensors are read as; `dtype` is for matrices."""
        if self._is_integer(rule):
            return np.int32
        matrices = [is_matrix(path, self.shapes[path]) for path in rule.paths]
        return dtype if matrices and all(matrices) else np.float32

    def _is_integer(self, rule: Rule) -> bool:
        return not self.integers.keys().isdisjoint(rule.paths)

    def source_shapes(self, rule: Rule) -> list[Shape]:
        """Shapes of a rule's tensors in the file."""
        return rule.source_shapes([self.shapes[path] for path in rule.paths])


@dataclass(frozen=True)
class _Tensor:
    """A tensor of a file that is about to be written, computed when it is asked for."""

    rule: Rule
    index: int
    shape: Shape
    parameters: tuple[Any, ...]

    def __call__(self) -> np.ndarray:
        arrays = [np.asarray(dequantize(p) if isinstance(p, QTensor) else p) for p in self.parameters]
        for i, tensor in enumerate(self.rule.backward(arrays)):
            if i == self.index:
                return np.ascontiguousarray(tensor).reshape(self.shape)
        raise IndexError(self.index)


def _without_units(shape: Shape) -> Shape:
    return tuple(n for n in shape if n != 1)
