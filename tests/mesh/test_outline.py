"""What devices would hold is known before anything is loaded: it is what they hold afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest

import specjax
from specjax.decoding.new_state import new_state, outline_of_state
from specjax.decoding.settings import DraftConfig, Settings
from specjax.mesh.plan import sizes_of, without_devices
from specjax.runtime.outline import outline

pytestmark = pytest.mark.mesh

Load = Callable[..., specjax.Model]


def described(leaf: Any) -> tuple:
    spec = getattr(leaf.sharding, "spec", None)
    return leaf.shape, leaf.dtype, spec and (*spec, *(None,) * (leaf.ndim - len(spec)))


def assert_outlined(outlined: Any, made: Any) -> None:
    """The same tree with arrays that lie in the same way, and so take as many bytes of each device."""
    assert jax.tree.structure(outlined) == jax.tree.structure(made)
    for shape, array in zip(jax.tree.leaves(outlined), jax.tree.leaves(made), strict=True):
        assert described(shape) == described(array)
        assert shape.sharding.shard_shape(shape.shape) == array.addressable_shards[0].data.shape


@pytest.mark.parametrize(
    ("name", "weights", "mesh", "drafter"),
    [
        ("hybrid", "F32", "1x4", None),
        pytest.param("hybrid", "Q8_0", "2x2", None, marks=pytest.mark.slow),
        ("exact moe", "Q4_K", "1x2", None),
        ("gemma4", "F32", "1x2", "assistant"),
        pytest.param("qwen3", "F32", "4x1", "ngram", marks=pytest.mark.slow),
    ],
)
def test_parameters_and_states_are_those_of_the_outline(
    load: Load, name: str, weights: str, mesh: str, drafter: str | None
) -> None:
    loaded = load(name, weights, mesh, drafter)
    devices = without_devices(sizes_of(mesh))
    source: Any = drafter
    if drafter == "assistant":
        source = loaded.path.with_name("assistant-F32.gguf")
    outlined = outline(loaded.path, mesh=mesh, drafter=source)
    nowhere = outline(loaded.path, mesh=devices, drafter=source)
    assert_outlined(outlined.params, loaded.params)
    assert_outlined(nowhere.params, loaded.params)
    assert (outlined.target, outlined.drafter) == (loaded.target, loaded.drafter)
    for batch, options in ((4, {"kv_type_k": "q8_0", "kv_type_v": "turbo3"}), (3, {"rollback": "snapshot"})):
        decoder = nowhere.decoder(specjax.GenerateOptions(**options))
        settings = decoder.settings([Settings(draft=DraftConfig(n_max=decoder.max_drafts))] * batch)
        state = new_state(decoder, loaded.params, settings, 64)
        assert_outlined(outline_of_state(decoder, settings, 64, devices), state)


@pytest.mark.parametrize(("weights", "mesh"), [("Q8_0", "2x2"), ("F32", "1x1")])
def test_a_draft_vocabulary_is_outlined(load: Load, weights: str, mesh: str) -> None:
    loaded = load("hybrid", weights, mesh, draft_vocab=100)
    outlined = outline(loaded.path, mesh=without_devices(sizes_of(mesh)), draft_vocab=100)
    assert_outlined(outlined.params, loaded.params)
    assert outlined.drafter == loaded.drafter
