"""What the families' GGUF files have in common: names of tensors, and how metadata are read.

Sources: llama.cpp `gguf-py/gguf/constants.py` and `src/llama-arch.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.mapping.rule import Copy, Rule
from checkpoints.mapping.transforms import IDENTITY
from checkpoints.source import TensorInfo
from specjax.models.parts.names import Names, copies, weights

ATTENTION = weights(
    {
        "attn_q": "attention.q_proj",
        "attn_k": "attention.k_proj",
        "attn_v": "attention.v_proj",
        "attn_output": "attention.o_proj",
    }
)
QK_NORMS = weights({"attn_q_norm": "attention.q_norm", "attn_k_norm": "attention.k_norm"})
MLP = weights({"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"})
EXPERTS: Names = (
    ("ffn_gate_inp.weight", "moe.router.weight", IDENTITY),
    ("ffn_down_exps.weight", "moe.experts_down", IDENTITY),
)
"""Gates and ups apart, which some files have in one tensor."""
EXPERTS_GATE_UP: Names = (
    ("ffn_gate_exps.weight", "moe.experts_gate", IDENTITY),
    ("ffn_up_exps.weight", "moe.experts_up", IDENTITY),
)
SHARED_EXPERT = weights(
    {
        "ffn_gate_shexp": "moe.shared.gate_proj",
        "ffn_up_shexp": "moe.shared.up_proj",
        "ffn_down_shexp": "moe.shared.down_proj",
    }
)
_HEAD = weights({"nextn.enorm": "enorm", "nextn.hnorm": "hnorm", "nextn.eh_proj": "eh_proj"})

ROPE_FACTORS = "rope_freqs.weight"
HEAD_EMBEDDING = "blk.{}.nextn.embed_tokens.weight"
HEAD_OUTPUT = "blk.{}.nextn.shared_head_head.weight"
HEAD_NORM = "blk.{}.nextn.shared_head_norm.weight"
"""Optional tensors of an MTP head; the block's number stands in the braces."""


def head_rules(block: int, path: str, *, own_norm: bool, own_embedding: bool, own_output: bool) -> Iterator[Rule]:
    """Rules for what an MTP head has beside its layer; `path` is the prefix of its parameters."""
    yield from copies(_HEAD, f"blk.{block}.", path)
    if own_norm:
        yield Copy(HEAD_NORM.format(block), f"{path}norm.weight")
    if own_embedding:
        yield Copy(HEAD_EMBEDDING.format(block), f"{path}embed.weight")
    if own_output:
        yield Copy(HEAD_OUTPUT.format(block), f"{path}lm_head.weight")


def uniform_keys(config: Any) -> dict[str, Any]:
    """The metadata, without the prefix, of a config whose attention layers are all alike."""
    return {
        "context_length": config.context_length,
        "embedding_length": config.width,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_width,
        "attention.value_length": config.head_width,
        "attention.layer_norm_rms_epsilon": float(config.norm_eps),
        "rope.freq_base": float(config.rope_theta),
    }


class Keys:
    """The metadata of a file, by names without the prefix of its architecture.

    Attributes:
        arch: the architecture.
        where: the file's name, for messages.
    """

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        self.metadata, self.where = metadata, where
        self.arch: str = metadata["general.architecture"]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self.metadata.get(f"{self.arch}.{key}", default)

    def need(self, *keys: str) -> None:
        """Raise `ConfigError` with every key that is absent."""
        if absent := [f"{self.arch}.{key}" for key in keys if f"{self.arch}.{key}" not in self.metadata]:
            raise ConfigError(f"{self.where}: the metadata lack {', '.join(absent)}; convert the model again")

    def need_no_rope_scaling(self) -> None:
        """Raise `ConfigError` if rotary frequencies are scaled."""
        if (scaling := self.get("rope.scaling.type", "none")) != "none":
            raise ConfigError(
                f"{self.where}: rope scaling {scaling!r} is not supported for this architecture, only 'none'"
            )

    def number(self, key: str, default: float | None = None) -> float:
        """A number as it was meant: 1e-6 stored as float32 would read 9.99999997e-07."""
        return shortest(self.get(key, default))

    def per_layer(self, key: str, count: int, default: Any = None) -> list[Any]:
        """A value for each layer, whether the file has one for all or a list."""
        value = self.get(key, default)
        values = value if isinstance(value, list) else [value] * count
        if len(values) != count:
            raise ValueError(f"{key} has {len(values)} entries for {count} layers")
        return values

    def uniform(self, key: str, default: int | None = None) -> int:
        """One number for all layers; 0 in a list with one for each stands for layers that have no use for it."""
        value = self.get(key, default)
        if not isinstance(value, list):
            return value
        numbers = set(value) - {0}
        if len(numbers) != 1:
            raise ValueError(f"{key}: {value} differs from layer to layer; this architecture has one value for all")
        return numbers.pop()

    def vocab_size(self, tensors: Mapping[str, TensorInfo]) -> int:
        """Rows of the embedding table, by the key, by the table itself or by the list of tokens."""
        if (size := self.get("vocab_size")) is not None:
            return size
        if (embedding := tensors.get("token_embd.weight")) is not None:
            return embedding.shape[0]
        if (tokens := self.metadata.get("tokenizer.ggml.tokens")) is not None:
            return len(tokens)
        raise ValueError("the size of the vocabulary is given by no key, no token_embd.weight and no token list")


def shortest(value: float) -> float:
    """The number that was meant by one stored as float32."""
    return float(f"{value:.7g}")
