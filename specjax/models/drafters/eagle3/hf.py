"""Hugging Face checkpoints of EAGLE-3 drafters, in the two forms that trainers write.

| form | trained by | config.json | tensors |
| --- | --- | --- | --- |
| plain | SafeAILab's EAGLE, SpecForge | that of a Llama with one layer, and `draft_vocab_size` | `midlayer.*` |
| speculators | speculators | `speculators_model_type`, layers in `transformer_layer_config` | `layers.N.*` |

`norm_output` means two things: in speculators, that the next step takes normed hidden states as the output head does;
in SpecForge, that the output head takes them, which in speculators it always does.

Sources: speculators 0.9.0 `models/eagle3/config.py`; SpecForge 0.2.0 `modeling/draft/llama3_eagle.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rule import copies, repeated, weights, within
from checkpoints.mapping.table import RuleTable
from checkpoints.source import TensorInfo
from specjax.models.drafters.eagle3.config import Eagle3Config
from specjax.models.drafters.eagle3.parameters import parameter_shapes
from specjax.models.drafters.speculators import LAYERS, MODEL_TYPE, layer_document, layer_fields, nested_layers
from specjax.models.parts import hf
from specjax.models.parts.draft_vocabulary import as_offsets
from specjax.models.parts.rules import rule_table

_FEATURE_NORMS = {"norm_before_fc": "all", "fc_norm": "each"}
_DRAFT_SIZE, _TARGET_LAYERS = "draft_vocab_size", "eagle_aux_hidden_state_layer_ids"
_CLASS, _NESTED_CLASS = "LlamaForCausalLMEagle3", "Eagle3Speculator"
_CLASSES = (_CLASS, "Eagle3LlamaForCausalLM", _NESTED_CLASS, "Eagle3DraftModel")
_LAYER = (
    *weights({"hidden_norm": "hidden_norm", **hf.LAYER_NORMS, **hf.QK_NORMS}),
    *hf.ATTENTION,
    *hf.MLP,
)
_ENDS = weights(
    {
        "fc": "fc",
        "input_norm": "input_norm",
        "norm": "norm",
        "lm_head": "lm_head",
        "embed_tokens": "embed",
        **{f"fc_norm.{index}": f"feature_norms_{index}" for index in range(64)},
    }
)
_IGNORED = {
    "t2d": "which of the target's tokens the drafter has: the other side of d2t",
    r"verifier_(norm|lm_head)\..*": "copies of the target's",
    r".*rotary_emb\..*": "rotary frequencies follow from the config",
}


def recognizes(document: Mapping[str, Any]) -> bool:
    """Whether config.json is of an EAGLE-3 drafter; some have the class name of an ordinary Llama."""
    if document.get(MODEL_TYPE) == "eagle3" or hf.has_class(document, _CLASSES):
        return True
    return MODEL_TYPE not in document and _DRAFT_SIZE in document and document.get("num_hidden_layers") == 1


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Eagle3Config:
    """The config of a Hugging Face checkpoint; see `FileFormat.read_config`."""
    if MODEL_TYPE in document:
        text, kind = nested_layers(document, Eagle3Config, where)
        final_norm: str | None = "both" if document.get("norm_output", False) else "head"
    else:
        text, kind = document, "llama"
        final_norm = "head" if document.get("norm_output", True) else None
    layers = layer_fields(text, Eagle3Config, where)
    if (rotating := hf.rope_width(text, layers["head_width"], 1.0)) != layers["head_width"]:
        raise ConfigError(f"{where}: {rotating} of {layers['head_width']} dimensions rotate; all must")
    formula = hf.read_formula(hf.rope_of(text), where)
    norms = [norm for key, norm in _FEATURE_NORMS.items() if document.get(key)]
    if len(norms) > 1:
        raise ConfigError(f"{where}: {' and '.join(_FEATURE_NORMS)} are both set; a drafter has one of them at most")
    return Eagle3Config(
        **layers,
        draft_vocab_size=document.get(_DRAFT_SIZE) or layers["vocab_size"],
        target_width=document.get("target_hidden_size") or layers["width"],
        target_layers=_target_layers(document),
        qk_norm=kind == "qwen3",
        rope_factors=formula is not None,
        rope_formula=formula,
        norm_features=norms[0] if norms else None,
        norm_before_residual=bool(document.get("norm_before_residual", False)),
        final_norm=final_norm,
        own_embedding="embed_tokens.weight" in tensors,
        own_output="lm_head.weight" in tensors,
        maps_tokens="d2t" in tensors,
    )


def _target_layers(document: Mapping[str, Any]) -> tuple[int, ...]:
    """Whose inputs are read; `eagle_config` of SpecForge and ModelOpt names layers whose outputs are."""
    if inputs := document.get(_TARGET_LAYERS):
        return tuple(inputs)
    outputs = (document.get("eagle_config") or {}).get(_TARGET_LAYERS) or ()
    return tuple(index + 1 for index in outputs)


def _is_plain(config: Eagle3Config) -> bool:
    """Whether the plain form can express the drafter to all programs that read it."""
    one_plain_layer = config.windows == (None,) and not config.qk_norm and not config.norm_before_residual
    return one_plain_layer and config.final_norm != "both" and config.norm_features != "all"


def config_to_hf(config: Eagle3Config) -> dict[str, Any]:
    """The config.json of the plain form if it can express the drafter, else that of speculators.

    Raises:
        ConfigError: neither can express it.
    """
    layers = layer_document(config, "qwen3" if config.qk_norm else "llama")
    layers["rope_parameters"] = {"rope_theta": config.rope_theta, **hf.write_formula(config.rope_formula)}
    document: dict[str, Any] = {
        _DRAFT_SIZE: config.draft_vocab_size,
        "target_hidden_size": config.target_width,
        "norm_before_residual": config.norm_before_residual,
        **{key: config.norm_features == norm for key, norm in _FEATURE_NORMS.items()},
    }
    if config.target_layers:
        document[_TARGET_LAYERS] = list(config.target_layers)
    if _is_plain(config):
        return {"architectures": [_CLASS], **layers, **document, "norm_output": config.final_norm == "head"}
    if config.final_norm is None:
        raise ConfigError("config.json has no such EAGLE-3 drafter without a norm before its output head")
    return {
        "architectures": [_NESTED_CLASS],
        "model_type": "speculator_model",
        MODEL_TYPE: "eagle3",
        **document,
        "norm_output": config.final_norm == "both",
        LAYERS: layers,
    }


def hf_rules(config: Eagle3Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors."""
    plain = tuple(within(_LAYER, "midlayer.", "eagle3.layers_0."))
    nested = tuple(repeated(_LAYER, "layers.{}.", "eagle3.layers_{}.", len(config.windows)))
    divisors = hf.divisor_rules(
        config.rope_factors, config.rope_formula, config.rope_theta, config.head_width, "eagle3.rope_factors"
    )
    rules = (
        *within(_ENDS, "", "eagle3."),
        *(plain + nested if _is_plain(config) else nested),
        *copies({"d2t": "eagle3.tokens"}, as_offsets(config.vocab_size)),
        *divisors,
    )
    return rule_table(parameter_shapes, config, rules, names, _IGNORED, {"eagle3.tokens": "I64"})


HF = FileFormat((), config_from_hf, config_to_hf, hf_rules, recognizes=recognizes)
