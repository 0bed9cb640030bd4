"""What rounds of each depth cost, kept in the cache folder, so that the next process need not measure again.

There is one small file for each program, form of weights, number of seats and kind of device. Models of equal shapes
share it. Without a cache folder nothing is kept.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import statistics
from collections.abc import Mapping
from contextlib import suppress
from itertools import combinations, pairwise
from pathlib import Path

import jax
import jax.numpy as jnp

from checkpoints.atomic import write_text
from checkpoints.errors import CheckpointError
from pallas_kernels.files import cache_folder
from specjax.decoding.decoder import Decoder
from specjax.decoding.new_state import on_device_of
from specjax.mesh.shards import devices_of
from specjax.models.protocol import Params
from specjax.runtime.depth.control import depths_up_to

WORTH_WRITING = 0.1
"""The relative change of a cost that is written down. Less is noise."""

CONTRADICTION = 0.8
"""A round of more drafts does more. If it is said to take less than this share of the time, something was measured
wrongly, and nothing of it is believed."""


class CostMemory:
    """The file of one program's costs.

    Attributes:
        path: where it is, None if costs are not kept.
    """

    def __init__(self, decoder: Decoder, seats: int, params: Params) -> None:
        """
        Args:
            decoder, seats, params: what the costs depend on, besides the device.
        """
        self.path = _path(decoder, seats, params)
        self._depths = depths_up_to(decoder.max_drafts)

    def read(self) -> dict[int, float]:
        """The costs by depth, see `Costs.known`; none if the file is missing, damaged or contradicts itself."""
        try:
            text = self.path.read_text() if self.path else "{}"
            costs = {int(depth): float(cost) for depth, cost in json.loads(text).items()}
        except (OSError, ValueError, TypeError, AttributeError, OverflowError):
            return {}
        known = {depth: cost for depth, cost in costs.items() if depth in self._depths and 0 < cost < math.inf}
        falls = any(CONTRADICTION * known[one] > known[two] for one, two in pairwise(sorted(known)))
        return {} if falls else known

    def write(self, costs: Mapping[int, float]) -> None:
        """Keep the costs, if they say something new, beside those of depths that are not measured now.

        A folder that cannot be written to is left alone.
        """
        before = self.read()
        if self.path is None or not _news(before, costs):
            return
        if common := before.keys() & costs.keys():
            unit = statistics.median(costs[depth] / before[depth] for depth in common)
            costs = {depth: cost * unit for depth, cost in before.items()} | dict(costs)
        with suppress(OSError, CheckpointError):
            write_text(self.path, json.dumps(costs))


def _path(decoder: Decoder, seats: int, params: Params) -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    leaves = jax.tree_util.tree_leaves_with_path(params)
    weights = [(jax.tree_util.keystr(path), leaf.shape, str(leaf.dtype)) for path, leaf in leaves]
    (device,) = on_device_of(params, jnp.zeros(())).devices()
    mesh = devices_of(params)
    machine = (device.device_kind, mesh and dict(mesh.shape), platform.machine(), os.cpu_count())
    about = (repr(decoder), seats, weights, str(jax.tree.structure(params)), machine, jax.__version__)
    return folder / "costs" / f"{hashlib.sha256(repr(about).encode()).hexdigest()[:32]}.json"


def _news(before: Mapping[int, float], costs: Mapping[int, float]) -> bool:
    """Whether ratios of costs have changed; their unit has no meaning."""
    if costs.keys() - before.keys():
        return True
    return any(
        abs(costs[one] / costs[two] * before[two] / before[one] - 1) > WORTH_WRITING
        for one, two in combinations(costs, 2)
    )
