"""Triton's interpreter in a process of its own: kernels run on the host, program after program, on numpy arrays.

Triton decides by a variable of the environment, when kernels are defined, whether they can be compiled or interpreted.
So one process, which lives as long as this one, interprets, and this one goes on compiling. What it is sent and what it
answers are pickles on its standard input and output.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

VARIABLE = "TRITON_INTERPRET"
_TYPES = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int32": "i32", "int8": "i8", "uint8": "u8",
    "uint16": "u16",
}  # fmt: skip


class _Process:
    """The interpreting process; started by the first call."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.started: subprocess.Popen[bytes] | None = None

    def ask(self, request: Any) -> Any:
        with self.lock:
            if self.started is None:
                command = [sys.executable, "-m", __name__]
                environment = {**os.environ, VARIABLE: "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
                self.started = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert self.started.stdin is not None
            assert self.started.stdout is not None
            try:
                pickle.dump(request, self.started.stdin)
                self.started.stdin.flush()
                return pickle.load(self.started.stdout)
            except (OSError, EOFError):
                died, self.started = self.started, None
                return f"the interpreting process ended with status {died.wait()}"
            except BaseException:  # half a request or an answer not read would be taken for those of the next call
                self.started.kill()
                self.end()
                raise

    def end(self) -> None:
        """Its input ends, and so does it."""
        if self.started is not None:
            self.started.communicate()
            self.started = None


_PROCESS = _Process()
atexit.register(_PROCESS.end)


def run(
    kernel: tuple[str, str],
    inputs: Sequence[np.ndarray],
    changed: Sequence[np.ndarray],
    results: Sequence[tuple[tuple[int, ...], np.dtype]],
    grid: tuple[int, ...],
    constants: Mapping[str, Any],
) -> list[np.ndarray]:
    """The arrays that a kernel changed and its results, by the order of parameters that triton_launch.py describes.

    Args:
        kernel: its module and its name.
        inputs, changed: copies of them are given to the kernel.
        results: shapes and types.
        grid, constants: as for `launch`.

    Raises:
        RuntimeError: the kernel failed, or wrote beside an array.
    """
    answer = _PROCESS.ask((kernel, inputs, changed, results, grid, dict(constants)))
    if isinstance(answer, str):
        raise RuntimeError(f"{'.'.join(kernel)} in Triton's interpreter:\n{answer}")
    return answer


class _Memory:
    """An array between zones that must stay as they are, with those methods of a tensor that the interpreter calls.

    A kernel that reads what lies beside an array gets numbers that are none, and one that writes there is found out.
    """

    ZONE = 1 << 12

    def __init__(self, array: np.ndarray) -> None:
        self.bytes = np.full(array.nbytes + 2 * self.ZONE, 0xFF, np.uint8)
        self.array = self.bytes[self.ZONE : self.ZONE + array.nbytes].view(array.dtype).reshape(array.shape)
        self.array[...] = array
        self.dtype = _TYPES[array.dtype.name]

    @classmethod
    def unwritten(cls, shape: tuple[int, ...], dtype: np.dtype) -> _Memory:
        """No numbers, where the type has such."""
        memory = cls(np.zeros(shape, dtype))
        memory.bytes[...] = 0xFF
        return memory

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def untyped_storage(self) -> _Memory:
        return self

    def cpu(self) -> _Memory:
        return self

    def copy_(self, other: _Memory) -> None:
        assert other is self

    def new_empty(self, size: int, device: str) -> _Memory:
        return self

    def set_(self, *storage: Any) -> None:
        assert storage[0] is self

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(n // self.array.itemsize for n in self.array.strides)

    def check(self) -> None:
        """RuntimeError if something was written beside the array."""
        if not (np.all(self.bytes[: self.ZONE] == 0xFF) and np.all(self.bytes[-self.ZONE :] == 0xFF)):
            raise RuntimeError(f"written beside an array {self.dtype} {list(self.array.shape)}")


def _answer(
    kernel: tuple[str, str],
    inputs: Sequence[np.ndarray],
    changed: Sequence[np.ndarray],
    results: Sequence[tuple[tuple[int, ...], np.dtype]],
    grid: tuple[int, ...],
    constants: Mapping[str, Any],
) -> list[np.ndarray]:
    module, name = kernel
    function = getattr(importlib.import_module(module), name)
    given, shared = [_Memory(x) for x in inputs], [_Memory(x) for x in changed]
    made = [_Memory.unwritten(shape, dtype) for shape, dtype in results]
    with np.errstate(all="ignore"):
        function[grid](*given, *shared, *shared, *made, **constants)
    for memory in (*given, *shared, *made):
        memory.check()
    return [memory.array for memory in (*shared, *made)]


def _serve() -> None:
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what kernels print is no answer
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        try:
            answer: Any = _answer(*request)
        except Exception:
            answer = traceback.format_exc()
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    _serve()
