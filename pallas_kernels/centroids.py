"""Values that stand for those of a normal distribution, as formats of weights and of KV caches have them."""

LLOYD_MAX = {
    2: (0.4528, 1.5104),
    3: (0.2451, 0.7560, 1.3439, 2.1520),
    4: (0.128395, 0.388048, 0.656759, 0.942340, 1.256231, 1.618046, 2.069017, 2.732590),
}
"""Bits -> the positive centroids for a variance of 1 (Max, "Quantizing for minimum distortion", 1960)."""


def symmetric(positive: tuple[float, ...]) -> tuple[float, ...]:
    """All centroids in ascending order."""
    return (*(-value for value in reversed(positive)), *positive)
