"""Metadata of a model whose multi-token-prediction head is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from checkpoints.gguf_values import GGUFValue

_HF_COUNTS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")


def without_mtp_in_values(values: Mapping[str, GGUFValue]) -> dict[str, GGUFValue]:
    """Metadata of a GGUF that declare no head: fewer blocks, and lists with an entry per block cut accordingly."""
    arch = values["general.architecture"].value
    declared, blocks = f"{arch}.nextn_predict_layers", f"{arch}.block_count"
    heads = values[declared].value if declared in values else 0
    count = values[blocks].value
    kept = {}
    for key, value in values.items():
        if key == declared:
            continue
        if key == blocks:
            kept[key] = replace(value, value=count - heads)
        elif key.startswith(f"{arch}.") and isinstance(value.value, list) and len(value.value) == count:
            kept[key] = replace(value, value=value.value[: count - heads])
        else:
            kept[key] = value
    return kept


def without_mtp_in_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json that declares no head; lists with an entry per layer and head are cut to the layers."""
    layers = document.get("num_hidden_layers")
    heads = max((document.get(key) or 0 for key in _HF_COUNTS), default=0)
    changed: dict[str, Any] = {}
    for key, value in document.items():
        if key in _HF_COUNTS:
            changed[key] = 0
        elif isinstance(value, Mapping):
            changed[key] = without_mtp_in_document(value)
        elif layers and heads and isinstance(value, list) and len(value) == layers + heads:
            changed[key] = value[:layers]
        else:
            changed[key] = value
    return changed
