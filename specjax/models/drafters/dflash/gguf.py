"""GGUF files of DFlash, DFlash 2 and DSpark drafters.

Sources: llama.cpp `src/models/dflash.cpp` (what is read, and its defaults), `conversion/qwen.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rule import copies, repeated, weights, within
from checkpoints.mapping.table import RuleTable
from checkpoints.source import TensorInfo
from specjax.models.drafters.dflash.config import Convolution, DFlashConfig, MarkovHead, Selector
from specjax.models.drafters.dflash.parameters import parameter_shapes
from specjax.models.parts import gguf
from specjax.models.parts.draft_vocabulary import as_tokens
from specjax.models.parts.fields import Fields
from specjax.models.parts.rules import rule_table

_FIELDS = Fields(
    DFlashConfig,
    {**gguf.UNIFORM, "mlp_width": "feed_forward_length", "block_size": "block_size"},
    gguf.UNIFORM_DEFAULTS,
)
_MASK = "tokenizer.ggml.mask_token_id"
_TARGET_LAYERS, _CAUSAL, _FROM_ANCHOR = "target_layers", "attention.causal", "sample_from_anchor"
_WINDOW, _SLIDING, _SCALE = "attention.sliding_window", "attention.sliding_window_pattern", "embedding_scale"
_TOKENS, _OUTPUT, _EMBEDDING, _MARKOV = "d2t", "output.weight", "token_embd.weight", "markov_w1.weight"
_CONFIDENCE, _SELECTOR, _CONVOLUTION = "conf_proj.weight", "selector_hidden.weight", "blk.0.attn_conv_base"
_UNSUPPORTED = (
    "attention.value_scale",
    "attention.scale",
    "logit_scale",
    "final_logit_softcapping",
    "hyper_connection.count",
)
_LAYER = (
    *weights({"attn_norm": "attn_norm", "ffn_norm": "mlp_norm"}),
    *gguf.ATTENTION,
    *gguf.QK_NORMS,
    *gguf.MLP,
    *copies(
        {
            "attn_conv_base": "attn_conv.base",
            "ffn_conv_base": "mlp_conv.base",
            "attn_conv_proj.weight": "attn_conv.proj.weight",
            "ffn_conv_proj.weight": "mlp_conv.proj.weight",
        }
    ),
)
_ENDS = copies(
    {
        "fc.weight": "fc.weight",
        "enc.output_norm.weight": "hidden_norm.weight",
        "output_norm.weight": "norm.weight",
        _OUTPUT: "lm_head.weight",
        _EMBEDDING: "embed.weight",
        _MARKOV: "markov.embed.weight",
        "markov_w2.weight": "markov.out.weight",
        _CONFIDENCE: "confidence.proj.proj.weight",
        "conf_proj.bias": "confidence.proj.bias",
        "selector_predecessor.weight": "selector.before.weight",
        "selector_successor.weight": "selector.after.weight",
        _SELECTOR: "selector.hidden.weight",
    }
)


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> DFlashConfig:
    """The config of a GGUF file; see `FileFormat.read_config`."""
    keys = gguf.Keys(metadata, where)
    keys.need(*_FIELDS.required, "block_count", _TARGET_LAYERS)
    if _MASK not in metadata:
        raise ConfigError(f"{where}: the metadata lack {_MASK}; a block cannot be made without it")
    if asked := [key for key in _UNSUPPORTED if keys.get(key)]:
        raise ConfigError(f"{where}: {', '.join(asked)}: not supported for block drafters")
    settings = keys.read_uniform(_FIELDS, tensors)
    settings.pop("tied_embeddings")
    count, window = keys.get("block_count"), keys.get(_WINDOW, 0)
    sliding = keys.per_layer(_SLIDING, count, default=False) if window else [False] * count
    markov = tensors.get(_MARKOV)
    return DFlashConfig(
        **settings,
        draft_vocab_size=tensors[_TOKENS].shape[0] if _TOKENS in tensors else settings["vocab_size"],
        mask_token=metadata[_MASK],
        target_layers=tuple(keys.get(_TARGET_LAYERS)),
        windows=tuple(window if slides else None for slides in sliding),
        causal=(bool(keys.get(_CAUSAL, False)),) * count,
        from_anchor=markov is not None and bool(keys.get(_FROM_ANCHOR, True)),
        markov=None if markov is None else MarkovHead(markov.shape[1]),
        confidence="both" if _CONFIDENCE in tensors else None,
        selector=Selector(keys.get("selector_rank"), keys.get("selector_top_k")) if _SELECTOR in tensors else None,
        convolution=Convolution(keys.get("conv_kernel_size"), keys.get("conv_group_size"))
        if _CONVOLUTION in tensors
        else None,
        embedding_scale=keys.get(_SCALE) or 1.0,
        own_embedding=_EMBEDDING in tensors,
        own_output=_OUTPUT in tensors,
        maps_tokens=_TOKENS in tensors,
    )


def config_to_gguf(config: DFlashConfig) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this drafter, `general.architecture` apart.

    Raises:
        ConfigError: GGUF cannot express it.
    """
    sizes = {window for window in config.windows if window is not None}
    markov = config.markov
    lacking = {
        "layers of which some are causal in a block": len(set(config.causal)) > 1,
        "windows of several sizes": len(sizes) > 1,
        "windows that all slots count from the block's first": bool(sizes) and config.window_from != "slot",
        "a Markov head with a gate or a recurrence": markov is not None and markov.kind != "vanilla",
        "a confidence head that reads hidden states alone": config.confidence == "hidden",
        "a first slot that drafts, without a Markov head": config.from_anchor and markov is None,
        "the target's output head for a vocabulary of its own": config.maps_tokens and not config.own_output,
    }
    if asked := [what for what, there in lacking.items() if there]:
        raise ConfigError(f"GGUF has no block drafter with {', '.join(asked)}; keep it in Hugging Face's form")
    if not config.target_layers:
        raise ConfigError(
            "the drafter does not say which layers of the target it reads, and a GGUF must; add"
            ' "aux_hidden_state_layer_ids": [2, L // 2, L - 3] to config.json, for a target of L layers'
        )
    keys = {
        **gguf.uniform_keys(config, _FIELDS),
        "block_count": len(config.windows),
        "rope.dimension_count": config.rope_width,
        _TARGET_LAYERS: list(config.target_layers),
        _CAUSAL: True if all(config.causal) else None,
        _FROM_ANCHOR: config.from_anchor if markov is not None else None,
        "has_confidence_head": True if config.confidence else None,
        _WINDOW: sizes.pop() if sizes else None,
        _SLIDING: [window is not None for window in config.windows] if any(config.windows) else None,
        _SCALE: config.embedding_scale if config.embedding_scale != 1 else None,
    }
    if config.selector is not None:
        keys |= {"selector_rank": config.selector.rank, "selector_top_k": config.selector.top_k}
    if config.convolution is not None:
        keys |= {"conv_kernel_size": config.convolution.kernel, "conv_group_size": config.convolution.group}
    return {**gguf.metadata_of(config, keys), _MASK: config.mask_token}


def gguf_rules(config: DFlashConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file."""
    rules = (
        *within(_ENDS, "", "dflash."),
        *repeated(_LAYER, "blk.{}.", "dflash.layers_{}.", len(config.windows)),
        *copies({_TOKENS: "dflash.tokens"}, as_tokens(config.vocab_size)),
    )
    return rule_table(parameter_shapes, config, rules, names, integers={"dflash.tokens": "I64"})


GGUF = FileFormat(("dflash",), config_from_gguf, config_to_gguf, gguf_rules)
