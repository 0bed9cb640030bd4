"""Tests on four devices, in a process of their own: XLA_FLAGS=--xla_force_host_platform_device_count=4."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import pytest
from made_models import MODELS, write

import specjax

DEVICES = 4


@pytest.fixture(scope="session", autouse=True)
def _devices() -> None:
    assert len(jax.devices()) >= DEVICES, f"set XLA_FLAGS=--xla_force_host_platform_device_count={DEVICES}"


@pytest.fixture(scope="session")
def compiled() -> list[str]:
    """Has one more entry after each compilation; clear it at will."""
    events: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: events.append(event) if event.endswith("backend_compile_duration") else None
    )
    return events


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., specjax.Model]:
    """(name, type of matrices, mesh, drafter) -> a model of `made_models`; each is made and loaded once.

    The drafter is what `specjax.load` takes, or the name of a model of a file of its own. Other settings are those of
    `specjax.load`.
    """
    folder = tmp_path_factory.mktemp("models")

    @cache
    def made(
        name: str, weights: str = "F32", mesh: str | None = None, drafter: Any = None, **settings: Any
    ) -> specjax.Model:
        source = write(Path(folder), drafter, "F32") if drafter in MODELS else drafter
        return specjax.load(write(Path(folder), name, weights), mesh=mesh, drafter=source, **settings)

    return made
