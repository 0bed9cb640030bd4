"""Hugging Face checkpoints of DFlash, DFlash 2 and DSpark drafters, in the two forms that trainers write.

| form | trained by | what is special is said in | layers of the target | sliding layers |
| --- | --- | --- | --- | --- |
| plain | z-lab, SpecForge, DeepSeek | `dflash_config`, or beside it | by their outputs | causal in a block |
| speculators | speculators | `speculators_model_type` and keys beside it | by their inputs | as a key says |

Which heads a drafter has is told by its tensors.

Sources: speculators 0.9.0 `models/{dflash,dflash2,dspark}/config.py`, SpecForge 0.2.0 `modeling/draft/dflash.py` and
`dspark.py` and its training's masks, DeepSpec `modeling/dspark/qwen3`, llama.cpp `conversion/qwen.py`.
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
from specjax.models.drafters.speculators import LAYERS, MODEL_TYPE, layer_document, layer_fields, nested_layers
from specjax.models.parts import hf
from specjax.models.parts.draft_vocabulary import as_offsets
from specjax.models.parts.rules import rule_table

_DEEPSPEC = "Qwen3DSparkModel"
_CLASSES = ("DFlashDraftModel", "DFlash2DraftModel", "DSparkDraftModel", _DEEPSPEC)
_TYPES = ("dflash", "dflash2", "dspark")
_SPECIAL, _BLOCK, _MASK = "dflash_config", "block_size", "mask_token_id"
_OUTPUTS, _INPUTS = "target_layer_ids", "aux_hidden_state_layer_ids"
_NON_CAUSAL, _FROM_ANCHOR, _TOP_K = "sliding_window_non_causal", "sample_from_anchor", "selector_top_k"
_DEFAULT_BLOCK, _PLAIN_BLOCK, _DEFAULT_TOP_K = 8, 16, 16
_CONVOLUTION, _PREDECESSORS = "layers.0.attention_conv.", "candidate_selector.predecessor_codebook"
_CONFIDENCE = "confidence_head.proj.weight"
_MARKOV_PLACES = ("markov_head.", "logit_head.")
"""Files of older trainers have the second."""
_LAYER = (
    *weights({**hf.LAYER_NORMS, **hf.QK_NORMS}),
    *hf.ATTENTION,
    *hf.MLP,
    *copies(
        {
            f"{place}_conv.{name}": f"{path}_conv.{parameter}"
            for place, path in (("attention", "attn"), ("mlp", "mlp"))
            for name, parameter in (("base_kernel", "base"), ("kernel_projection.weight", "proj.weight"))
        }
    ),
)
_MARKOV = copies(
    {
        "markov_w1.weight": "embed.weight",
        "markov_w2.weight": "out.weight",
        "gate_proj.weight": "gate.proj.weight",
        "gate_proj.bias": "gate.bias",
        "joint_proj.weight": "joint.proj.weight",
        "joint_proj.bias": "joint.bias",
    }
)
_ENDS = (
    *weights({"fc": "fc", "hidden_norm": "hidden_norm", "norm": "norm", "lm_head": "lm_head", "embed_tokens": "embed"}),
    *weights({"candidate_selector.hidden_projection": "selector.hidden"}),
    *copies(
        {
            _PREDECESSORS: "selector.before.weight",
            "candidate_selector.successor_codebook": "selector.after.weight",
            _CONFIDENCE: "confidence.proj.proj.weight",
            "confidence_head.proj.bias": "confidence.proj.bias",
        }
    ),
    *(rule for place in _MARKOV_PLACES for rule in within(_MARKOV, place, "markov.")),
)
_IGNORED = {
    r"(model\.)?t2d": "which of the target's tokens the drafter has: the other side of d2t",
    r"verifier_(norm|lm_head)\..*": "copies of the target's",
    r".*rotary_emb\..*": "rotary frequencies follow from the config",
}
_UNSUPPORTED = ("attention_value_scale", "output_multiplier", "final_logit_softcapping", "use_swa")


def recognizes(document: Mapping[str, Any]) -> bool:
    """Whether config.json is of a block drafter; the plain ones have the `model_type` of an ordinary model."""
    if MODEL_TYPE in document:
        return document[MODEL_TYPE] in _TYPES
    return _SPECIAL in document or hf.has_class(document, _CLASSES)


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> DFlashConfig:
    """The config of a Hugging Face checkpoint; see `FileFormat.read_config`."""
    shapes = {name.removeprefix("model."): info.shape for name, info in tensors.items()}
    if MODEL_TYPE in document:
        text, special = nested_layers(document, DFlashConfig, where)[0], document
        block, window_from = document.get(_BLOCK, _DEFAULT_BLOCK), "block"
        causal, sliding_causal = False, not document.get(_NON_CAUSAL, document[MODEL_TYPE] == "dflash2")
        layers_read = tuple(document.get(_INPUTS) or ())
        from_anchor = document.get(_FROM_ANCHOR, document[MODEL_TYPE] == "dspark")
    else:
        text, special = document, {**document, **(document.get(_SPECIAL) or {})}
        block, window_from = special.get(_BLOCK, _PLAIN_BLOCK), "slot"
        causal = bool(special.get("is_causal", special.get("causal", False)))
        sliding_causal = True
        layers_read = _read_outputs(special, where)
        from_anchor = special.get(_FROM_ANCHOR, any(f"{place}markov_w1.weight" in shapes for place in _MARKOV_PLACES))
    hf.need(special, (_MASK,), where)
    hf.rope_type(hf.rope_of(text), where, "default")
    interleaved = ["rope_is_neox_style: false"] * (not special.get("rope_is_neox_style", True))
    if asked := [*(key for key in _UNSUPPORTED if special.get(key)), *interleaved]:
        raise ConfigError(f"{where}: {', '.join(asked)}: not supported for block drafters")
    layers = layer_fields(text, DFlashConfig, where)
    rope_width = hf.rope_width(text, layers["head_width"], 1.0)
    if hf.has_class(document, (_DEEPSPEC,)):
        # It copies the target's config.json, also how much of a head rotates there. In these drafters all of it does.
        rope_width = layers["head_width"]
    return DFlashConfig(
        **layers,
        **_heads(shapes, special, layers["width"], where),
        draft_vocab_size=shapes["d2t"][0] if "d2t" in shapes else layers["vocab_size"],
        block_size=block,
        mask_token=special[_MASK],
        target_layers=layers_read,
        rope_width=rope_width,
        causal=tuple(causal if window is None else sliding_causal for window in layers["windows"]),
        window_from=window_from if any(layers["windows"]) else "slot",
        from_anchor=bool(from_anchor),
        embedding_scale=float(special.get("input_embedding_scale") or 1.0),
        own_embedding="embed_tokens.weight" in shapes,
        own_output="lm_head.weight" in shapes,
        maps_tokens="d2t" in shapes,
    )


def _read_outputs(special: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """The layers whose inputs are read, where the file names those whose outputs are."""
    outputs = special.get(_OUTPUTS)
    if outputs is None:
        hf.need(special, ("num_target_layers", "num_hidden_layers"), where)
        outputs = _spread(special["num_target_layers"], special["num_hidden_layers"])
    return tuple(index + 1 for index in outputs)


def _spread(num_target_layers: int, count: int) -> list[int]:
    """The outputs that SpecForge reads unless it is told: as many as the drafter has layers, evenly spread."""
    if count == 1:
        return [num_target_layers // 2]
    return [round(1 + index * (num_target_layers - 4) / (count - 1)) for index in range(count)]


def _heads(shapes: Mapping[str, tuple[int, ...]], special: Mapping[str, Any], width: int, where: str) -> dict[str, Any]:
    """The fields about heads and convolutions.

    Raises:
        ConfigError: the file declares a part that is not in it, without which its drafts would be others.
    """
    heads: dict[str, Any] = {}
    for place in _MARKOV_PLACES:
        if (embedding := shapes.get(f"{place}markov_w1.weight")) is not None:
            kinds = {"gate_proj": "gated", "joint_proj": "rnn"}
            kind = next((kind for name, kind in kinds.items() if f"{place}{name}.weight" in shapes), "vanilla")
            heads["markov"] = MarkovHead(embedding[1], kind)
    if (reads := shapes.get(_CONFIDENCE)) is not None:
        heads["confidence"] = "hidden" if reads[-1] == width else "both"
    if (codebook := shapes.get(_PREDECESSORS)) is not None:
        heads["selector"] = Selector(codebook[1], special.get(_TOP_K, _DEFAULT_TOP_K))
    if (base := shapes.get(f"{_CONVOLUTION}base_kernel")) is not None:
        rows = shapes[f"{_CONVOLUTION}kernel_projection.weight"][0]
        heads["convolution"] = Convolution(base[1], 2 * base[1] * base[2] // rows)
    declared = {
        "markov": bool(special.get("markov_rank")),
        "selector": special.get(MODEL_TYPE) == "dflash2" or hf.has_class(special, _CLASSES[1:2]),
    }
    if lacking := [head for head, there in declared.items() if there and head not in heads]:
        raise ConfigError(f"{where}: declares a {' and a '.join(lacking)} head, but has no tensors of it")
    return heads


def config_to_hf(config: DFlashConfig) -> dict[str, Any]:
    """The config.json of speculators, or the plain one for masks that speculators does not know.

    Raises:
        ConfigError: neither can express the drafter.
    """
    return _nested_document(config) if config.window_from == "block" or not any(config.windows) else _plain(config)


def _nested_document(config: DFlashConfig) -> dict[str, Any]:
    sliding = _check_expressible(config, {True, False}, "speculators")
    kind = "dspark" if config.markov or config.confidence else "dflash2" if config.selector else "dflash"
    layers = layer_document(config, "qwen3")
    layers["rope_parameters"] = _rope(config)
    document = {
        "architectures": [{"dspark": "DSparkDraftModel", "dflash2": "DFlash2DraftModel"}.get(kind, "DFlashDraftModel")],
        "model_type": "speculator_model",
        MODEL_TYPE: kind,
        "draft_vocab_size": config.draft_vocab_size,
        _BLOCK: config.block_size,
        _MASK: config.mask_token,
        _NON_CAUSAL: sliding != {True},
        _FROM_ANCHOR: config.from_anchor,
        **_head_keys(config),
        LAYERS: layers,
    }
    return document | ({_INPUTS: list(config.target_layers)} if config.target_layers else {})


def _plain(config: DFlashConfig) -> dict[str, Any]:
    _check_expressible(config, {True}, "the plain form")
    kind = "DFlash2DraftModel" if config.selector else "DSparkDraftModel" if config.markov else "DFlashDraftModel"
    special = {
        _OUTPUTS: [index - 1 for index in config.target_layers],
        _BLOCK: config.block_size,
        _MASK: config.mask_token,
        _FROM_ANCHOR: config.from_anchor,
        **({"projector_type": "dspark"} if config.markov else {}),
        **_head_keys(config),
    }
    rope = {"rope_parameters": _rope(config)}
    beside = {_BLOCK: config.block_size, _SPECIAL: special}  # SpecForge reads the size of a block there alone
    return {"architectures": [kind], **layer_document(config, "qwen3"), **rope, **beside}


def _check_expressible(config: DFlashConfig, sliding_causal: set[bool], form: str) -> set[bool]:
    """Whether the sliding layers are causal; a form knows those that are as `sliding_causal` says."""
    layers = list(zip(config.causal, config.windows, strict=True))
    sliding = {causal for causal, window in layers if window is not None}
    lacking = {
        "full layers that are causal": any(causal for causal, window in layers if window is None),
        "sliding layers of this kind": len(sliding) > 1 or not sliding <= sliding_causal,
        "a scale of embeddings": config.embedding_scale != 1,
    }
    if asked := [what for what, there in lacking.items() if there]:
        raise ConfigError(f"config.json has no block drafter with {', '.join(asked)} in {form}")
    return sliding


def _rope(config: DFlashConfig) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_width != config.head_width:
        rope["partial_rotary_factor"] = config.rope_width / config.head_width
    return rope


def _head_keys(config: DFlashConfig) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    if config.markov is not None:
        keys |= {"markov_rank": config.markov.rank, "markov_head_type": config.markov.kind}
    if config.markov is not None or config.confidence is not None:
        keys |= {"enable_confidence_head": config.confidence is not None}
        keys |= {"confidence_head_with_markov": config.confidence == "both"}
    if config.selector is not None:
        keys |= {"selector_rank": config.selector.rank, _TOP_K: config.selector.top_k}
    if config.convolution is not None:
        keys |= {"conv_kernel_size": config.convolution.kernel, "conv_group_size": config.convolution.group}
    return keys


def hf_rules(config: DFlashConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors; some files have `model.` before every name."""
    rules = (
        *within(_ENDS, "", "dflash."),
        *repeated(_LAYER, "layers.{}.", "dflash.layers_{}.", len(config.windows)),
        *copies({"d2t": "dflash.tokens"}, as_offsets(config.vocab_size)),
    )
    both = (*rules, *within(rules, "model.", ""))
    return rule_table(parameter_shapes, config, both, names, _IGNORED, {"dflash.tokens": "I64"})


HF = FileFormat((), config_from_hf, config_to_hf, hf_rules, recognizes=recognizes)
