"""Gemma 4 assistants in GGUF files and Hugging Face checkpoints: tensor names, metadata, config.json.

Sources: llama.cpp `gguf-py/gguf/constants.py`, `src/models/gemma4-assistant.cpp` and `conversion/gemma.py`, which
leaves the centroid head out; transformers `models/gemma4_assistant`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.findings import Report
from checkpoints.mapping.rule import Copy, Rule
from checkpoints.mapping.table import RuleTable
from checkpoints.source import TensorInfo
from specjax.models.gemma4 import gguf as gemma4_gguf
from specjax.models.gemma4 import hf as gemma4_hf
from specjax.models.gemma4.assistant_config import CentroidHead, Gemma4AssistantConfig
from specjax.models.gemma4.config import FULL_ATTENTION, SLIDING_ATTENTION
from specjax.models.gemma4.parameters import assistant_shapes
from specjax.models.parts import hf
from specjax.models.parts.gguf import Keys
from specjax.models.parts.names import copies, shapes, weights

_ARCHITECTURE = "gemma4-assistant"
_GGUF_ENDS = weights(
    {
        "token_embd": "mtp.embed",
        "output_norm": "mtp.norm",
        "nextn.pre_projection": "mtp.pre_projection",
        "nextn.post_projection": "mtp.post_projection",
    }
)
_HF_ENDS = weights(
    {
        "model.embed_tokens": "mtp.embed",
        "model.norm": "mtp.norm",
        "pre_projection": "mtp.pre_projection",
        "post_projection": "mtp.post_projection",
    }
)
_CENTROIDS, _ORDERING = "mtp.centroids.proj.weight", "mtp.centroids.token_ordering"
GGUF_CENTROIDS, _GGUF_ORDERING = "masked_embd_centroids.weight", "masked_embd_ordering"
_HF_CENTROIDS, _HF_ORDERING = "masked_embedding.centroids.weight", "masked_embedding.token_ordering"
_DEFAULT_CENTROIDS, _DEFAULT_SELECTED = 2048, 32
SELECTED = "centroid_intermediate_top_k"
_REQUIRED = (*gemma4_gguf.REQUIRED, "embedding_length_out")
_REQUIRED_HF = ("backbone_hidden_size", "text_config")


def config_from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str
) -> Gemma4AssistantConfig:
    """The config of a GGUF file; see `FileFormat.read_config`. Files from before llama.cpp knew it are refused."""
    if metadata.get("general.architecture") != _ARCHITECTURE or any(name.startswith("mtp.") for name in tensors):
        raise ConfigError(
            f"{where}: an assistant in the old form, of before llama.cpp could run it (architecture 'gemma4_assistant',"
            " tensors 'mtp.*', no hyper-parameters). Convert the Hugging Face checkpoint again with a present"
            " convert_hf_to_gguf.py of llama.cpp, or load the checkpoint's folder as it is"
        )
    keys = Keys(metadata, where)
    keys.need(*_REQUIRED)
    layer_types = gemma4_gguf.layer_types_of(keys)
    centroids = None
    if (table := tensors.get(GGUF_CENTROIDS)) is not None:
        centroids = CentroidHead(table.shape[0], keys.get(SELECTED, _DEFAULT_SELECTED))
    return Gemma4AssistantConfig(
        vocab_size=keys.vocab_size(tensors),
        target_width=keys.get("embedding_length_out"),
        width=keys.get("embedding_length"),
        layer_types=layer_types,
        num_heads=keys.get("attention.head_count"),
        mlp_width=keys.per_layer("feed_forward_length", len(layer_types))[0],
        sliding=gemma4_gguf.attention_of(keys, layer_types, SLIDING_ATTENTION),
        full=gemma4_gguf.attention_of(keys, layer_types, FULL_ATTENTION),
        centroids=centroids,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        context_length=keys.get("context_length"),
    )


def config_to_gguf(config: Gemma4AssistantConfig) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this model, `general.architecture` apart.

    Raises:
        ConfigError: GGUF cannot express it.
    """
    num_layers = len(config.layer_types)
    keys = gemma4_gguf.attention_keys(config.layer_types, config.num_heads, config.sliding, config.full) | {
        "block_count": num_layers,
        "nextn_predict_layers": num_layers,
        "context_length": config.context_length,
        "embedding_length": config.width,
        "embedding_length_out": config.target_width,
        "embedding_length_per_layer_input": 0,
        "vocab_size": config.vocab_size,
        "feed_forward_length": config.mlp_width,
        "attention.shared_kv_layers": num_layers,
        "attention.layer_norm_rms_epsilon": float(config.norm_eps),
    }
    if config.centroids is not None:
        keys[SELECTED] = config.centroids.selected
    return {f"{_ARCHITECTURE}.{key}": value for key, value in keys.items()}


def gguf_rules(config: Gemma4AssistantConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file."""
    del names

    def rules() -> Iterator[Rule]:
        yield from copies(_GGUF_ENDS, "", "")
        yield gemma4_gguf.RopeDivisors(config.full)
        for i in range(len(config.layer_types)):
            yield from gemma4_gguf.gguf_layer(config.layer(i), f"blk.{i}.", f"mtp.layers_{i}.")
        if config.centroids is not None:
            yield Copy(GGUF_CENTROIDS, _CENTROIDS)
            yield Copy(_GGUF_ORDERING, _ORDERING)

    return _table(config, rules(), {})


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Gemma4AssistantConfig:
    """The config of a Hugging Face checkpoint; see `FileFormat.read_config`."""
    del tensors
    hf.need(document, _REQUIRED_HF, where)
    if not document.get("tie_word_embeddings", True):
        raise ConfigError(f"{where}: tie_word_embeddings is false; an assistant's head is its embedding table")
    text = document["text_config"]
    gemma4_hf.check_text(text, gemma4_hf.REQUIRED, where)
    layer_types = gemma4_hf.layer_types_of(text)
    sliding, full = gemma4_hf.attention_of(text, layer_types)
    centroids = None
    if document.get("use_ordered_embeddings", False):
        centroids = CentroidHead(
            document.get("num_centroids", _DEFAULT_CENTROIDS), document.get(SELECTED, _DEFAULT_SELECTED)
        )
    return Gemma4AssistantConfig(
        vocab_size=text["vocab_size"],
        target_width=document["backbone_hidden_size"],
        width=text["hidden_size"],
        layer_types=layer_types,
        num_heads=text["num_attention_heads"],
        mlp_width=text["intermediate_size"],
        sliding=sliding,
        full=full,
        centroids=centroids,
        norm_eps=text.get("rms_norm_eps", 1e-6),
        context_length=text.get("max_position_embeddings", 131072),
    )


def config_to_hf(config: Gemma4AssistantConfig) -> dict[str, Any]:
    """The config.json from which transformers builds `Gemma4AssistantForCausalLM`."""
    value_is_key = config.sliding.num_kv_heads != config.full.num_kv_heads
    document: dict[str, Any] = {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": config.target_width,
        "tie_word_embeddings": True,
        "use_ordered_embeddings": config.centroids is not None,
        "text_config": {
            **gemma4_hf.text_document(config.layer_types, config.num_heads, config.sliding, config.full, value_is_key),
            "vocab_size": config.vocab_size,
            "vocab_size_per_layer_input": 0,
            "hidden_size": config.width,
            "intermediate_size": config.mlp_width,
            "rms_norm_eps": config.norm_eps,
            "max_position_embeddings": config.context_length,
            "tie_word_embeddings": True,
            "num_kv_shared_layers": len(config.layer_types),
            "hidden_size_per_layer_input": 0,
        },
    }
    if config.centroids is not None:
        document["num_centroids"] = config.centroids.num_centroids
        document[SELECTED] = config.centroids.selected
    return document


def hf_rules(config: Gemma4AssistantConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors."""
    del names

    def rules() -> Iterator[Rule]:
        yield from copies(_HF_ENDS, "", "")
        for i in range(len(config.layer_types)):
            yield from gemma4_hf.hf_layer(config.layer(i), f"model.layers.{i}.", f"mtp.layers_{i}.")
        if config.centroids is not None:
            yield Copy(_HF_CENTROIDS, _CENTROIDS)
            yield Copy(_HF_ORDERING, _ORDERING)

    return _table(config, rules(), hf.REPEATED_HEAD | hf.ROTARY_FREQUENCIES)


def _table(config: Gemma4AssistantConfig, rules: Iterator[Rule], ignored: Mapping[str, str]) -> RuleTable:
    integers = frozenset({_ORDERING} if config.centroids is not None else ())
    return RuleTable(tuple(rules), ignored, shapes(assistant_shapes, config), integers)


def check_centroids(
    config: Gemma4AssistantConfig, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], report: Report
) -> None:
    """Report a centroid head that is lost or not declared, or whose centroids do not divide the vocabulary."""
    declared = metadata.get("use_ordered_embeddings")
    if config.centroids is None:
        if any("masked_emb" in name for name in tensors):
            report.error(
                f"there are tensors of a centroid head, but use_ordered_embeddings is {declared!r}",
                "set it to true in config.json, or download the file again",
            )
        elif any(key.endswith(f".{SELECTED}") for key in metadata):
            report.error(
                f"{SELECTED} declares a centroid head, but there is no {GGUF_CENTROIDS}",
                "the head was lost: convert the original again, with specjax convert",
            )
        return
    count, vocabulary = config.centroids.num_centroids, config.vocab_size
    if vocabulary % count:
        report.error(
            f"{count} centroids cannot share {vocabulary} tokens evenly",
            "the number of centroids and the vocabulary are of different models: download it again",
        )
    elif config.centroids.selected > count:
        report.error(f"{config.centroids.selected} of {count} centroids are to be chosen", "correct the metadata")
    else:
        report.checked.append(f"{count} centroids have {vocabulary // count} tokens each")


GGUF = FileFormat(("gemma4-assistant", "gemma4_assistant"), config_from_gguf, config_to_gguf, gguf_rules)
HF = FileFormat(("gemma4_assistant",), config_from_hf, config_to_hf, hf_rules)
