"""The shared library of native CPU kernels: built with the package, loaded at first use, absent without harm.

One that was built from other sources than those beside it, as after an update of a checkout, is not used, and a warning
says so.

It has kernels for several instruction sets; the processor, or SPECJAX_CPU_ISA, decides among them.
"""

import ctypes
import os
import platform
import re
import warnings
from functools import cache
from pathlib import Path

import jax

from pallas_kernels.native import sources

ISA_VARIABLE = "SPECJAX_CPU_ISA"
_PATH = Path(__file__).parent / "libspecjax.so"
_AGAIN = "install the package again with a C++ compiler at hand"


@cache
def _load() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    if not _PATH.exists():
        return f"the native kernels were not built for {platform.system()} on {platform.machine()}; {_AGAIN}"
    try:
        library = ctypes.CDLL(str(_PATH))
        library.specjax_cpu_isa.restype = library.specjax_sources.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        return f"{_PATH.name} does not load: {error}; {_AGAIN}"
    if sources.digest() not in (None, library.specjax_sources().decode()):
        checkout = Path(__file__).parents[2]
        stale = f"{_PATH.name} was built from other sources than these; run `pip install -e .` in {checkout}"
        warnings.warn(f"native kernels are passed over: {stale}", RuntimeWarning, stacklevel=2)
        return stale
    built, here = (library.specjax_ffi_major(), library.specjax_ffi_minor()), _interface()
    if built[0] != here[0] or built > here:
        return f"{_PATH.name} was built for XLA's FFI {built}, which this jaxlib has in {here}; {_AGAIN}"
    return library


def _interface() -> tuple[int, int]:
    """The version of XLA's foreign function interface here: it takes libraries built for earlier ones, not later."""
    header = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header))
    return int(found["MAJOR"]), int(found["MINOR"])


def reason() -> str | None:
    """Why the native kernels cannot be used, or None."""
    loaded = _load()
    return loaded if isinstance(loaded, str) else None


def available() -> bool:
    """Whether the native kernels can be used."""
    return reason() is None


def _library() -> ctypes.CDLL:
    loaded = _load()
    if isinstance(loaded, str):
        raise RuntimeError(loaded)
    return loaded


@cache
def instruction_sets() -> tuple[str, ...]:
    """Those that there are kernels for and that this processor has, best last; empty without the library."""
    names: list[str] = []
    while available() and (name := _library().specjax_cpu_isa(len(names))) is not None:
        names.append(name.decode())
    return tuple(names)


def instruction_set() -> str:
    """The best one, or what SPECJAX_CPU_ISA names.

    Raises:
        ValueError: SPECJAX_CPU_ISA names one that this processor lacks or that is not known.
        RuntimeError: there is no library.
    """
    _library()
    wanted = os.environ.get(ISA_VARIABLE)
    if not wanted:
        return instruction_sets()[-1]
    if wanted not in instruction_sets():
        raise ValueError(f"{ISA_VARIABLE}={wanted}: this processor has {', '.join(instruction_sets())}")
    return wanted


@cache
def target(symbol: str) -> str:
    """The name under which jax calls a function of the library, registered at first use.

    Raises:
        RuntimeError: there is no library, or it lacks the function.
    """
    library = _library()
    if not hasattr(library, symbol):
        raise RuntimeError(f"{_PATH.name} lacks {symbol}; {_AGAIN}")
    jax.ffi.register_ffi_target(symbol, jax.ffi.pycapsule(getattr(library, symbol)), platform="cpu")
    return symbol
