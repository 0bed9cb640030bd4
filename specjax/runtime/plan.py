"""The plan of a model that is loaded onto several devices, see `specjax.mesh.plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoints import OpenedCheckpoint
from pallas_kernels import using
from pallas_kernels.override import AUTO
from specjax.errors import SpecjaxError
from specjax.mesh.plan import AnyMesh, Plan, as_mesh
from specjax.mesh.shards import MODEL, traced_in_parts


def plan_for(given: str | AnyMesh, opened: OpenedCheckpoint, *, packed: bool) -> Plan:
    """How the parameters of a file are split over the devices of a mesh; `packed`: matrices stay in blocks.

    Raises:
        SpecjaxError: the mesh is none, or the model cannot be split so; the message lists what does not divide.
    """
    config: Any = opened.config
    try:
        mesh = as_mesh(given)
        parts = mesh.shape[MODEL]
        if parts == 1:
            return Plan(mesh, {})
        whole = _shapes(opened, config)
        local = traced_in_parts(mesh, lambda: _shapes(opened, config.shard(parts)))
        plan = Plan.of(mesh, whole, local, config.segments)
    except ValueError as error:
        raise SpecjaxError(str(error)) from error
    if packed and (misfits := plan.misfits(units := opened.rules.units(opened.source))):
        listed = ", ".join(f"{path} (blocks of {units[path]})" for path in misfits)
        raise SpecjaxError(
            f"the columns of these matrices cannot be split into {parts} parts without cutting blocks of their formats:"
            f" {listed}. Use fewer parts, or decode the matrices: packed=None (--packed off)"
        )
    return plan


def _shapes(opened: OpenedCheckpoint, config: Any) -> Mapping[str, tuple[int, ...]]:
    """They are those of any kernels. Those that are named for programs need not fit the few tokens that are traced."""
    with using(AUTO):
        return opened.family.gguf.rules(config, ()).shapes
