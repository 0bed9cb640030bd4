"""What the families' Hugging Face checkpoints have in common: names of tensors, and formulas of config.json."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.mapping.rope_formula import DIVISORS, Llama3Rope
from checkpoints.mapping.rule import Computed, Rule, Rules, Split, Stack, copies, repeated, weights
from checkpoints.mapping.transforms import IDENTITY, Transform
from checkpoints.source import TensorInfo
from specjax.models.parts.fields import Fields

ATTENTION = weights({f"self_attn.{x}_proj": f"attention.{x}_proj" for x in "qkvo"})
QK_NORMS: Mapping[str, str] = {f"self_attn.{x}_norm": f"attention.{x}_norm" for x in "qk"}
LAYER_NORMS: Mapping[str, str] = {"input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm"}
"""No rules yet: families differ in how they store the weights of norms."""
MLP = weights({f"mlp.{x}_proj": f"mlp.{x}_proj" for x in ("gate", "up", "down")})
FUSED_EXPERTS: Rules = (
    Split(("mlp.experts.gate_up_proj",), ("moe.experts_gate", "moe.experts_up"), axis=1),
    *copies({"mlp.experts.down_proj": "moe.experts_down"}),
)

_HEAD = "lm_head.weight"
_REPEATED_HEAD = {re.escape(_HEAD): "a second copy of the tied embedding table"}
_ROTARY_FREQUENCIES = {r".*rotary_emb\..*": "rotary frequencies follow from the config"}
"""Tensors that are ignored, and why."""

UNIFORM = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_width": "head_dim",
    "norm_eps": "rms_norm_eps",
    "context_length": "max_position_embeddings",
    "tied_embeddings": "tie_word_embeddings",
}
"""Keys of models whose attention layers are all alike, see `read_uniform`."""
_ACTIVATION = "silu"
_DEFAULT_ROPE_THETA = 10000.0
_THETA, _ROTATING_SHARE, _ORIGINAL = "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"
_FORMULA = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_context": _ORIGINAL,
}


def need(text: Mapping[str, Any], keys: Collection[str], where: str) -> None:
    """Raise `ConfigError` with every key that is absent from a config.json."""
    if absent := [key for key in keys if text.get(key) is None]:
        raise ConfigError(f"{where}: config.json lacks {', '.join(absent)}")


def need_value(text: Mapping[str, Any], key: str, supported: Any, where: str) -> None:
    """Raise `ConfigError` if a key is there and has another value than the only one that is built."""
    if (value := text.get(key)) is not None and value != supported:
        raise ConfigError(f"{where}: {key} is {value!r}; this family is built with {supported!r} only")


def has_class(document: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether config.json names one of these classes."""
    classes = document.get("architectures")
    return isinstance(classes, list) and any(name in names for name in classes if isinstance(name, str))


def text_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json about the text model, which may be nested."""
    return document.get("text_config") or document


def read_uniform(
    text: Mapping[str, Any], tensors: Mapping[str, TensorInfo], fields: Fields, where: str
) -> dict[str, Any]:
    """The fields of a model whose attention layers are all alike; `fields` are these, among them `UNIFORM`."""
    need_value(text, "hidden_act", _ACTIVATION, where)
    need_causal(text, where)
    read = fields.read(text.get)
    read["tied_embeddings"] = is_tied(read["tied_embeddings"], tensors)
    read["num_kv_heads"] = read["num_kv_heads"] or read["num_heads"]
    read["head_width"] = read["head_width"] or read["width"] // read["num_heads"]
    return read


def need_causal(text: Mapping[str, Any], where: str) -> None:
    """Raise `ConfigError` if tokens see those that come after them."""
    need_value(text, "is_causal", True, where)


def is_tied(declared: bool, tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether the output head is the embedding table. As in transformers, a head with values of its own is used,
    whatever config.json declares.
    """
    return declared and (_HEAD not in tensors or tensors[_HEAD].repeats is not None)


def uniform_document(config: Any, fields: Fields) -> dict[str, Any]:
    """The keys of config.json that `read_uniform` reads."""
    return fields.write(config) | {"hidden_act": _ACTIVATION}


def rope_of(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a document says of its rotary embedding, gathered as transformers does: of two such parts `rope_scaling`
    counts, and what it lacks stands beside it.
    """
    part = text.get("rope_scaling") or text.get("rope_parameters") or {}
    beside = {key: text[key] for key in (_THETA, _ROTATING_SHARE) if text.get(key) is not None}
    original = text.get(_ORIGINAL) or part.get(_ORIGINAL) or text.get(UNIFORM["context_length"])
    return {**beside, **part, _ORIGINAL: original}


def rope_theta(text: Mapping[str, Any]) -> float:
    """The base of the rotary frequencies."""
    return float(rope_of(text).get(_THETA, _DEFAULT_ROPE_THETA))


def rope_width(text: Mapping[str, Any], head_width: int, default: float) -> int:
    """How many dimensions of a head rotate; `default` is the share that an absent key stands for."""
    return int(head_width * rope_of(text).get(_ROTATING_SHARE, default) + 1e-6)


def ignored(*, tied: bool) -> dict[str, str]:
    """Tensors that are ignored, and why; `tied`: the output head is the embedding table."""
    return {**_ROTARY_FREQUENCIES, **(_REPEATED_HEAD if tied else {})}


def trunk(layer: Rules, num_layers: int, prefix: str = "model.", norm: Transform = IDENTITY) -> Iterator[Rule]:
    """Rules for a trunk.

    Args:
        layer: rules for a layer.
        num_layers: how many there are.
        prefix: of the names of its tensors.
        norm: makes the weight of the final norm.
    """
    yield from weights({f"{prefix}embed_tokens": "target.embed"})
    yield from repeated(layer, f"{prefix}layers.{{}}.", "target.layers_{}.", num_layers)
    yield from weights({f"{prefix}norm": "target.norm"}, norm)
    yield from weights({"lm_head": "target.lm_head"})


def lone_experts(count: int) -> Rules:
    """Rules for experts with tensors of their own."""
    return tuple(
        Stack(tuple(f"mlp.experts.{expert}.{kind}_proj.weight" for expert in range(count)), (f"moe.experts_{kind}",))
        for kind in ("gate", "up", "down")
    )


def trunk_prefix(names: Collection[str]) -> str:
    """`model.` for the text-only classes, `model.language_model.` inside the conditional-generation ones."""
    nested = "model.language_model."
    return nested if any(name.startswith(nested) for name in names) else "model."


def rope_type(rope: Mapping[str, Any], where: str, *supported: str) -> str:
    """The kind of rotary embedding that a document asks for; `ConfigError` unless it is one of these."""
    if by_layer := [key for key, value in rope.items() if isinstance(value, Mapping)]:
        raise ConfigError(f"{where}: rotary embeddings of their own for {', '.join(by_layer)} are not supported here")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in supported:
        known = " and ".join(map(repr, supported))
        raise ConfigError(f"{where}: rope_type {kind!r} is not supported for this architecture, only {known}")
    return kind


def read_formula(rope: Mapping[str, Any], where: str) -> Llama3Rope | None:
    """The formula of rotary divisors that a document states; None for plain frequencies."""
    if rope_type(rope, where, "default", "llama3") == "default":
        return None
    need(rope, _FORMULA.values(), where)
    return Llama3Rope(**{field: rope[key] for field, key in _FORMULA.items()})


def write_formula(formula: Llama3Rope | None) -> dict[str, Any]:
    """The entries of config.json from which `read_formula` reads the formula."""
    if formula is None:
        return {"rope_type": "default"}
    return {"rope_type": "llama3", **{key: getattr(formula, field) for field, key in _FORMULA.items()}}


def divisor_rules(
    factors: bool, formula: Llama3Rope | None, theta: float, width: int, path: str = DIVISORS
) -> Iterator[Rule]:
    """The rule that computes rotary divisors.

    Args:
        factors: whether the model has any.
        formula: how they follow from base and width of the frequencies.
        theta, width: these.
        path: of the parameter.

    Raises:
        ConfigError: the formula, by which alone config.json can state them, is not known.
    """
    if not factors:
        return
    if formula is None:
        raise ConfigError(
            "config.json gives rotary divisors by a formula, that of Llama 3. This model has only the numbers, and no"
            " settings of the formula give them; convert from the original checkpoint instead"
        )
    yield Computed((), (path,), formula.factors(theta, width))
