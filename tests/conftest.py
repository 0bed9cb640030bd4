"""What holds for all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

install_import_hook("specjax", "annotated.checked")  # before anything imports it

# Most of the suite's time is LLVM optimising programs that then run once, on tiny arrays. The programs themselves, as
# XLA schedules and fuses them, stay the same. A level given from outside has precedence.
_FLAG = "--xla_backend_optimization_level"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=0".strip()

_MAPS = Path("/proc/self/maps")
_MANY_MAPS = 30_000


@pytest.fixture(autouse=True, scope="module")
def _release_programs() -> Iterator[None]:
    """Forget compiled programs before they are too many.

    XLA's CPU backend maps every program into memory of its own, and Linux allows a process 65530 mappings: a worker
    that runs half of the suite needs more.
    """
    yield
    if _MAPS.exists() and _MAPS.read_bytes().count(b"\n") > _MANY_MAPS:
        import jax

        jax.clear_caches()
