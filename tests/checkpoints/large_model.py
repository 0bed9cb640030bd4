"""A model file of some size, and conversions of it in a process of their own: measured, or killed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tiny_checkpoints import make_config, make_tokenizer, write_tiny_gguf

from checkpoints import quantization
from checkpoints.convert import ConvertOptions, prepare
from checkpoints.gguf.ggml_types import GGML_TYPES
from checkpoints.gguf.stream import TensorEntry, write_stream
from checkpoints.gguf.values import typed
from checkpoints.gguf.writer import FILE_TYPES, gguf_metadata, stays_f32
from checkpoints.heap import release
from checkpoints.quantization import QuantizeOptions
from specjax.models.qwen3_5 import FAMILY, hybrid_layer_types
from specjax.models.qwen3_5.gguf import gguf_rules
from specjax.models.registry import FAMILIES


def write_large(path: Path, vocab_size: int, layers: int, width: int = 512) -> int:
    """A Q8_0 model with random bytes for weights; returns the bytes of its largest tensor."""
    config = make_config(
        vocab_size=vocab_size, width=width, mlp_width=1536, layer_types=hybrid_layer_types(layers, 4), head_width=64
    )
    table = gguf_rules(config)
    entries = []
    for rule in table.rules:
        for name, shape in zip(rule.sources, rule.source_shapes([table.shapes[p] for p in rule.paths]), strict=True):
            kind = "F32" if stays_f32(name, shape) else "Q8_0"
            entries.append(TensorEntry(name, shape, GGML_TYPES[kind]))

    def data() -> Iterator[np.ndarray]:
        rng = np.random.default_rng(0)
        for entry in entries:
            if entry.type.name == "F32":
                yield -np.abs(rng.standard_normal(entry.shape, np.float32)) - 0.1
                continue
            blocks = rng.integers(0, 256, (entry.num_bytes // 34, 34), np.uint8)
            blocks[:, :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
            yield blocks

    keys = gguf_metadata(FAMILY, config, make_tokenizer(), FILE_TYPES["Q8_0"])
    write_stream(path, {key: typed(key, value) for key, value in keys.items()}, entries, data())
    return max(entry.num_bytes for entry in entries)


def convert(source: Path, destination: Path, kind: str, split_bytes: int | None = None) -> None:
    """Convert, or quantize if that is the kind."""
    if kind == "quantize":
        quantization.prepare(
            source, destination, FAMILIES, QuantizeOptions("Q4_0", force=True, split_bytes=split_bytes)
        ).run()
        return
    options = ConvertOptions(kind, force=True, split_bytes=split_bytes)  # type: ignore[arg-type]
    prepare(source, destination, FAMILIES, options).run()


def verify(source: Path, destination: Path, kind: str) -> None:
    options = ConvertOptions(kind, force=True)  # type: ignore[arg-type]
    assert not prepare(source, destination.with_name("not-written"), FAMILIES, options).compare([destination]).wrong


def measure(folder: Path) -> dict[str, float]:
    """Peak memory of conversions and of verifying them, over what the process had, in bytes of the largest tensor.

    The largest tensor, an embedding table, is a third of the model.
    """
    ways = (("a.gguf", "b.gguf"), ("a.gguf", "a.orbax"), ("a.orbax", "b.gguf"), ("a.gguf", "a.hf"), ("a.hf", "b.gguf"))
    steps = [(what, *way) for way in ways for what in (convert, verify)]
    tiny, large, peaks = folder / "tiny", folder / "large", {}
    write_tiny_gguf(tiny / "a.gguf", make_config())
    for what, source, target in steps:  # what is imported and started once is no matter of the model's size
        what(tiny / source, tiny / target, target.partition(".")[2])
    large.mkdir()
    packed = write_large(large / "a.gguf", 24_000, 4, width=2048)
    for what, source, target in steps:
        release()
        Path("/proc/self/clear_refs").write_text("5")
        before = _memory("VmRSS")
        what(large / source, large / target, target.partition(".")[2])
        largest = packed / 34 * 64 if "a.hf" in (source, target) else packed  # BF16 in safetensors, else Q8_0
        peaks[f"{what.__name__} {source} to {target}"] = (_memory("VmHWM") - before) / largest
    return peaks


def _memory(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def kill(source: Path, destination: Path, kind: str, split_bytes: int, times: int) -> None:
    """Kill conversions after random times; after each, print the names in the destination's folder."""
    rng, started = random.Random(0), time.monotonic()
    child = _start(source, destination, kind, split_bytes)
    os.waitpid(child, 0)
    seconds = time.monotonic() - started
    for path in list(destination.parent.iterdir()):
        path.rename(destination.parent.parent / f"whole-{path.name}")
    for i in range(times):
        child = _start(source, destination, kind, split_bytes)
        time.sleep(seconds * 1.1 * (i + rng.random()) / times)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print(json.dumps(sorted(path.name for path in destination.parent.iterdir())), flush=True)
        sys.stdin.readline()


def _start(source: Path, destination: Path, kind: str, split_bytes: int) -> int:
    child = os.fork()  # what is imported need not be imported again
    if child:
        return child
    try:
        convert(source, destination, kind, split_bytes or None)
    finally:
        os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        print(json.dumps(measure(Path(sys.argv[2]))))
    else:
        kill(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
