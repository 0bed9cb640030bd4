"""What happens when a conversation outgrows its slots. `specjax.state.shift` moves the arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from specjax.state import Cut

WhenFull = Literal["error", "shift"]

DEFAULT_KEEP = 4
"""How many tokens at the start always stay. Heads that find nothing to read attend to the first tokens. If none of
these is left, the text degenerates. Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks",
arXiv 2309.17453, which finds four enough.
"""


def contiguous_from(cuts: Iterable[Cut]) -> int:
    """The position, after these cuts one after the other, from which on no token was dropped in between."""
    position = 0
    for cut in cuts:
        position = max(cut.keep, position - cut.drop)
    return position
