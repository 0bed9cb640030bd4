"""Quantizing a checkpoint into a GGUF file, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_VERSION, GGUFValueType

from checkpoints.convert.destination import check_files
from checkpoints.convert.plan import PlannedTensor
from checkpoints.convert.source_model import SourceModel, open_model
from checkpoints.convert.targets import Types, gguf_tensors, gguf_values
from checkpoints.family import Families
from checkpoints.gguf.ggml_types import GGML_TYPES, PLAIN_TYPES
from checkpoints.gguf.stream import TensorEntry, paths_written, write_stream
from checkpoints.gguf.values import GGUFValue
from checkpoints.locate import locate
from checkpoints.mapping.table import Progress
from checkpoints.quantization.encode import IMPORTANCE_MATTERS, encode
from checkpoints.quantization.imatrix import ImportanceMatrix
from checkpoints.quantization.mixes import file_type
from checkpoints.quantization.plan import PLAIN, QuantizeOptions, TensorPlan, choose_types


@dataclass(frozen=True)
class Quantization:
    """A quantization that is planned, and can be run.

    Attributes:
        source, destination: paths.
        tensors: what becomes of every tensor, in the order of the file.
        options: see `QuantizeOptions`.
    """

    source: Path
    destination: Path
    tensors: tuple[TensorPlan, ...] = field(repr=False)
    options: QuantizeOptions
    _values: Mapping[str, GGUFValue] = field(repr=False)
    _made: tuple[PlannedTensor, ...] = field(repr=False)
    _importance: ImportanceMatrix | None = field(repr=False)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors that are written."""
        return sum(tensor.num_bytes for tensor in self.tensors)

    @property
    def requantized(self) -> tuple[TensorPlan, ...]:
        """Tensors that were packed already and are packed in another way: their errors add up."""
        changed = [t for t in self.tensors if t.type != t.source.type]
        return tuple(t for t in changed if t.source.type not in PLAIN and t.type not in PLAIN)

    @property
    def without_importance(self) -> tuple[TensorPlan, ...]:
        """Tensors that would be quantized otherwise if the importance matrix, which there is, knew of them."""
        if self._importance is None:
            return ()
        searched = [t for t in self.tensors if t.type != t.source.type and t.type in IMPORTANCE_MATTERS]
        return tuple(t for t in searched if t.source.name not in self._importance.entries)

    @property
    def files(self) -> list[Path]:
        """The files that are written: the destination, or the parts of it."""
        return paths_written(self.destination, self._values, self._entries, self.options.split_bytes)

    def run(self, progress: Progress | None = None) -> Path:
        """Write the file or its parts; they are there when they are complete.

        Args:
            progress: called with bytes written and bytes in all.

        Returns:
            The file, or the first part.

        Raises:
            CheckpointError: the destination exists, there is no room, or values cannot be quantized; nothing is left
                behind then.
        """
        check_files(self.source, self.destination, self.files, force=self.options.force)
        written = write_stream(
            self.destination,
            self._values,
            self._entries,
            self._data(),
            part_bytes=self.options.split_bytes,
            force=self.options.force,
            progress=progress,
        )
        return written[0]

    @property
    def _entries(self) -> list[TensorEntry]:
        return [TensorEntry(t.source.name, t.source.shape, GGML_TYPES[t.type]) for t in self.tensors]

    def _data(self) -> Iterator[np.ndarray]:
        for plan, made in zip(self.tensors, self._made, strict=True):
            name, old = plan.source.name, plan.source.type
            if plan.type == old:
                yield made.make()
                continue
            known = None if self._importance is None else self._importance.of(name, plan.source.shape)
            if old in PLAIN:
                values = made.make().view(PLAIN_TYPES[old]).reshape(plan.source.shape)
                yield encode(values, plan.type, known, name=name)
            else:
                yield encode(made.make(), plan.type, known, name=name, packed=GGML_TYPES[old])


def prepare(
    source: str | Path,
    destination: str | Path,
    families: Families,
    options: QuantizeOptions,
    importance: ImportanceMatrix | None = None,
) -> Quantization:
    """Plan a quantization. Reads no more than metadata, and writes nothing.

    Args:
        source: a GGUF file (any part of a split one), a Hugging Face folder, or an Orbax folder.
        destination: the GGUF file to make; of a split one the name without the numbers of the parts.
        families: the known ones, such as `specjax.FAMILIES`.
        options: what is asked for.
        importance: how much the columns of the matrices count.

    Raises:
        CheckpointError: the source is damaged, incomplete or of an unknown kind, or is the destination, which exists
            or cannot be made; the importance is that of another model.
    """
    source, destination = locate(source), Path(destination).expanduser()
    model = open_model(source, families, drop_mtp=options.drop_mtp, type_codes=dict(options.type_codes))
    made = tuple(gguf_tensors(model, Types()))
    values = dict(gguf_values(model, Types(), model.tokenizer()))
    plan = choose_types(
        [tensor.info for tensor in made],
        options,
        _head(model),
        heads_per_kv=_heads_per_kv(values),
        importance=importance is not None,
    )
    if importance is not None:
        importance.check({t.source.name: t.source.shape for t in plan})
    values["general.file_type"] = GGUFValue(file_type(options.mix), GGUFValueType.UINT32)
    values["general.quantization_version"] = GGUFValue(GGML_QUANT_VERSION, GGUFValueType.UINT32)
    if importance is not None:
        values |= importance.provenance()
    quantization = Quantization(source, destination, tuple(plan), options, values, made, importance)
    check_files(source, destination, quantization.files, force=options.force)
    return quantization


def _head(model: SourceModel) -> frozenset[str]:
    """Names, in a GGUF, of the tensors that draft: those that make no parameter of the target."""
    rules = model.origin_rules if model.origin == "gguf" else None
    if rules is None:
        rules = model.opened.family.gguf.rules(model.opened.config, ())
    of_head = (rule for rule in rules.rules if rule.paths and all(path.startswith("mtp.") for path in rule.paths))
    return frozenset(name for rule in of_head for name in rule.sources)


def _heads_per_kv(values: Mapping[str, GGUFValue]) -> int:
    """The fewest query heads that share a KV head, by the metadata; 1 if they do not say."""
    attention = f"{values['general.architecture'].value}.attention."
    heads, kv_heads = (
        np.atleast_1d(values[attention + key].value if attention + key in values else 1)
        for key in ("head_count", "head_count_kv")
    )
    heads, kv_heads = np.broadcast_arrays(heads, kv_heads)
    return int(min(heads[kv_heads > 0] // kv_heads[kv_heads > 0], default=1))
