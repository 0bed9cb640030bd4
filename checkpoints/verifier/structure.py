"""Invariants that the tables of a checkpoint show: types, centroid heads, tied heads, declarations."""

from __future__ import annotations

from collections import Counter

from checkpoints.gguf_writer import FILE_TYPES, stays_f32
from checkpoints.load import OpenedCheckpoint
from checkpoints.rules.gemma4_assistant import GGUF_CENTROIDS, SELECTED
from checkpoints.verifier.findings import Report
from specjax.models.gemma4 import Gemma4AssistantConfig


def check(opened: OpenedCheckpoint, report: Report) -> None:
    """Add what is wrong with them to the report."""
    if opened.format == "gguf":
        _vectors_are_f32(opened, report)
        _file_type_is_that_of_most(opened, report)
    if isinstance(opened.config, Gemma4AssistantConfig):
        _centroids_divide_the_vocabulary(opened, opened.config, report)


def _vectors_are_f32(opened: OpenedCheckpoint, report: Report) -> None:
    used = {name for rule in opened.rules.rules for name in rule.sources}
    wrong = [
        f"{info.name} ({info.type})"
        for info in opened.source.tensors.values()
        if info.name in used and stays_f32(info.name, info.shape) and info.type not in ("F32", "I32")
    ]
    if wrong:
        report.note(
            f"{len(wrong)} small tensors are not F32: {_some(wrong)}",
            "llama.cpp stops at some of them; convert the original again, or this file through safetensors",
        )
    else:
        report.checked.append("vectors, convolution taps and routers are F32")


def _file_type_is_that_of_most(opened: OpenedCheckpoint, report: Report) -> None:
    says = opened.metadata.get("general.file_type")
    named = {int(number): name for name, number in FILE_TYPES.items()}
    sizes: Counter[str] = Counter()
    for info in opened.source.tensors.values():
        sizes[info.type] += info.num_bytes
    if says in named and sizes and (most := sizes.most_common(1)[0][0]) != named[says]:
        report.note(
            f"general.file_type is {says} ({named[says]}), but most bytes are {most}",
            "only displays are wrong; a quantizer that writes the key mends it",
        )


def _centroids_divide_the_vocabulary(opened: OpenedCheckpoint, config: Gemma4AssistantConfig, report: Report) -> None:
    declared = opened.metadata.get("use_ordered_embeddings")
    if config.centroids is None:
        if any("masked_emb" in name for name in opened.source.tensors):
            report.error(
                f"there are tensors of a centroid head, but use_ordered_embeddings is {declared!r}",
                "set it to true in config.json, or download the file again",
            )
        elif any(key.endswith(f".{SELECTED}") for key in opened.metadata):
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


def _some(names: list[str], count: int = 4) -> str:
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")
