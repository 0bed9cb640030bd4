"""What is installed: names at the top level, types for editors, wheels, and what other modules can do to it."""

from __future__ import annotations

import specjax


def test_the_public_names_are_at_the_top_level() -> None:
    assert {"Session", "DraftConfig", "Evaluation", "find_divergence", "load", "Model"} <= set(specjax.__all__)
    assert all(getattr(specjax, name).__name__ == name for name in specjax.__all__)
    assert dir(specjax) == specjax.__all__
