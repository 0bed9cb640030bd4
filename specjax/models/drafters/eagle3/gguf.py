"""GGUF files of EAGLE-3 drafters.

Sources: llama.cpp `src/models/eagle3.cpp` (what is read, and its defaults), `conversion/llama.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rule import copies, weights, within
from checkpoints.mapping.table import RuleTable
from checkpoints.source import TensorInfo
from specjax.models.dense.gguf import interleave_pairs
from specjax.models.drafters.eagle3.config import Eagle3Config
from specjax.models.drafters.eagle3.parameters import parameter_shapes
from specjax.models.parts import gguf
from specjax.models.parts.draft_vocabulary import as_tokens
from specjax.models.parts.fields import Fields
from specjax.models.parts.rules import rule_table

_FIELDS = Fields(
    Eagle3Config,
    {
        **gguf.UNIFORM,
        "mlp_width": "feed_forward_length",
        "target_width": "target_hidden_size",
        "norm_before_residual": "norm_before_residual",
    },
    {**gguf.UNIFORM_DEFAULTS, "norm_before_residual": False},
)
_TARGET_LAYERS, _NORM_BEFORE_FC = "target_layers", "norm_before_fc"
_TOKENS, _OUTPUT, _EMBEDDING = "d2t", "output.weight", "token_embd.weight"
_ENDS = (
    *weights({"fc": "fc", "enc.output_norm": "input_norm", "output_norm": "norm"}),
    *copies({_OUTPUT: "lm_head.weight", _EMBEDDING: "embed.weight", gguf.ROPE_FACTORS: "rope_factors"}),
)


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Eagle3Config:
    """The config of a GGUF file; see `FileFormat.read_config`."""
    keys = gguf.Keys(metadata, where)
    keys.need(*_FIELDS.required, "block_count", _TARGET_LAYERS)
    if (layers := keys.get("block_count")) != 1:
        raise ConfigError(f"{where}: {layers} layers; drafters of this architecture have one")
    settings = keys.read_uniform(_FIELDS, tensors)
    settings.pop("tied_embeddings")
    if (rotating := settings.pop("rope_width")) != settings["head_width"]:
        raise ValueError(f"{rotating} of {settings['head_width']} dimensions rotate; all must")
    maps = _TOKENS in tensors
    return Eagle3Config(
        **settings,
        draft_vocab_size=tensors[_TOKENS].shape[0] if maps else settings["vocab_size"],
        target_layers=tuple(keys.get(_TARGET_LAYERS)),
        norm_features="all" if keys.get(_NORM_BEFORE_FC, False) else None,
        rope_factors=gguf.ROPE_FACTORS in tensors,
        own_embedding=_EMBEDDING in tensors,
        own_output=_OUTPUT in tensors,
        maps_tokens=maps,
    )


def config_to_gguf(config: Eagle3Config) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this drafter, `general.architecture` apart.

    Raises:
        ConfigError: GGUF cannot express it.
    """
    lacking = {
        "several layers": len(config.windows) > 1,
        "a sliding window": config.windows[0] is not None,
        "normed queries and keys": config.qk_norm,
        "a norm for the features of each layer (fc_norm)": config.norm_features == "each",
        "a final norm for other readers than the output head (norm_output)": config.final_norm != "head",
        "the target's output head for a vocabulary of its own": config.maps_tokens and not config.own_output,
    }
    if asked := [what for what, there in lacking.items() if there]:
        raise ConfigError(f"GGUF has no EAGLE-3 drafter with {', '.join(asked)}; keep it in Hugging Face's form")
    if not config.target_layers:
        raise ConfigError(
            "the drafter does not say which layers of the target it reads, and a GGUF must; add"
            ' "eagle_aux_hidden_state_layer_ids": [2, L // 2, L - 3] to config.json, for a target of L layers'
        )
    keys = {
        **gguf.uniform_keys(config, _FIELDS),
        "block_count": 1,
        "rope.dimension_count": config.head_width,
        _TARGET_LAYERS: list(config.target_layers),
        _NORM_BEFORE_FC: config.norm_features == "all",
    }
    return gguf.metadata_of(config, keys)


def gguf_rules(config: Eagle3Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file. Rotary pairs are neighbours there, as those of `llama` are."""
    layer = (
        *weights({"attn_norm": "attn_norm", "attn_norm_2": "hidden_norm", "ffn_norm": "mlp_norm"}),
        *weights({"attn_v": "attention.v_proj", "attn_output": "attention.o_proj"}),
        *weights({"attn_q": "attention.q_proj"}, interleave_pairs(config.num_heads, config.head_width)),
        *weights({"attn_k": "attention.k_proj"}, interleave_pairs(config.num_kv_heads, config.head_width)),
        *gguf.MLP,
    )
    rules = (
        *within(_ENDS, "", "eagle3."),
        *within(layer, "blk.0.", "eagle3.layers_0."),
        *copies({_TOKENS: "eagle3.tokens"}, as_tokens(config.vocab_size)),
    )
    return rule_table(
        parameter_shapes, config, rules, names, integers={"eagle3.tokens": "I64"} if config.maps_tokens else {}
    )


GGUF = FileFormat(("eagle3",), config_from_gguf, config_to_gguf, gguf_rules)
