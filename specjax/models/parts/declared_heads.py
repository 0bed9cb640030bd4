"""Heads that metadata declare, and that a file has or has not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

from checkpoints.errors import MissingMTPWarning
from specjax.models.parts.head import Own


def own_parts(prefix: str, optional: Sequence[str], names: Collection[str]) -> Own:
    """What a head has of its own.

    Args:
        prefix: of the names of its tensors.
        optional: names of those which tell, in the order of the fields of `Own`.
        names: of all tensors.
    """
    return Own(*(prefix + name in names for name in optional))


def one_head(declared: int, prefix: str, optional: Sequence[str], names: Collection[str], where: str) -> dict[str, Any]:
    """The fields of a config about an MTP head, in a family that has at most one.

    Args:
        declared: how many MTP layers the metadata declare.
        prefix, optional, names: see `own_parts`.
        where: the file, for messages.

    Raises:
        ValueError: more than one is declared.

    Warns:
        MissingMTPWarning: one is declared, and none of its tensors is there.
    """
    if declared > 1:
        raise ValueError(f"{declared} MTP layers are declared; this family has at most one")
    present = declared > 0
    if declared and not any(name.startswith(prefix) for name in names):
        warnings.warn(
            f"{where}: the metadata declare an MTP head, but there are none of its tensors ({prefix}*). Loading the"
            " trunk alone: speculative decoding is not possible with this file.",
            MissingMTPWarning,
            stacklevel=2,
        )
        present = False
    own = own_parts(prefix, optional, names)
    return {
        "mtp_layers": int(present),
        "mtp_own_embedding": present and own.embedding,
        "mtp_own_output": present and own.output,
        "mtp_own_norm": not present or own.norm,
    }


def count_heads(declared: int, present: Callable[[int], bool], where: str) -> int:
    """How many of the declared heads, from the first on, are in the file.

    Warns:
        MissingMTPWarning: fewer than declared.
    """
    count = next((index for index in range(declared) if not present(index)), declared)
    if count < declared:
        consequence = "a round drafts as many tokens at most" if count else "nothing can be drafted"
        warnings.warn(
            f"{where}: {declared} MTP heads are declared, but the file has the tensors of {count or 'none'}."
            f" Loading the trunk {'and these heads' if count else 'alone'}: {consequence} with this file.",
            MissingMTPWarning,
            stacklevel=2,
        )
    return count
