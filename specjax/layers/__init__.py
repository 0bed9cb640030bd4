"""Layers that the model families share, as Flax linen modules without mutable state."""
