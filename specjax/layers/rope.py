"""The frequencies of rotary positions; `specjax.state.rotation` applies them."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def rope_frequencies(theta: float, width: int) -> Float[np.ndarray, "width/2"]:
    """theta^(-2i/width) for the pairs i < width/2, radians per position."""
    return theta ** (-np.arange(width // 2, dtype=np.float32) * 2 / width)
