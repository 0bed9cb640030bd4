"""Builds the native CPU kernels of `pallas_kernels.native`: one shared library, called through jax.ffi.

It is optional. Where it cannot be built, the package installs without it and computes with XLA;
`pallas_kernels.native.reason()` then says why.
"""

from __future__ import annotations

import os
import platform
import runpy
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

NATIVE = Path("pallas_kernels/native")
FLAGS = [
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",  # the same operations for a row, whatever function of the kernels it falls to
    "-fno-math-errno",
    "-fno-trapping-math",
    "-g0",
    "-w",
    "-Wno-psabi",
]
AVX512_VNNI = [
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"),
    *("-mfma", "-mf16c", "-mprefer-vector-width=512"),
]
X86 = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512vnni": AVX512_VNNI,
    "amx": [*AVX512_VNNI, "-mamx-tile", "-mamx-int8"],
}
INSTRUCTION_SETS = {
    "x86_64": X86,
    "amd64": X86,
    "aarch64": {"neon": ["-march=armv8.2-a+dotprod"]},
    "arm64": {"neon": ["-march=armv8.2-a+dotprod"]},
}
"""For each machine the flags of source files that are named after an instruction set; others are for any processor."""


def sources() -> list[str]:
    """The files for this machine."""
    everywhere = {name for sets in INSTRUCTION_SETS.values() for name in sets}
    here = INSTRUCTION_SETS.get(platform.machine().lower(), {})
    return sorted(
        str(path) for path in (NATIVE / "csrc").rglob("*.cc") if path.stem not in everywhere or path.stem in here
    )


class BuildKernels(build_ext):
    """Compiles each file for its instruction set, into a library that knows nothing of Python."""

    def knows_amx(self) -> bool:
        """Whether the compiler takes its flags and the assembler its instructions."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "amx.cc")
            source.write_text('void release() { asm volatile("tilerelease"); }')
            try:
                self.compiler.compile([str(source)], folder, extra_postargs=X86["amx"])
            except CompileError:
                return False
        return True

    def get_ext_filename(self, fullname: str) -> str:
        """Without the tag of a Python version: the library serves all."""
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext: Extension) -> None:
        """As the base class, with flags per file."""
        if sys.platform == "win32":
            raise CompileError("the native kernels are written for the compilers of Linux and macOS")
        try:
            from jaxlib import __file__ as jaxlib
        except ImportError as error:
            raise CompileError("the native kernels include headers that come with jaxlib") from error
        includes = [str(NATIVE / "csrc"), str(Path(jaxlib).parent / "include")]
        here = dict(INSTRUCTION_SETS.get(platform.machine().lower(), {}))
        if "amx" in here and not self.knows_amx():
            here["amx"] = here["avx512vnni"]  # as with GCC before 11: its file then has the kernels of vectors
        define = [("SPECJAX_SOURCES", f'"{runpy.run_path(str(NATIVE / "sources.py"))["digest"]()}"')]

        def compiled(source: str) -> list[str]:
            flags = FLAGS + here.get(Path(source).stem, [])
            return self.compiler.compile(
                [source], self.build_temp, define, includes, extra_postargs=flags, depends=ext.depends
            )

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [name for names in pool.map(compiled, ext.sources) for name in names]
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, str(target), target_lang="c++", extra_postargs=["-pthread"])


class BuildWheel(bdist_wheel):
    """Makes wheels for every Python: the library in them is called through jax.ffi and links to none."""

    def get_tag(self) -> tuple[str, str, str]:
        """The platform of the library, without a version of Python and its ABI."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "pallas_kernels.native.libspecjax",
            sources(),
            depends=sorted(map(str, (NATIVE / "csrc").rglob("*.h"))),
            language="c++",
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": BuildWheel},
)
