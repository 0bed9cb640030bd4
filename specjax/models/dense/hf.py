"""Hugging Face checkpoints of plain decoder-only transformers (Qwen3, Llama).

Source: transformers `models/{qwen3,llama}`, whose defaults are used for keys that config.json lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rule import Copy, Rule
from checkpoints.mapping.table import RuleTable
from checkpoints.source import TensorInfo
from specjax.models.dense.config import DenseConfig
from specjax.models.dense.parameters import parameter_shapes
from specjax.models.parts import hf
from specjax.models.parts.names import copies, shapes, weights

_LAYER = weights({"input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm"})
_QK_NORMS = weights(hf.QK_NORMS)
_REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_CLASSES = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
_HEAD_WIDTH = {"qwen3": 128}
_UNSUPPORTED = ("attention_bias", "mlp_bias", "use_sliding_window")


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> DenseConfig:
    """The config of a Hugging Face checkpoint; see `FileFormat.read_config`."""
    del tensors
    hf.need(document, _REQUIRED, where)
    if asked := [key for key in _UNSUPPORTED if document.get(key)]:
        raise ConfigError(f"{where}: {', '.join(asked)}: not supported for this architecture")
    hf.need_value(document, "hidden_act", "silu", where)
    rope = document.get("rope_parameters") or document.get("rope_scaling") or {}
    formula = hf.read_formula(rope, where)
    arch, width, num_heads = document["model_type"], document["hidden_size"], document["num_attention_heads"]
    return DenseConfig(
        architecture=arch,
        vocab_size=document["vocab_size"],
        num_layers=document["num_hidden_layers"],
        width=width,
        mlp_width=document["intermediate_size"],
        num_heads=num_heads,
        num_kv_heads=document.get("num_key_value_heads") or num_heads,
        head_width=document.get("head_dim") or _HEAD_WIDTH.get(arch, width // num_heads),
        rope_theta=float(rope.get("rope_theta", document.get("rope_theta", 10000.0))),
        rope_factors=formula is not None,
        rope_formula=formula,
        norm_eps=document.get("rms_norm_eps", 1e-6),
        context_length=document.get("max_position_embeddings", 32768 if arch == "qwen3" else 2048),
        tied_embeddings=document.get("tie_word_embeddings", False),
    )


def config_to_hf(config: DenseConfig) -> dict[str, Any]:
    """The config.json of the class."""
    formula = config.rope_formula
    return {
        "architectures": [_CLASSES[config.architecture]],
        "model_type": config.architecture,
        **hf.uniform_document(config),
        "intermediate_size": config.mlp_width,
        "rope_parameters": {"rope_theta": config.rope_theta, **hf.write_formula(formula)},
        "attention_bias": False,
    }


def hf_rules(config: DenseConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors; `names` is not needed.

    Raises:
        ConfigError: the model has rotary divisors, but no known formula, by which alone config.json can state them.
    """
    del names

    def rules() -> Iterator[Rule]:
        yield Copy("model.embed_tokens.weight", "target.embed.weight")
        for i in range(config.num_layers):
            block, path = f"model.layers.{i}.", f"target.layers_{i}."
            yield from copies(_LAYER + hf.ATTENTION + hf.MLP, block, path)
            if config.qk_norm:
                yield from copies(_QK_NORMS, block, path)
        yield Copy("model.norm.weight", "target.norm.weight")
        yield from hf.divisor_rules(config.rope_factors, config.rope_formula, config.rope_theta, config.head_width)
        if not config.tied_embeddings:
            yield Copy("lm_head.weight", "target.lm_head.weight")

    ignored = {**hf.ROTARY_FREQUENCIES, **(hf.REPEATED_HEAD if config.tied_embeddings else {})}
    return RuleTable(tuple(rules()), ignored, shapes(parameter_shapes, config))


HF = FileFormat(("llama", "qwen3"), config_from_hf, config_to_hf, hf_rules)
