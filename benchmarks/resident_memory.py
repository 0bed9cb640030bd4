"""How much memory a process needs for a model whose weights stay packed, over the size of its file.

    python benchmarks/resident_memory.py                      # writes and loads a file of 1.2 GB
    python benchmarks/resident_memory.py --model any.gguf

A process of its own loads the model and generates a few tokens. Printed are the memory that it has when all modules are
imported, after loading, at the peak of loading, and after generating, as the kernel counts it (VmRSS and VmHWM).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from random_model import write_random_model

from specjax.models.qwen3_5.config import Qwen35Config, hybrid_layer_types

CHILD = """
import sys
import specjax
import specjax.runtime.model
import jax.numpy as jnp

def kilobytes(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))

jnp.zeros(1).block_until_ready()
print(kilobytes("VmRSS"))
model = specjax.load(sys.argv[1])
print(kilobytes("VmRSS"))
print(kilobytes("VmHWM"))
model.generate([1, 2, 3], max_tokens=8, draft=3, ignore_eos=True)
print(kilobytes("VmRSS"))
"""


def shape_of_4b(layers: int) -> Qwen35Config:
    """The widths of Qwen3.5-4B, with its MTP head."""
    return Qwen35Config(
        vocab_size=65536,
        width=2560,
        layer_types=hybrid_layer_types(layers),
        mlp_width=9216,
        num_heads=16,
        num_kv_heads=4,
        head_width=256,
        rope_width=64,
        rope_theta=1e7,
        conv_width=4,
        linear_key_heads=16,
        linear_value_heads=32,
        linear_key_width=128,
        linear_value_width=128,
        tied_embeddings=True,
        mtp_layers=1,
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF; default: random weights, layers in Q4_K and the rest Q6_K")
    parser.add_argument("--layers", type=int, default=16, help="of the random model, with the widths of Qwen3.5-4B")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.model
        if path is None:
            path = Path(folder) / "random.gguf"
            write_random_model(path, shape_of_4b(args.layers), "Q4_K", "Q6_K")
        done = subprocess.run([sys.executable, "-c", CHILD, str(path)], check=True, capture_output=True, text=True)
        before, loaded, peak, used = (int(line) * 1024 for line in done.stdout.split())
        size = path.stat().st_size
    print(f"file                  {size / 1e9:.3f} GB")
    print(f"imports alone         {before / 1e9:.3f} GB")
    for label, value in (("loaded", loaded), ("peak of loading", peak), ("after generating", used)):
        print(f"{label:<20}  {value / 1e9:.3f} GB, without the imports {(value - before) / size:.3f} of the file")


if __name__ == "__main__":
    main()
