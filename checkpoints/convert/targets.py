"""The three formats of destination: which tensors they get, in which types, and what is written beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import LlamaFileType

from checkpoints.convert.plan import DECODED, PlannedTensor, Shape, as_it_is, from_rules, parameter, tensor_bytes
from checkpoints.convert.source_model import FLOATS, SourceModel
from checkpoints.errors import CheckpointError, TokenizerError
from checkpoints.family import Config
from checkpoints.gguf.values import GGUFValue, typed
from checkpoints.gguf.writer import FILE_TYPES, gguf_metadata, stays_f32
from checkpoints.mapping.rope_formula import with_formula
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.tree import is_matrix
from checkpoints.safetensors.file import DTYPES
from checkpoints.tokenizers.tokenizer import TextTokenizer

_DTYPE_KEYS = ("dtype", "torch_dtype")


@dataclass(frozen=True)
class Types:
    """Which types floating-point numbers get.

    Attributes:
        matrices: of matrices; None: the one in which they are stored.
        decoded: of matrices that were packed and cannot stay so.
    """

    matrices: str | None = None
    decoded: str = "BF16"

    def of_matrix(self, stored: str) -> str:
        """The type of a matrix; packed ones keep theirs."""
        if stored == DECODED:
            return self.decoded
        return self.matrices or stored if stored in FLOATS else stored

    def in_gguf(self, name: str, shape: Shape, stored: str) -> str:
        """The type in a GGUF."""
        return "F32" if stored in (*FLOATS, DECODED) and stays_f32(name, shape) else self.of_matrix(stored)

    def in_hf(self, name: str, shape: Shape, stored: str) -> str:
        """The type that a tensor of this type gets in safetensors."""
        del name
        if stored not in DTYPES:
            return self.decoded
        return self.of_matrix(stored) if len(shape) > 1 else stored


def gguf_tensors(model: SourceModel, types: Types) -> Iterator[PlannedTensor]:
    """The tensors of a GGUF: those of the origin if that is one, else those that llama.cpp's converter writes."""
    if model.origin == "gguf":
        yield from _as_in_origin(model, types)
    else:
        yield from from_rules(model, model.opened.family.gguf.rules(model.opened.config, ()), types.in_gguf)


def hf_tensors(model: SourceModel, types: Types) -> Iterator[PlannedTensor]:
    """The tensors of a Hugging Face folder: those of the origin if that is one, else those of the text-only class.

    Raises:
        ConfigError: config.json cannot express the model.
    """
    if model.origin == "safetensors":
        yield from _as_in_origin(model, types)
        return
    config, kind = _config_for_hf(model), _dtype_of(model, types)
    for tensor in from_rules(model, model.opened.family.hf.rules(config, ()), types.in_hf):
        yield _narrowed(tensor, kind)


def orbax_tensors(model: SourceModel, types: Types) -> tuple[list[PlannedTensor], list[PlannedTensor]]:
    """The parameters; and those tensors of the origin that could not be made of them again, bit by bit."""
    parameters = []
    for path, shape in model.opened.rules.shapes.items():
        kind = model.type_of(path)
        parameters.append(parameter(model, path, types.of_matrix(kind) if is_matrix(path, shape) else kind))
    if model.opened.format == "orbax":
        kept = list(model.kept.tensors)
    else:
        made = {tensor.name for tensor in _made_again(model)}
        kept = [name for name in model.origin_tensors if name not in made]
    return parameters, [as_it_is(model, name) for name in kept]


def origin_table(model: SourceModel, types: Types) -> list[PlannedTensor]:
    """The tensors that the origin's format would get, in their order: what an Orbax folder must remember."""
    return list(_as_in_origin(model, types))


def gguf_values(
    model: SourceModel, types: Types, tokenizer: TextTokenizer | None, tokenizer_path: Path | None = None
) -> dict[str, GGUFValue]:
    """The metadata of a GGUF: those of the origin if that is one, else what llama.cpp needs.

    Args:
        model, types: what is converted, and how.
        tokenizer: its tokenizer, or the one to take instead.
        tokenizer_path: where that one comes from, for messages; None for the model's own.

    Raises:
        ConfigError: GGUF cannot express the model.
        TokenizerError: it cannot express the tokenizer.
        CheckpointError: there is no tokenizer that can be used.
    """
    file_type = next((FILE_TYPES[name] for name in FILE_TYPES if name == types.matrices), None)
    if model.values is not None:
        values = dict(model.values)
        plain = {int(FILE_TYPES[name]) for name in FLOATS}
        if file_type is not None and (old := values.get("general.file_type")) is not None and old.value in plain:
            values["general.file_type"] = GGUFValue(int(file_type), old.kind)
        return values
    if tokenizer is None:
        raise CheckpointError(
            f"{model.tokenizer_problem()}. A GGUF needs a tokenizer; give --tokenizer with a folder or file that has"
            " the right one (for an assistant that of its target)"
        )
    try:
        keys = gguf_metadata(model.opened.family, model.opened.config, tokenizer, file_type or _majority(model))
    except TokenizerError as error:
        raise TokenizerError(
            f"{tokenizer_path or model.opened.path}: {error}; specjax convert --tokenizer takes that of another folder"
            " or file, such as a GGUF of the same family"
        ) from error
    if name := model.opened.path.absolute().name:
        keys = {**dict(list(keys.items())[:2]), "general.name": name, **dict(list(keys.items())[2:])}
    return {key: typed(key, value) for key, value in keys.items()}


def hf_document(model: SourceModel, types: Types) -> dict[str, Any]:
    """The config.json: that of the origin if it has one, else that of the text-only class.

    Raises:
        ConfigError: config.json cannot express the model.
    """
    names = {kind: np.dtype(DTYPES[kind]).name for kind in FLOATS}
    if model.document is not None:
        return _with_dtype(model.document, names[types.matrices]) if types.matrices else dict(model.document)
    config = _config_for_hf(model)
    return {**model.opened.family.hf.write_config(config), "dtype": names[_dtype_of(model, types)]}


def left_out(model: SourceModel, planned: list[PlannedTensor]) -> dict[str, str]:
    """Tensors of the file that the destination has no place for, and why they are not missed."""
    used = {source.name for tensor in planned for source in tensor.sources}
    rules = model.opened.rules
    consumed = {name for rule in rules.rules for name in rule.sources}
    unused = [name for name in model.opened.source.tensors if name not in used | consumed]
    return {name: _reason(rules, name) for name in unused}


def _as_in_origin(model: SourceModel, types: Types) -> Iterator[PlannedTensor]:
    def choose(name: str, shape: Shape, stored: str) -> str:
        old = model.origin_tensors[name].type
        wanted = types.in_gguf if model.origin == "gguf" else types.in_hf
        return old if types.matrices is None or old not in FLOATS else wanted(name, shape, old)

    made = {tensor.name: tensor for tensor in from_rules(model, model.origin_rules, choose)}
    for name, info in model.origin_tensors.items():
        if name in model.kept.tensors and (name not in made or made[name].info.type == info.type):
            yield as_it_is(model, name)
        else:
            yield made[name]


def _made_again(model: SourceModel) -> Iterator[PlannedTensor]:
    """Those tensors of the file that parameters of the stored types determine, bit by bit."""
    tensors = iter(from_rules(model, model.origin_rules, lambda name, *_: model.origin_tensors[name].type))
    for rule in model.origin_rules.rules:
        for _ in rule.sources:
            tensor = next(tensors)
            kinds = {source.type for source in tensor.sources}
            moved = rule.moves_values and len(kinds) == 1 and {model.type_of(path) for path in rule.paths} == kinds
            if rule.paths and (moved or _same_bytes(model, tensor)):
                yield tensor


def _same_bytes(model: SourceModel, tensor: PlannedTensor) -> bool:
    made = np.ascontiguousarray(tensor.make()).reshape(-1).view(np.uint8)
    return np.array_equal(made, model.kept.read_blocks(tensor.name).reshape(-1))


def _reason(rules: RuleTable, name: str) -> str:
    return next(reason for pattern, reason in rules.ignored.items() if re.fullmatch(pattern, name))


def _config_for_hf(model: SourceModel) -> Config:
    return with_formula(model.opened.family, model.opened.config, lambda path: model.parameter(path).array)


def _dtype_of(model: SourceModel, types: Types) -> str:
    """The type that a config.json names: that of most values."""
    return types.matrices or _largest_float(model) or types.decoded


def _narrowed(tensor: PlannedTensor, kind: str) -> PlannedTensor:
    """The tensor in a type of fewer bits, as checkpoints have vectors that a GGUF has in F32, if no value changes."""
    if tensor.info.type != "F32" or kind == "F32":
        return tensor
    values, dtype = tensor.make(), np.dtype(DTYPES[kind])
    with np.errstate(over="ignore"):
        if not np.array_equal(values.astype(dtype).astype(np.float32), values):
            return tensor
    info = replace(tensor.info, type=kind, num_bytes=tensor_bytes(kind, tensor.info.shape))
    return replace(tensor, info=info, make=lambda: tensor.make().astype(dtype))


def _largest_float(model: SourceModel) -> str | None:
    """The floating-point type that most values of the model have, None if most are packed."""
    counts: dict[str, int] = {}
    for path, shape in model.opened.rules.shapes.items():
        kind = model.type_of(path)
        counts[kind] = counts.get(kind, 0) + int(np.prod(shape, dtype=np.int64))
    most = max(counts, key=lambda kind: counts[kind])
    return most if most in FLOATS else None


def _majority(model: SourceModel) -> LlamaFileType:
    return FILE_TYPES[_largest_float(model) or "F32"]


def _with_dtype(document: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for key, value in document.items():
        if key in _DTYPE_KEYS:
            changed[key] = dtype
        else:
            changed[key] = _with_dtype(value, dtype) if isinstance(value, Mapping) else value
    return changed
