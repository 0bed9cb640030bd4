"""What the device is, as JSON: the first slice of a day with a device. It fails if JAX has found another platform.

python benchmarks/day_machine.py gpu
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import jax
from machine import description

from pallas_kernels import memory, tuning


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("platform", choices=("cpu", "gpu", "tpu"))
    platform, found = parser.parse_args().platform, jax.default_backend()
    if found != platform:
        sys.exit(
            f"JAX computes on the platform {found!r}, not {platform!r}: it has found no such device, or one that its"
            f" version, {jax.__version__}, or this driver does not know. JAX_PLATFORMS={platform} makes it say why"
        )
    device, root = jax.devices()[0], Path(__file__).parents[1]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True).stdout.strip()
    figures = {
        "platform": platform,
        "device": tuning.device_kind(),
        "machine": description(),
        "devices": jax.device_count(),
        "bytes": (device.memory_stats() or {}).get("bytes_limit"),
        "about": dict(memory.about()),
        "tuned": str(tuning.file_of(tuning.device_kind())),
        "commit": commit or None,
        "date": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
