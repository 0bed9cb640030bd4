"""Gemma 4 assistants in GGUF files and Hugging Face checkpoints: tensor names, metadata, config.json.

Sources: llama.cpp `gguf-py/gguf/constants.py`, `src/models/gemma4-assistant.cpp` and `conversion/gemma.py`, which
leaves the centroid head out; transformers `models/gemma4_assistant`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.findings import Report
from checkpoints.mapping.rule import Rule, copies, repeated, weights
from checkpoints.mapping.table import RuleTable
from checkpoints.source import TensorInfo
from specjax.models.gemma4 import gguf as gemma4_gguf
from specjax.models.gemma4 import hf as gemma4_hf
from specjax.models.gemma4.assistant_config import CentroidHead, Gemma4AssistantConfig
from specjax.models.gemma4.parameters import assistant_shapes
from specjax.models.parts import hf
from specjax.models.parts.fields import Fields
from specjax.models.parts.gguf import HEAD_COUNT, Keys, metadata_of
from specjax.models.parts.rules import rule_table

_ARCHITECTURE = "gemma4-assistant"
_ORDERING = "mtp.centroids.token_ordering"
GGUF_CENTROIDS = "masked_embd_centroids.weight"
_GGUF_ENDS = (
    *weights(
        {
            "token_embd": "mtp.embed",
            "output_norm": "mtp.norm",
            "nextn.pre_projection": "mtp.pre_projection",
            "nextn.post_projection": "mtp.post_projection",
        }
    ),
    *copies({GGUF_CENTROIDS: "mtp.centroids.proj.weight", "masked_embd_ordering": _ORDERING}),
)
_HF_ENDS = (
    *weights(
        {
            "model.embed_tokens": "mtp.embed",
            "model.norm": "mtp.norm",
            "pre_projection": "mtp.pre_projection",
            "post_projection": "mtp.post_projection",
            "masked_embedding.centroids": "mtp.centroids.proj",
        }
    ),
    *copies({"masked_embedding.token_ordering": _ORDERING}),
)
SELECTED = "centroid_intermediate_top_k"
_DEFAULT_CENTROIDS, _DEFAULT_SELECTED = 2048, 32
_GGUF_FIELDS = Fields(Gemma4AssistantConfig, {**gemma4_gguf.COMMON, "target_width": "embedding_length_out"})
_HF_FIELDS = Fields(Gemma4AssistantConfig, gemma4_hf.COMMON, gemma4_hf.COMMON_DEFAULTS)
_TARGET_WIDTH, _CENTROIDS, _HAS_CENTROIDS = "backbone_hidden_size", "num_centroids", "use_ordered_embeddings"


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
    common, _ = gemma4_gguf.read_common(keys, _GGUF_FIELDS, tensors)
    centroids = None
    if (table := tensors.get(GGUF_CENTROIDS)) is not None:
        centroids = CentroidHead(table.shape[0], keys.get(SELECTED, _DEFAULT_SELECTED))
    return Gemma4AssistantConfig(**common, centroids=centroids)


def config_to_gguf(config: Gemma4AssistantConfig) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this model, `general.architecture` apart.

    Raises:
        ConfigError: GGUF cannot express it.
    """
    keys = {
        **gemma4_gguf.common_keys(config, _GGUF_FIELDS),
        HEAD_COUNT: config.mtp_layers,
        "embedding_length_per_layer_input": 0,
        "attention.shared_kv_layers": config.mtp_layers,
        SELECTED: None if config.centroids is None else config.centroids.selected,
    }
    return metadata_of(config, keys)


def gguf_rules(config: Gemma4AssistantConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file."""
    layers = repeated(gemma4_gguf.LAYER, "blk.{}.", "mtp.layers_{}.", config.mtp_layers)
    return _table(config, (*_GGUF_ENDS, gemma4_gguf.rope_divisors(config), *layers), names, "I32")


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Gemma4AssistantConfig:
    """The config of a Hugging Face checkpoint; see `FileFormat.read_config`."""
    hf.need(document, (_TARGET_WIDTH, "text_config"), where)
    if not hf.is_tied(document.get(gemma4_hf.TIED, True), tensors):
        raise ConfigError(f"{where}: an assistant's head is its embedding table; here {gemma4_hf.TIED} is false, or"
                          " lm_head.weight has other values")  # fmt: skip
    centroids = None
    if document.get(_HAS_CENTROIDS, False):
        centroids = CentroidHead(
            document.get(_CENTROIDS, _DEFAULT_CENTROIDS), document.get(SELECTED, _DEFAULT_SELECTED)
        )
    return Gemma4AssistantConfig(
        **gemma4_hf.read_common(document["text_config"], _HF_FIELDS, where),
        target_width=document[_TARGET_WIDTH],
        centroids=centroids,
    )


def config_to_hf(config: Gemma4AssistantConfig) -> dict[str, Any]:
    """The config.json from which transformers builds `Gemma4AssistantForCausalLM`."""
    value_is_key = config.sliding.num_kv_heads != config.full.num_kv_heads
    document: dict[str, Any] = {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        _TARGET_WIDTH: config.target_width,
        gemma4_hf.TIED: True,
        _HAS_CENTROIDS: config.centroids is not None,
        "text_config": {
            **gemma4_hf.common_document(config, _HF_FIELDS, value_is_key=value_is_key),
            "vocab_size_per_layer_input": 0,
            gemma4_hf.TIED: True,
            "num_kv_shared_layers": config.mtp_layers,
            gemma4_hf.PER_LAYER_WIDTH: 0,
        },
    }
    if config.centroids is not None:
        document |= {_CENTROIDS: config.centroids.num_centroids, SELECTED: config.centroids.selected}
    return document


def hf_rules(config: Gemma4AssistantConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors."""
    layers = repeated(gemma4_hf.LAYER, "model.layers.{}.", "mtp.layers_{}.", config.mtp_layers)
    return _table(config, (*_HF_ENDS, *layers), names, "I64", hf.ignored(tied=True))


def _table(
    config: Gemma4AssistantConfig,
    rules: Iterable[Rule],
    names: Collection[str],
    ordering_type: str,
    ignored: Mapping[str, str] | None = None,
) -> RuleTable:
    integers = {} if config.centroids is None else {_ORDERING: ordering_type}
    return rule_table(assistant_shapes, config, rules, names, ignored, integers)


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
