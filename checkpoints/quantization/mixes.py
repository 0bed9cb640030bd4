"""Which tensor gets which type in the mixes of types that users of llama.cpp know by name.

Facts: llama.cpp `src/llama-quant.cpp`. Left out are its special cases for Falcon, for models called "70B" and for
mixtures of exactly eight experts; layers are numbered by the name of the tensor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gguf import LlamaFileType

MIXES: Mapping[str, str] = {"Q4_K_S": "Q4_K", "Q4_K_M": "Q4_K", "Q5_K_S": "Q5_K", "Q5_K_M": "Q5_K"}
"""Names of mixes that are no names of types, with the type that most matrices get."""

ALIASES: Mapping[str, str] = {"Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
"""What llama-quantize makes of the name of a type."""

FALLBACKS: Mapping[str, str] = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
"""Types with blocks of 32 in place of those of 256 where rows are no multiple of that."""

_VALUES = re.compile(r"(attn_v|attn_qkv|attn_kv_b)\.weight$")
_DOWN = re.compile(r"ffn_down(_exps|_shexp)?\.weight$")
_EMBEDDING = re.compile(r"(per_layer_)?token_embd\.weight$")


@dataclass(frozen=True)
class Facts:
    """What the choice of types depends on.

    Attributes:
        blocks: layers of the model, those of its head included.
        value_blocks: numbers of the layers that have a matrix of values, ascending.
        tied: whether the embedding table is the output head too.
        heads_per_kv: query heads to a KV head.
        importance: whether there is an importance matrix.
    """

    blocks: int
    value_blocks: tuple[int, ...]
    tied: bool
    heads_per_kv: int
    importance: bool


def file_type(mix: str) -> int:
    """The number that `general.file_type` has for a mix; for types without one that of a file to be looked into."""
    return int(
        getattr(LlamaFileType, f"MOSTLY_{mix}", LlamaFileType.ALL_F32 if mix == "F32" else LlamaFileType.GUESSED)
    )


def type_in_mix(name: str, mix: str, facts: Facts) -> str:
    """The type of a matrix of the trunk, whatever the length of its rows."""
    base = MIXES.get(mix, mix)
    if name == "output.weight" or (facts.tied and _EMBEDDING.fullmatch(name)):
        return base if base in ("Q8_0", "F16", "BF16", "F32") else "Q6_K"
    block = block_of(name)
    if block is None:
        return base
    if _VALUES.search(name):
        return _type_of_values(facts.value_blocks.index(block), mix, facts) or base
    return (_type_of_down(block, mix, facts) or base) if _DOWN.search(name) else base


def block_of(name: str) -> int | None:
    """The layer that a tensor belongs to."""
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else None


def holds_values(name: str) -> bool:
    """Whether a matrix makes the values of attention, or the input of a delta net: it bears rounding badly."""
    return bool(_VALUES.search(name))


def _type_of_values(index: int, mix: str, facts: Facts) -> str | None:
    match mix:
        case "Q4_K_M" | "Q5_K_M":
            return "Q6_K" if _more_bits(index, len(facts.value_blocks)) else None
        case "Q4_K_S":
            return "Q5_K" if index < 4 else None
        case "IQ4_NL" | "IQ4_XS":
            return "Q5_K" if facts.heads_per_kv >= 4 else None
    return None


def _type_of_down(block: int, mix: str, facts: Facts) -> str | None:
    early = block < facts.blocks // 8
    match mix:
        case "Q4_K_M" | "Q5_K_M":
            return "Q6_K" if _more_bits(block, facts.blocks) else None
        case "Q4_K_S":
            return "Q5_K" if early else None
        case "IQ4_NL" | "IQ4_XS":
            return "Q5_K" if early and not facts.importance else None
        case "Q4_0" | "Q5_0":
            return mix.replace("_0", "_1") if early and facts.importance else None
    return None


def _more_bits(index: int, count: int) -> bool:
    """Whether a layer gets more bits: the first eighth, the last eighth, and every third layer in between."""
    return index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2
