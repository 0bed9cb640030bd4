"""The plan of a model that is loaded onto several devices, see `specjax.mesh.plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from checkpoints import OpenedCheckpoint
from checkpoints.mapping.table import RuleTable
from pallas_kernels import using
from pallas_kernels.override import AUTO
from specjax.errors import SpecjaxError
from specjax.mesh.plan import AnyMesh, Plan
from specjax.mesh.shards import MODEL, traced_in_parts


def in_blocks(mesh: AnyMesh, opened: OpenedCheckpoint, *, packed: bool) -> OpenedCheckpoint:
    """The file with a config that has hidden columns split between blocks, if matrices stay packed.

    Raises:
        SpecjaxError: as `plan_for`.
    """
    units = _units(opened, packed=packed)
    if cut := _plan(mesh, opened).misfits(units):
        config: Any = opened.config
        return replace(opened, config=replace(config, unit=max(units[path] for path in cut)))
    return opened


def plan_for(mesh: AnyMesh, opened: OpenedCheckpoint, *, packed: bool) -> Plan:
    """How the parameters of a file are split over the devices of a mesh; `packed`: matrices stay in blocks.

    Raises:
        SpecjaxError: the model cannot be split so; the message lists what does not divide.
    """
    plan, units = _plan(mesh, opened), _units(opened, packed=packed)
    if misfits := plan.misfits(units):
        listed = ", ".join(f"{path} (blocks of {units[path]})" for path in misfits)
        raise SpecjaxError(
            f"the columns of these matrices cannot be split into {mesh.shape[MODEL]} parts without cutting blocks of"
            f" their formats: {listed}. Use fewer parts, or decode the matrices: packed=None (--packed off)"
        )
    return plan


def _units(opened: OpenedCheckpoint, *, packed: bool) -> Mapping[str, int]:
    return opened.rules.units(opened.source) if packed else {}


def _plan(mesh: AnyMesh, opened: OpenedCheckpoint) -> Plan:
    try:
        return plan_of_rules(mesh, opened.config, lambda config: opened.family.format(opened.origin).rules(config, ()))
    except ValueError as error:
        raise SpecjaxError(str(error)) from error


def plan_of_rules(mesh: AnyMesh, config: Any, rules_of: Callable[[Any], RuleTable]) -> Plan:
    """How the parameters of a model are split over a mesh.

    Args:
        mesh: the devices.
        config: of the model.
        rules_of: the rules of a config, which have the shapes of its parameters.

    Raises:
        ValueError: the model cannot be split so.
    """
    parts = mesh.shape[MODEL]
    if parts == 1:
        return Plan(mesh, {})
    # Shapes are those of any kernels. Those that are named for programs need not fit the few tokens that are traced.
    with using(AUTO):
        local, segments = traced_in_parts(mesh, lambda: (rules_of(config.shard(parts)).shapes, config.segments))
        return Plan.of(mesh, rules_of(config).shapes, local, segments, config.shared)
