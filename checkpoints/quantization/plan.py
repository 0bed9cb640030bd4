"""Choosing the type of every tensor of a file that is to be quantized."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from checkpoints.errors import CheckpointError
from checkpoints.gguf.ggml_types import GGML_TYPES
from checkpoints.gguf.writer import stays_f32
from checkpoints.quantization.encode import ENCODERS
from checkpoints.quantization.mixes import ALIASES, FALLBACKS, MIXES, Facts, block_of, holds_values, type_in_mix
from checkpoints.source import TensorInfo

PLAIN = ("F32", "F16", "BF16")
_KEPT = re.compile(r"(^|\.)(per_layer_model_proj\.weight)$")
_LAST_RESORT = "F16"
HEAD_TYPE = "Q8_0"
"""What multi-token-prediction heads and assistants get at least: drafts that are accepted less cost more than bits."""


@dataclass(frozen=True)
class QuantizeOptions:
    """How to quantize.

    Attributes:
        type: a type, or a mix of types.
        pure: give `type` to every matrix, without a mix and without sparing the head.
        tensor_types: (regular expression, type): what matrices get whose name it is found in; the first one counts.
        type_codes: (number, type): of tensor types in the source, where a fork of llama.cpp gives them other numbers.
        drop_mtp: leave a multi-token-prediction head out.
        force: replace what is there.
        split_bytes: largest size of a file; None: one file.
    """

    type: str
    pure: bool = False
    tensor_types: tuple[tuple[str, str], ...] = ()
    type_codes: tuple[tuple[int, str], ...] = ()
    drop_mtp: bool = False
    force: bool = False
    split_bytes: int | None = None

    def __post_init__(self) -> None:
        """
        Raises:
            CheckpointError: a type that cannot be written, no regular expression, or no size.
        """
        if self.split_bytes is not None and self.split_bytes < 1:
            raise CheckpointError(f"split_bytes is {self.split_bytes}; it must be positive")
        object.__setattr__(self, "type", _known(self.type, [*ENCODERS, *MIXES, *PLAIN]))
        pairs = tuple((pattern, _known(kind, [*ENCODERS, *PLAIN])) for pattern, kind in self.tensor_types)
        object.__setattr__(self, "tensor_types", pairs)
        codes = tuple((code, _known(kind, [*ENCODERS, *PLAIN])) for code, kind in self.type_codes)
        object.__setattr__(self, "type_codes", codes)
        for pattern, _ in pairs:
            try:
                re.compile(pattern)
            except re.error as error:
                raise CheckpointError(f"{pattern!r} is no regular expression: {error}") from error
        if self.pure and self.type in MIXES:
            raise CheckpointError(f"{self.type} is a mix of types and cannot be pure; give {MIXES[self.type]}")

    @property
    def mix(self) -> str:
        """The mix that `type` stands for."""
        return self.type if self.pure else ALIASES.get(self.type, self.type)


@dataclass(frozen=True)
class TensorPlan:
    """What becomes of a tensor.

    Attributes:
        source: the tensor as it is.
        type: its type in the new file.
        note: why it gets this type, where that is not plain to see.
    """

    source: TensorInfo
    type: str
    note: str = ""

    @property
    def num_bytes(self) -> int:
        """Its size in the new file."""
        return GGML_TYPES[self.type].tensor_bytes(self.source.shape)


def choose_types(
    tensors: Sequence[TensorInfo],
    options: QuantizeOptions,
    head: Collection[str],
    *,
    heads_per_kv: int,
    importance: bool,
) -> list[TensorPlan]:
    """The plan for all tensors, in their order.

    Args:
        tensors: as a GGUF names them.
        options: what is asked for.
        head: names of those that make up a multi-token-prediction head, or an assistant.
        heads_per_kv, importance: see `Facts`.

    Raises:
        CheckpointError: a pattern of `tensor_types` is found in no name of a matrix that can be quantized.
    """
    names = [tensor.name for tensor in tensors]
    blocks = {block for name in names if (block := block_of(name)) is not None}
    values = {block for name in names if holds_values(name) and (block := block_of(name)) is not None}
    facts = Facts(len(blocks), tuple(sorted(values)), "output.weight" not in names, heads_per_kv, importance)
    matrices = [tensor.name for tensor in tensors if not _is_kept(tensor)]
    for pattern, kind in options.tensor_types:
        if not any(re.search(pattern, name) for name in matrices):
            raise CheckpointError(
                f"--tensor-type {pattern}={kind}: found in the name of no matrix that can be quantized; list them with"
                " specjax inspect --tensors"
            )
    return [_plan(tensor, options, tensor.name in head, facts) for tensor in tensors]


def sizes_by_type(plan: Sequence[TensorPlan]) -> Mapping[str, tuple[int, int]]:
    """Type -> how many tensors, and how many bytes; the largest share first."""
    found: dict[str, tuple[int, int]] = {}
    for tensor in plan:
        count, size = found.get(tensor.type, (0, 0))
        found[tensor.type] = count + 1, size + tensor.num_bytes
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def _plan(tensor: TensorInfo, options: QuantizeOptions, of_head: bool, facts: Facts) -> TensorPlan:
    if _is_kept(tensor):
        return TensorPlan(tensor, tensor.type)
    asked = next((kind for pattern, kind in options.tensor_types if re.search(pattern, tensor.name)), None)
    if asked is not None:
        return _fitting(tensor, asked, "as asked for")
    if options.pure:
        return _fitting(tensor, options.type, "")
    kind = type_in_mix(tensor.name, options.mix, facts)
    if of_head and _bits(kind) < _bits(HEAD_TYPE):
        # What is packed more densely already gains nothing from more bits.
        return _fitting(tensor, HEAD_TYPE if _bits(tensor.type) > _bits(HEAD_TYPE) else tensor.type, "drafts")
    return _fitting(tensor, kind, "")


def _fitting(tensor: TensorInfo, kind: str, note: str) -> TensorPlan:
    """The type itself, or one for rows that are no multiple of its block."""
    chosen, width = kind, tensor.shape[-1]
    if width % GGML_TYPES[chosen].values:
        chosen = FALLBACKS.get(chosen, chosen)
    if width % GGML_TYPES[chosen].values:
        chosen = tensor.type if tensor.type in PLAIN else _LAST_RESORT
    if chosen != kind:
        note = f"rows of {width} do not divide into blocks of {kind}"
    return TensorPlan(tensor, chosen, note)


def _is_kept(tensor: TensorInfo) -> bool:
    """Whether a tensor is not quantized: vectors, integers, and small but important matrices."""
    integers = tensor.type.startswith("I") and tensor.type[1:].isdigit()
    unfit = not tensor.name.endswith(".weight") or _KEPT.search(tensor.name) is not None
    return integers or unfit or stays_f32(tensor.name, tensor.shape)


def _bits(kind: str) -> float:
    return 8 * GGML_TYPES[kind].num_bytes / GGML_TYPES[kind].values


def _known(kind: str, accepted: Collection[str]) -> str:
    if kind.upper() in accepted:
        return kind.upper()
    if kind.upper() in GGML_TYPES:
        raise CheckpointError(
            f"{kind.upper()} is not written: there is no encoder for it here; types that can be written are"
            f" {', '.join(accepted)}"
        )
    raise CheckpointError(f"{kind!r} is no type; types that can be written are {', '.join(accepted)}")
