"""One small model for all tests of this folder that want one, so that they share its programs."""

from __future__ import annotations

import pytest
from small_model import write_small_model

import specjax


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> specjax.Model:
    """Sessions of it can have as many slots as texts of a call have. Leave it as it is."""
    return specjax.load(write_small_model(tmp_path_factory.mktemp("model") / "small.gguf", context_length=256))
