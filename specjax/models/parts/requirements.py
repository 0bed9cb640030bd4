"""What must hold between the numbers of a config. Each function raises ValueError, with the name of the config."""

from __future__ import annotations

MOST_LAYERS = 1 << 16
"""More than any model has: a number beyond it is damage."""


def require(config: object, met: bool, wrong: str) -> None:
    """Something holds, or else it is said what is wrong."""
    if not met:
        raise ValueError(f"{type(config).__name__}: {wrong}")


def require_kinds(config: object, layer_types: tuple[str, ...], known: tuple[str, ...]) -> None:
    """There are layers, each of a kind that is known."""
    require(config, len(layer_types) > 0, "layer_types is empty")
    unknown = sorted(set(layer_types) - set(known))
    require(config, not unknown, f"layer_types has {unknown}; known are {list(known)}")


def require_groups(config: object, num_heads: int, num_kv_heads: int, where: str = "") -> None:
    """There are as many query heads for each KV head; `where` stands before the message."""
    wrong = f"{where}num_heads ({num_heads}) must be a multiple of num_kv_heads ({num_kv_heads})"
    require(config, num_heads % num_kv_heads == 0, wrong)


def require_pairs(config: object, rope_width: int, head_width: int, where: str = "") -> None:
    """The dimensions that rotate are pairs of those of a head; `where` stands before the message."""
    wrong = f"{where}rope_width ({rope_width}) must be even and at most head_width ({head_width})"
    require(config, 0 < rope_width <= head_width and rope_width % 2 == 0, wrong)


def require_target_layers(config: object, target_layers: tuple[int, ...]) -> None:
    """What a drafter reads of its target are layers, by their numbers."""
    wrong = f"target_layers is {target_layers}; it names layers by whole numbers from 0"
    require(config, all(index in range(MOST_LAYERS) for index in target_layers), wrong)


def require_draft_vocabulary(config: object, draft_vocab_size: int, vocab_size: int, *, maps_tokens: bool) -> None:
    """A drafter knows some of the target's tokens; unless it is all of them, it says which."""
    sizes = f"draft_vocab_size is {draft_vocab_size}, vocab_size is {vocab_size}"
    require(config, 0 < draft_vocab_size <= vocab_size, f"{sizes}; it must be from 1 to that")
    whole = maps_tokens or draft_vocab_size == vocab_size
    require(config, whole, f"{sizes}, and nothing says which tokens the drafter's are")


def require_one_head(config: object, mtp_layers: int) -> None:
    """There is one MTP block, or none."""
    require(config, mtp_layers in (0, 1), f"mtp_layers is {mtp_layers}; this family has 0 or 1")
