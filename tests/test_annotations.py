"""Shapes are written once and checked: the annotations of this package hold in every test, and speak by the legend."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from annotated import checked
from jaxtyping import Array, Float, Int, TypeCheckError, jaxtyped
from wants import drafting

from specjax import dims
from specjax.decoding.draft_control import effective_drafts
from specjax.state import KVCache, KVTypes

PACKAGE = Path(dims.__file__).parent


def test_every_module_is_imported_with_its_annotations_checked() -> None:
    importlib.import_module("specjax.runtime.model")
    loaders = {
        name: type(module.__spec__.loader).__module__
        for name, module in sys.modules.items()
        if name.split(".")[0] == "specjax" and module.__spec__ is not None
    }
    assert len(loaders) > 20
    assert set(loaders.values()) == {"jaxtyping._import_hook"}


def test_a_call_with_axes_that_disagree_is_refused() -> None:
    confidence, settings, wanted = jnp.ones((2, 3)), drafting(2), jnp.ones(2, jnp.int32)
    assert effective_drafts(confidence, settings, wanted).shape == (2,)
    for wrong in ((confidence[0], wanted), (confidence, jnp.ones(3, jnp.int32)), (confidence, jnp.ones(2))):
        with pytest.raises(TypeCheckError):
            effective_drafts(wrong[0], settings, wrong[1], wanted)


def test_methods_are_checked_too() -> None:
    cache = KVCache.zeros(1, 4, 1, 2, KVTypes())
    row = jnp.ones((1, 1, 1, 2))
    with pytest.raises(TypeCheckError):
        cache.append(row, row[:, :, :, 0], jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool))


@jaxtyped(typechecker=checked)
def halves(
    x: Float[Array, "B W-1"], more: Int[Array, "B"] | None = None, *, wrong: bool = False
) -> tuple[Float[Array, "B"], tuple[Float[Array, "B D"], ...], int]:
    rows = (x, x[:, :1]) if wrong else (x, x)
    return x[:, 0], rows, 3


def test_results_are_checked_within_tuples_and_unions() -> None:
    assert halves(np.ones((2, 3), np.float32))[2] == 3  # arrays of NumPy are arrays
    halves(jnp.ones((2, 3)), jnp.ones(2, jnp.int32))
    for arguments in ((jnp.ones((2, 3)), jnp.ones(2)), (jnp.ones((2, 3)), jnp.ones(3, jnp.int32)), (jnp.ones(2),)):
        with pytest.raises(TypeCheckError):
            halves(*arguments)
    with pytest.raises(TypeCheckError, match="return value"):
        halves(jnp.ones((2, 3)), wrong=True)


def test_axes_named_by_capitals_are_those_of_the_legend() -> None:
    assert dims.__doc__ is not None
    legend = {
        letter.strip()
        for row in re.findall(r"^\| ([A-Z][^|]*) \|", dims.__doc__, re.MULTILINE)
        for letter in row.split(",")
    }
    assert {"B", "T", "K", "Hk", "Dv"} <= legend
    unknown = {
        f"{path.relative_to(PACKAGE)}: {axis}"
        for path in PACKAGE.rglob("*.py")
        for axes in re.findall(r'(?:Float|Int|UInt|Bool)\[[^\]"]*"([^"]*)"\]', path.read_text(encoding="utf-8"))
        for axis in re.findall(r"\b[A-Z]\w*", axes)
        if axis not in legend
    }
    assert not unknown
