"""What holds for all tests."""

import ctypes
import gc
import importlib
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from annotated import check_calls_of

check_calls_of("specjax")

# Most of the suite's time is making machine code of programs that then run once, on tiny arrays. So LLVM optimises
# nothing, a program is one module for it and not one for each core, and XLA takes its older emitter, which needs a
# third of the time for each fusion. The programs themselves, as XLA schedules and fuses them, stay the same. Flags
# given from outside have precedence.
_FAST_TO_COMPILE = {
    "--xla_backend_optimization_level": "0",
    "--xla_cpu_parallel_codegen_split_count": "1",
    "--xla_backend_extra_options": "xla_cpu_disable_new_fusion_emitters",
}
_GIVEN = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join(
    [_GIVEN, *(f"{flag}={value}" for flag, value in _FAST_TO_COMPILE.items() if flag not in _GIVEN)]
).strip()

gc.set_threshold(50_000, 5, 5)  # tracing makes many objects that live; by default a fifth of it is looking for others

os.environ["SPECJAX_CACHE"] = ""  # tests that count compilations find nothing on disk, and none leaves anything there

_MAPS, _STATM = Path("/proc/self/maps"), Path("/proc/self/statm")
_MANY_MAPS = 30_000
_MUCH_MEMORY = 1.5 * 2**30


@pytest.fixture(autouse=True, scope="module")
def _release_programs() -> Iterator[None]:
    yield
    release_programs()


def release_programs() -> None:
    """Forget compiled programs before they are too many.

    XLA's CPU backend maps every program into memory of its own, and Linux allows a process 65530 mappings: a worker
    that runs half of the suite needs more. And a worker is to stay below 3 GB.
    """
    if _MAPS.exists() and (_MAPS.read_bytes().count(b"\n") > _MANY_MAPS or _resident_bytes() > _MUCH_MEMORY):
        import jax

        jax.clear_caches()
        gc.collect()
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # glibc keeps what is freed in small pieces


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a script of `benchmarks` by its name, anew."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))

    def load(name: str) -> ModuleType:
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


@pytest.fixture
def programs_of_its_own() -> Iterator[None]:
    """What the test compiles no other needs: for tests of one module that together would have too many programs."""
    yield
    release_programs()


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for compiled programs. Pages and notebooks share it, whichever process they run in."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "programs"


@pytest.fixture
def shared_programs(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the test loads keeps its programs in that folder, and finds those of other tests there."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    monkeypatch.setenv("SPECJAX_CACHE", str(programs))
    yield
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    release_programs()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers take whole folders, whose tests share programs, models and a server. So do pages; notebooks go alone."""
    from xdist.scheduler import LoadScopeScheduling

    class Folders(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            if path.endswith("test_notebooks.py"):
                return nodeid
            folder = path.rpartition("/")[0]
            return path if folder.endswith(("tests", "mesh")) else folder

    return Folders(config, log)


def _resident_bytes() -> int:
    return int(_STATM.read_text().split()[1]) * resource.getpagesize()
