"""Write a GGUF with random weights in the shape of a released model: what it says is noise, what it costs is not.

    python benchmarks/random_model.py /tmp/q4.gguf --type Q4_K --layers 24

The packed bytes are drawn directly, with scales that give every matrix a standard deviation of about 0.02; nothing is
quantized, so a gigabyte takes seconds. Vectors and convolutions are those of a fresh initialisation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from released_models import QWEN36_27B, QWEN36_35B_A3B
from verify_cost import shape_of_0_8b

import checkpoints
from checkpoints.gguf.ggml_types import GGML_TYPES
from checkpoints.gguf.stream import TensorEntry, write_stream
from checkpoints.gguf.values import typed
from checkpoints.mapping.tree import is_matrix
from checkpoints.tokenizers.gguf import to_metadata
from pallas_kernels.cases import random_blocks
from pallas_kernels.matmul import FORMATS
from specjax.models.qwen3_5 import Qwen35Config, hybrid_layer_types
from specjax.models.registry import FAMILIES
from specjax.runtime.loading import bundled_model

DEVIATION = 0.02
SCALES = {
    "Q8_0": (1 / 74,),
    "Q4_0": (1 / 4.6,),
    "Q4_K": (1 / 180, 7.5 / 180),
    "Q5_K": (1 / 360, 15.5 / 360),
    "Q6_K": (1 / 1350,),
    "IQ4_XS": (1 / 1200,),
}
"""The float16 numbers of a block whose other bytes are random, over the standard deviation of the matrix."""


FLOATS = "BF16"
"""The type of matrices that are not quantized."""
_PERIOD = 1048573
"""So many numbers are drawn and repeated. A prime: they fall on other places of each row."""
SHAPES: dict[str, Callable[[int, int], Qwen35Config]] = {
    "0.8b": shape_of_0_8b,
    "27b": lambda layers, vocab: replace(QWEN36_27B, layer_types=hybrid_layer_types(layers)),
    "35b-a3b": lambda layers, vocab: replace(QWEN36_35B_A3B, layer_types=hybrid_layer_types(layers)),
}
"""Configs of so many layers; those of the larger models have their own vocabulary."""


def write_random_model(path: Path, config: Qwen35Config, kind: str, head: str | None = None) -> int:
    """Write the file; returns how many bytes its tensors have.

    Args:
        path: the file.
        config: its hyper-parameters.
        kind: block format of the matrices, or BF16.
        head: block format of the embedding table and the output head, if it is another.
    """
    rng = np.random.default_rng(0)
    family = FAMILIES.of_config(config)
    table = family.gguf.rules(config, ())
    entries: list[TensorEntry] = []
    for rule in table.rules:
        matrix = all(is_matrix(path, table.shapes[path]) for path in rule.paths)
        stored = rule.source_shapes([table.shapes[path] for path in rule.paths])
        for name, shape in zip(rule.sources, stored, strict=True):
            own = head if head and name in ("token_embd.weight", "output.weight") else kind
            fits = matrix and (own == FLOATS or shape[-1] % FORMATS[own].values == 0)
            entries.append(TensorEntry(name, shape, GGML_TYPES[own if fits else "F32"]))

    def data() -> Iterator[np.ndarray]:
        for entry in entries:
            if entry.type.name in FORMATS:
                halves = [DEVIATION * value for value in SCALES[entry.type.name]]
                yield random_blocks(rng, entry.type.name, entry.shape, halves)
            elif entry.type.name == FLOATS:
                drawn = DEVIATION * rng.standard_normal(_PERIOD, np.float32)
                yield np.resize(drawn.astype(jnp.bfloat16), entry.shape)
            elif entry.name.endswith("norm.weight"):
                yield np.ones(entry.shape, np.float32)
            elif entry.name.endswith("ssm_a"):
                yield -rng.uniform(1, 16, entry.shape).astype(np.float32)
            else:
                yield (DEVIATION * rng.standard_normal(entry.shape)).astype(np.float32)

    tokenizer = checkpoints.open_checkpoint(bundled_model(), FAMILIES).tokenizer(required=True)
    assert tokenizer is not None
    keys = {
        "general.architecture": config.architecture,
        "general.name": f"random weights, {kind}",
        **family.gguf.write_config(config),
        **to_metadata(tokenizer, config.vocab_size),
    }
    write_stream(path, {key: typed(key, value) for key, value in keys.items()}, entries, data())
    return sum(entry.num_bytes for entry in entries)


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--shape", choices=list(SHAPES), default="0.8b", help="whose widths it has (default: 0.8b)")
    parser.add_argument("--type", choices=[*SCALES, FLOATS], default="Q8_0")
    parser.add_argument("--head", choices=[*SCALES, FLOATS], help="of the embedding table (default: as the others)")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocab", type=int, default=65536, help="of the shape 0.8b (default: 65536)")
    args = parser.parse_args()
    size = write_random_model(args.path, SHAPES[args.shape](args.layers, args.vocab), args.type, args.head)
    print(f"{args.path}: {size / 1e9:.2f} GB of tensors")


if __name__ == "__main__":
    main()
