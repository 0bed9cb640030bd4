"""What config.json says of a drafter's layers: keys, and what absent ones mean.

speculators nests the config of a transformers class, and leaves out whatever has the class's default.

Source: `LlamaConfig` and `Qwen3Config` in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoints.errors import ConfigError
from specjax.models.parts import hf
from specjax.models.parts.fields import Fields
from specjax.models.parts.requirements import MOST_LAYERS

MODEL_TYPE = "speculators_model_type"
LAYERS = "transformer_layer_config"
KEYS = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "mlp_width": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_width": "head_dim",
    "norm_eps": "rms_norm_eps",
    "context_length": "max_position_embeddings",
}
_COUNT, _SLIDES = "num_hidden_layers", "use_sliding_window"
_FULL, _SLIDING = "full_attention", "sliding_attention"
_COMMON = {"norm_eps": 1e-6, "num_heads": 32, "width": 4096, "num_layers": 32}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"vocab_size": 32000, "mlp_width": 11008, "context_length": 2048, "num_kv_heads": None},
    "qwen3": {"vocab_size": 151936, "mlp_width": 22016, "context_length": 32768, "num_kv_heads": 32},
}
_HEAD_WIDTH = {"llama": None, "qwen3": 128}


def nested_layers(document: Mapping[str, Any], config_type: type, where: str) -> tuple[Mapping[str, Any], str]:
    """The nested config with the defaults of its class filled in, and the name of the class.

    Raises:
        ConfigError: the class is not one whose layers are built.
    """
    nested = document.get(LAYERS) or {}
    kind = nested.get("model_type", "qwen3")
    if kind not in _DEFAULTS:
        known = " and ".join(_DEFAULTS)
        raise ConfigError(f"{where}: layers as those of {kind!r} are not supported, only of {known}")
    defaults = {**_COMMON, **_DEFAULTS[kind], "head_width": _HEAD_WIDTH[kind]}
    read = Fields(config_type, {**KEYS, "num_layers": _COUNT}, defaults).read(nested.get)
    slides = nested.get(_SLIDES, kind != "qwen3")  # Qwen3's class has no windows by default, whatever its layers are
    filled = {key: read[name] for name, key in KEYS.items()}
    return {**nested, **filled, _COUNT: read["num_layers"], _SLIDES: slides}, kind


def layer_fields(text: Mapping[str, Any], config_type: type, where: str) -> dict[str, Any]:
    """The fields of a config that are about the drafter's layers, `windows` among them.

    Args:
        text: config.json, or its nested part.
        config_type: the class of the config.
        where: the file, for messages.
    """
    optional = {"num_kv_heads": None, "head_width": None, "norm_eps": 1e-6, "context_length": 2048}
    fields = Fields(config_type, KEYS, optional)
    hf.need(text, fields.required, where)
    hf.need_value(text, "hidden_act", "silu", where)
    read = fields.read(text.get)
    read["num_kv_heads"] = read["num_kv_heads"] or read["num_heads"]
    read["head_width"] = read["head_width"] or read["width"] // read["num_heads"]
    if (count := text.get(_COUNT, 1)) not in range(1, MOST_LAYERS):
        raise ConfigError(f"{where}: {_COUNT} is {count!r}; it must be a whole number from 1")
    window, kinds = text.get("sliding_window"), text.get("layer_types") or [_FULL] * count
    if text.get(_SLIDES) and window and not text.get("layer_types"):
        raise ConfigError(f"{where}: use_sliding_window is true, and layer_types does not say which layers slide")
    if len(kinds) != count or not set(kinds) <= {_FULL, _SLIDING}:
        raise ConfigError(f"{where}: layer_types is {kinds}; it names {_FULL} or {_SLIDING} for each of {count} layers")
    if _SLIDING in kinds and not (isinstance(window, int) and window > 0):
        raise ConfigError(f"{where}: sliding_window is {window!r}; layers that slide need a whole number from 1")
    slides = text.get(_SLIDES, True)
    windows = tuple(window if kind == _SLIDING and slides else None for kind in kinds)
    return {**read, "windows": windows, "rope_theta": hf.rope_theta(text)}


def layer_document(config: Any, kind: str) -> dict[str, Any]:
    """The keys that `layer_fields` reads, of a transformers class.

    Raises:
        ConfigError: the windows are of several sizes.
    """
    document = {
        "model_type": kind,
        **{key: getattr(config, name) for name, key in KEYS.items()},
        _COUNT: len(config.windows),
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
    if len(sizes := {window for window in config.windows if window}) > 1:
        raise ConfigError(f"config.json has one sliding_window, and the drafter has {sorted(sizes)}")
    if sizes:
        kinds = [_FULL if window is None else _SLIDING for window in config.windows]
        document |= {"sliding_window": sizes.pop(), _SLIDES: True, "layer_types": kinds}
    return document
