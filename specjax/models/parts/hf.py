"""What the families' Hugging Face checkpoints have in common: names of tensors, and formulas of config.json."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.mapping.rope_formula import DIVISORS, Llama3Rope
from checkpoints.mapping.rule import Computed, Rule
from specjax.models.parts.names import weights

ATTENTION = weights({f"self_attn.{x}_proj": f"attention.{x}_proj" for x in "qkvo"})
QK_NORMS: Mapping[str, str] = {f"self_attn.{x}_norm": f"attention.{x}_norm" for x in "qk"}
"""No table yet: families differ in how they store the weights of norms."""
MLP = weights({f"mlp.{x}_proj": f"mlp.{x}_proj" for x in ("gate", "up", "down")})

REPEATED_HEAD = {r"lm_head\.weight": "a second copy of the tied embedding table"}
ROTARY_FREQUENCIES = {r".*rotary_emb\..*": "rotary frequencies follow from the config"}
"""Tensors that are ignored, and why."""

_FORMULA = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_context": "original_max_position_embeddings",
}


def need(text: Mapping[str, Any], keys: Collection[str], where: str) -> None:
    """Raise `ConfigError` with every key that is absent from a config.json."""
    if absent := [key for key in keys if text.get(key) is None]:
        raise ConfigError(f"{where}: config.json lacks {', '.join(absent)}")


def need_value(text: Mapping[str, Any], key: str, supported: Any, where: str) -> None:
    """Raise `ConfigError` if a key is there and has another value than the only one that is built."""
    if (value := text.get(key)) is not None and value != supported:
        raise ConfigError(f"{where}: {key} is {value!r}; this family is built with {supported!r} only")


def uniform_document(config: Any) -> dict[str, Any]:
    """The keys of config.json for a config whose attention layers are all alike."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.context_length,
        "tie_word_embeddings": config.tied_embeddings,
    }


def trunk_prefix(names: Collection[str]) -> str:
    """`model.` for the text-only classes, `model.language_model.` inside the conditional-generation ones."""
    nested = "model.language_model."
    return nested if any(name.startswith(nested) for name in names) else "model."


def rope_type(rope: Mapping[str, Any], where: str, *supported: str) -> str:
    """The kind of rotary embedding that a document asks for; `ConfigError` unless it is one of these."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in supported:
        known = " and ".join(map(repr, supported))
        raise ConfigError(f"{where}: rope_type {kind!r} is not supported for this architecture, only {known}")
    return kind


def read_formula(rope: Mapping[str, Any], where: str) -> Llama3Rope | None:
    """The formula of rotary divisors that a document states; None for plain frequencies."""
    if rope_type(rope, where, "default", "llama3") == "default":
        return None
    return Llama3Rope(**{field: rope[key] for field, key in _FORMULA.items()})


def write_formula(formula: Llama3Rope | None) -> dict[str, Any]:
    """The entries of config.json from which `read_formula` reads the formula."""
    if formula is None:
        return {"rope_type": "default"}
    return {"rope_type": "llama3", **{key: getattr(formula, field) for field, key in _FORMULA.items()}}


def divisor_rules(factors: bool, formula: Llama3Rope | None, theta: float, width: int) -> Iterator[Rule]:
    """The rule that computes rotary divisors.

    Args:
        factors: whether the model has any.
        formula: how they follow from base and width of the frequencies.
        theta, width: these.

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
    yield Computed(DIVISORS, formula.factors(theta, width))
