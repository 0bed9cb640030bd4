"""The kinds of drafters that can be trained for a target."""

from __future__ import annotations

from specjax.training.drafters import dflash, eagle3

KINDS = {kind.name: kind for kind in (eagle3.KIND, *dflash.KINDS)}
