"""Sessions in files go on wherever they were saved: on one device and on meshes of any form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import specjax
from specjax.mesh.plan import cut_of
from specjax.runtime.whole_state import Layout

pytestmark = pytest.mark.mesh

Load = Callable[..., specjax.Model]

PROMPT, LATER = (np.random.default_rng(seed).integers(5, 250, 14).tolist() for seed in (0, 1))
LENGTH: dict[str, Any] = {"max_tokens": 10, "ignore_eos": True}
WAYS = [(None, "1x4"), ("1x4", "1x2"), ("1x2", "2x2"), ("2x2", None), (None, "2x2"), ("1x4", None)]
CASES = [
    ("hybrid", None, {"draft": 3}),
    ("hybrid", None, {"draft": 3, "rollback": "snapshot", "kv_type_k": "q8_0", "kv_type_v": "turbo3"}),
    ("qwen3", "ngram", {"draft": 2, "kv_type_k": "bf16", "kv_type_v": "q4_0"}),
    ("qwen3", "hybrid", {"draft": 2}),
    ("gemma4", "assistant", {"draft": 2}),
    ("gemma4 edge", None, {"draft": 0, "kv_type_k": "f16", "kv_type_v": "turbo4"}),
]


def check(load: Load, folder: Path, case: tuple[str, str | None, dict[str, Any]], ways: list[tuple]) -> None:
    """Save a session on one mesh, go on with it on another: the reply and going back say what one device says."""
    name, drafter, options = case
    models = {mesh: load(name, mesh=mesh, drafter=drafter) for mesh in {None, *(each for way in ways for each in way)}}
    begun = {mesh: model.session(**options, **LENGTH).generate(PROMPT)[1] for mesh, model in models.items()}
    one = begun[None]
    replies = [one.generate([*one.conversation, *LATER])[0].tokens, one.rewind(12).generate(PROMPT)[0].tokens]
    arrays = {}
    for mesh, session in begun.items():
        session.save(folder / str(mesh))
        arrays[mesh] = load_file(folder / str(mesh))
    for before, after in ways:
        assert arrays[before].keys() == arrays[None].keys()
        for key, array in arrays[before].items():
            assert array.shape == arrays[None][key].shape
        loaded = models[after].load_session(folder / str(before))
        went_on, reply = loaded.generate([*loaded.conversation, *LATER]), loaded.rewind(12).generate(PROMPT)[0]
        assert [went_on[0].tokens, reply.tokens] == replies, (before, after)
        assert went_on[1].reuse is not None
        assert went_on[1].reuse.reused == len(one.conversation) - 1


@pytest.mark.parametrize("case", [CASES[0]], ids=str)
def test_a_saved_session_goes_on_on_other_devices(load: Load, tmp_path: Path, case: tuple) -> None:
    check(load, tmp_path, case, [("1x4", None), (None, "1x4")])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_kind_of_state_goes_on_everywhere(load: Load, tmp_path: Path, case: tuple) -> None:
    check(load, tmp_path, case, WAYS)


@pytest.mark.parametrize("rollback", ["replay", "snapshot"])
def test_a_state_that_is_made_whole_and_placed_again_is_the_same(load: Load, rollback: Any) -> None:
    """Every number of a state is told from the others: on four parts with two KV heads, and value heads in blocks."""
    model = load("hybrid", mesh="1x4")
    decoder = model.decoder(specjax.GenerateOptions(draft=3, rollback=rollback))
    layout = Layout.of(decoder, model.params, 8)
    whole = jax.eval_shape(lambda: decoder.init_state(1, 8))
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda leaf: rng.integers(0, 100, leaf.shape).astype(leaf.dtype), whole)
    placed = layout.placed(state)
    jax.tree.map(np.testing.assert_array_equal, layout.whole(placed), state)
    config = model.config
    for layer in ("window", "matrix") if rollback == "replay" else ("conv_inputs", "slots"):
        (cut,) = {cut for path, cut in layout.cuts.items() if path.endswith(f".{layer}")}
        segments = config.segments["conv" if layer in ("window", "conv_inputs") else "a"]  # type: ignore[attr-defined]
        shape, local = (cut.length,), (cut.length // 4,)
        wanted = cut_of(shape, local, 4, segments)
        assert wanted is not None
        assert cut.pieces == wanted.pieces
