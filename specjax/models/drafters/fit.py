"""Whether a drafter that reads layers of its target was made for this one."""

from __future__ import annotations

from collections.abc import Sequence

from specjax.models.protocol import Target


def check_fit(
    target: Target,
    *,
    vocab_size: int,
    target_width: int,
    layers: Sequence[int],
    width: int,
    shares_embedding: bool,
    shares_output: bool,
) -> None:
    """
    Args:
        target: what it is to draft for.
        vocab_size, target_width: V and D of the target that the drafter was made for.
        layers: whose inputs it reads, from 0 to L.
        width: of the drafter itself.
        shares_embedding, shares_output: whether it reads the target's embedding table, and its output head.

    Raises:
        ValueError: the drafter does not fit; every mismatch is listed.
    """
    wrong = [
        f"{what}: {of_target} in the target, {expected} in the drafter"
        for what, of_target, expected in (
            ("vocabulary", target.vocab_size, vocab_size),
            ("width", target.width, target_width),
        )
        if of_target != expected
    ]
    if outside := [index for index in layers if not 0 <= index <= target.num_layers]:
        wrong.append(f"layers: the drafter reads {outside}, and the target has 0 to {target.num_layers}")
    for shares, what in ((shares_embedding, "embedding table"), (shares_output, "output head")):
        if shares and width != target.width:
            wrong.append(f"{what}: it is the target's, {target.width} wide, and the drafter is {width} wide")
    if wrong:
        raise ValueError("the drafter was made for another target: " + "; ".join(wrong))


def usual_layers(num_layers: int) -> tuple[int, ...]:
    """The layers of a target that are fused if a file does not say which."""
    return (2, num_layers // 2, num_layers - 3)
