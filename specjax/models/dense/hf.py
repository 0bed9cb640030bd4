"""Hugging Face checkpoints of plain decoder-only transformers (Qwen3, Llama).

Source: transformers `models/{qwen3,llama}`, whose defaults are used for keys that config.json lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rule import weights
from checkpoints.mapping.table import RuleTable
from checkpoints.source import TensorInfo
from specjax.models.dense.config import DenseConfig
from specjax.models.dense.parameters import parameter_shapes
from specjax.models.parts import hf
from specjax.models.parts.fields import Fields
from specjax.models.parts.rules import rule_table

_LAYER = (*weights(hf.LAYER_NORMS), *hf.ATTENTION, *hf.MLP, *weights(hf.QK_NORMS))
_KEYS = {**hf.UNIFORM, "mlp_width": "intermediate_size"}
_DEFAULTS = {"num_kv_heads": None, "norm_eps": 1e-6, "tied_embeddings": False}
_FIELDS = {
    "qwen3": Fields(DenseConfig, _KEYS, {**_DEFAULTS, "head_width": 128, "context_length": 32768}),
    "llama": Fields(DenseConfig, _KEYS, {**_DEFAULTS, "head_width": None, "context_length": 2048}),
}
_CLASSES = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
_UNSUPPORTED = ("attention_bias", "mlp_bias", "use_sliding_window")


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> DenseConfig:
    """The config of a Hugging Face checkpoint; see `FileFormat.read_config`."""
    arch = document["model_type"]
    hf.need(document, _FIELDS[arch].required, where)
    if asked := [key for key in _UNSUPPORTED if document.get(key)]:
        raise ConfigError(f"{where}: {', '.join(asked)}: not supported for this architecture")
    formula = hf.read_formula(hf.rope_of(document), where)
    return DenseConfig(
        architecture=arch,
        **hf.read_uniform(document, tensors, _FIELDS[arch], where),
        rope_theta=hf.rope_theta(document),
        rope_factors=formula is not None,
        rope_formula=formula,
    )


def config_to_hf(config: DenseConfig) -> dict[str, Any]:
    """The config.json of the class."""
    return {
        "architectures": [_CLASSES[config.architecture]],
        "model_type": config.architecture,
        **hf.uniform_document(config, _FIELDS[config.architecture]),
        "rope_parameters": {"rope_theta": config.rope_theta, **hf.write_formula(config.rope_formula)},
        "attention_bias": False,
    }


def hf_rules(config: DenseConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors.

    Raises:
        ConfigError: the model has rotary divisors, but no known formula, by which alone config.json can state them.
    """
    divisors = hf.divisor_rules(config.rope_factors, config.rope_formula, config.rope_theta, config.head_width)
    rules = (*hf.trunk(_LAYER, config.num_layers), *divisors)
    return rule_table(parameter_shapes, config, rules, names, hf.ignored(tied=config.tied_embeddings))


HF = FileFormat(("llama", "qwen3"), config_from_hf, config_to_hf, hf_rules)
