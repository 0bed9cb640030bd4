"""What the families' GGUF files have in common: names of tensors, and how metadata are read.

Sources: llama.cpp `gguf-py/gguf/constants.py` and `src/llama-arch.cpp`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.mapping.rule import Rule, Rules, Split, copies, repeated, weights, within
from checkpoints.source import TensorInfo
from specjax.models.parts.declared_heads import one_head
from specjax.models.parts.fields import Fields
from specjax.models.parts.moe import MoEConfig

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
ROUTER_BIAS = "exp_probs_b.bias"
EXPERTS: Rules = (
    *copies(
        {
            "ffn_gate_inp.weight": "moe.router.weight",
            ROUTER_BIAS: "moe.router_bias",
            "ffn_down_exps.weight": "moe.experts_down",
            "ffn_gate_exps.weight": "moe.experts_gate",
            "ffn_up_exps.weight": "moe.experts_up",
        }
    ),
    Split(("ffn_gate_up_exps.weight",), ("moe.experts_gate", "moe.experts_up"), axis=1),
)
"""Some files have gates and ups in one tensor."""
SHARED_EXPERT = weights(
    {
        "ffn_gate_shexp": "moe.shared.gate_proj",
        "ffn_up_shexp": "moe.shared.up_proj",
        "ffn_down_shexp": "moe.shared.down_proj",
    }
)
_EMBEDDING = weights({"token_embd": "target.embed"})
_ENDS = weights({"output_norm": "target.norm", "output": "target.lm_head"})
_HEAD = weights(
    {
        "nextn.enorm": "enorm",
        "nextn.hnorm": "hnorm",
        "nextn.eh_proj": "eh_proj",
        "nextn.shared_head_norm": "norm",
        "nextn.embed_tokens": "embed",
        "nextn.shared_head_head": "lm_head",
    }
)
"""What an MTP head has beside its layer; the last three are optional."""

ROPE_FACTORS = "rope_freqs.weight"
HEAD_COUNT = "nextn_predict_layers"
OWN_PARTS = ("nextn.embed_tokens.weight", "nextn.shared_head_head.weight", "nextn.shared_head_norm.weight")
"""Tensors of an MTP head that are optional, see `own_parts`."""

UNIFORM = {
    "width": "embedding_length",
    "num_heads": "attention.head_count",
    "num_kv_heads": "attention.head_count_kv",
    "head_width": "attention.key_length",
    "rope_width": "rope.dimension_count",
    "rope_theta": "rope.freq_base",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "context_length": "context_length",
}
UNIFORM_DEFAULTS = {"num_kv_heads": None, "head_width": None, "rope_width": None, "rope_theta": 10000.0}
"""Keys of models whose attention layers are all alike, and what absent ones mean; see `Keys.read_uniform`."""
_SIGMOID = 2
"""llama.cpp's number of the gating function; it takes 0, none, for this one."""


def trunk(layer: Rules, num_layers: int) -> Iterator[Rule]:
    """Rules for a trunk, of those for a layer."""
    yield from _EMBEDDING
    yield from repeated(layer, "blk.{}.", "target.layers_{}.", num_layers)
    yield from _ENDS


def head(layer: Rules, block: int, path: str = "mtp.") -> Iterator[Rule]:
    """Rules for an MTP head, of those for its layer; `path` is the prefix of its parameters."""
    yield from within(layer, f"blk.{block}.", f"{path}block.")
    yield from within(_HEAD, f"blk.{block}.", path)


def model(layer: Rules, num_layers: int) -> Iterator[Rule]:
    """Rules for a trunk and the MTP head after it."""
    yield from trunk(layer, num_layers)
    yield from head(layer, num_layers)


def metadata_of(config: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a config: these keys with the prefix of its architecture, but for those that are None."""
    return {f"{config.architecture}.{key}": value for key, value in keys.items() if value is not None}


def uniform_keys(config: Any, fields: Fields) -> dict[str, Any]:
    """The keys of these fields and the others that `Keys.read_uniform` reads."""
    return fields.write(config) | {"vocab_size": config.vocab_size, "attention.value_length": config.head_width}


def expert_keys(moe: MoEConfig, fields: Fields) -> dict[str, Any]:
    """The keys of these fields, and of the gating function, for experts behind a sigmoid router."""
    return fields.write(moe) | {"expert_gating_func": _SIGMOID}


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

    def need_plain_attention(self) -> None:
        """Raise `ConfigError` if rotary frequencies are scaled, or tokens see those that come after them."""
        kind = self.get("rope.scaling.type", "linear")  # as in llama.cpp, a factor alone scales
        factor = self.get("rope.scaling.factor", self.get("rope.scale_linear", 1.0)) or 1.0
        if kind not in ("none", "linear") or (kind == "linear" and factor != 1):
            scaling = f"rope scaling {kind!r} with the factor {factor:g}"
        elif (attention := self.get("rope.scaling.attn_factor", 1.0)) != 1:
            scaling = f"attention scaled with positions, by {attention:g},"
        elif not self.get("attention.causal", True):
            scaling = "attention to later tokens"
        else:
            return
        raise ConfigError(f"{self.where}: {scaling} is not supported for this architecture")

    def read(self, fields: Fields) -> dict[str, Any]:
        """The values of fields, each of which is the same for all layers."""
        return fields.read(self.uniform, shortest)

    def read_uniform(self, fields: Fields, tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
        """The fields of a model whose attention layers are all alike: these, among them `UNIFORM`, and two more."""
        self.need_plain_attention()
        read = self.read(fields)
        read["num_kv_heads"] = read["num_kv_heads"] or read["num_heads"]
        read["head_width"] = read["head_width"] or read["width"] // read["num_heads"]
        read["rope_width"] = read["rope_width"] or read["head_width"]
        return read | {"vocab_size": self.vocab_size(tensors), "tied_embeddings": "output.weight" not in tensors}

    def read_experts(self, fields: Fields) -> dict[str, Any]:
        """The fields of experts behind a sigmoid router; a count or a scale of 0 means 1.

        Raises:
            ConfigError: they are chosen by another function.
        """
        if (gating := self.get("expert_gating_func", 0) or _SIGMOID) != _SIGMOID:
            raise ConfigError(
                f"{self.where}: expert_gating_func {gating!r} is not supported for this architecture, only {_SIGMOID}"
            )
        return {name: value or fields.defaults.get(name, 0) for name, value in self.read(fields).items()}

    def read_head(self, names: Collection[str]) -> tuple[int, dict[str, Any]]:
        """How many layers the trunk has, and the fields of an MTP head after it, see `one_head`."""
        declared = self.get(HEAD_COUNT, 0)
        num_layers = self.get("block_count") - declared
        return num_layers, one_head(declared, f"blk.{num_layers}.", OWN_PARTS, names, self.where)

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
    """The number that was meant by one stored as float32: 1e-6 would read 9.99999997e-07."""
    return float(f"{value:.7g}")
