"""Heads that metadata declare, and that a file has or has not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection

from checkpoints.errors import MissingMTPWarning


def one_head(declared: int, prefix: str, names: Collection[str], where: str) -> int:
    """How many MTP layers there are, 0 or 1, in a family that has at most one.

    Args:
        declared: how many the metadata declare.
        prefix: of the names of its tensors.
        names: of all tensors.
        where: the file, for messages.

    Raises:
        ValueError: more than one is declared.

    Warns:
        MissingMTPWarning: one is declared, and none of its tensors is there.
    """
    if declared > 1:
        raise ValueError(f"{declared} MTP layers are declared; this family has at most one")
    if declared and not any(name.startswith(prefix) for name in names):
        warnings.warn(
            f"{where}: the metadata declare an MTP head, but there are none of its tensors ({prefix}*). Loading the"
            " trunk alone: speculative decoding is not possible with this file.",
            MissingMTPWarning,
            stacklevel=2,
        )
        return 0
    return declared


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
