"""Metadata of a model whose multi-token-prediction head is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from checkpoints.gguf.values import GGUFValue


def without_mtp_in_values(values: Mapping[str, GGUFValue], count_key: str | None) -> dict[str, GGUFValue]:
    """Metadata of a GGUF that declare no head: fewer blocks, and lists with an entry per block cut accordingly.

    Args:
        values: the metadata.
        count_key: see `FileFormat.head_count`.
    """
    arch = values["general.architecture"].value
    declared, blocks = f"{arch}.{count_key}", f"{arch}.block_count"
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


def without_mtp_in_document(document: Mapping[str, Any], count_key: str | None) -> dict[str, Any]:
    """A config.json that declares no head; lists with an entry per layer and head are cut to the layers.

    Args:
        document: the config.json.
        count_key: see `FileFormat.head_count`.
    """
    layers = document.get("num_hidden_layers")
    heads = (document.get(count_key) if count_key is not None else None) or 0
    changed: dict[str, Any] = {}
    for key, value in document.items():
        if key == count_key:
            changed[key] = 0
        elif isinstance(value, Mapping):
            changed[key] = without_mtp_in_document(value, count_key)
        elif layers and heads and isinstance(value, list) and len(value) == layers + heads:
            changed[key] = value[:layers]
        else:
            changed[key] = value
    return changed
