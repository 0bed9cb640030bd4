"""What devices would hold, before anything is loaded: equal to what they hold afterwards."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from pallas_kernels import using
from pallas_kernels.matmul import leaves
from specjax.analysis.memory import DEVICES
from specjax.analysis.memory.liveness import peak_bytes
from specjax.cli.main import main
from specjax.decoding.loop import decode_chunk
from specjax.decoding.new_state import new_state, outline_of_state
from specjax.decoding.seats import feed_rows
from specjax.decoding.settings import DraftConfig, Settings
from specjax.runtime.outline import outline

BATCH, SLOTS = 3, 512
OPTIONS: dict[str, Any] = {"draft": 2, "kv_type_k": "q8_0", "kv_type_v": "turbo3", "rollback": "snapshot"}


@pytest.fixture(scope="module")
def model() -> specjax.Model:
    return specjax.load()


def planned(**changes: Any) -> specjax.MemoryPlan:
    return specjax.plan_memory(**{"batch": BATCH, "context": SLOTS, "temporaries": False, **OPTIONS, **changes})


def test_parameters_are_those_that_loading_makes(model: specjax.Model) -> None:
    for name, size in planned().parameters.items():
        assert size == sum(leaf.nbytes for leaf in leaves(model.params[name]))
    assert planned().parameters.keys() == model.params.keys()
    trimmed = specjax.load(draft_vocab=64).params["trimmed"]
    assert planned(draft_vocab=64).parameters["trimmed"] == sum(leaf.nbytes for leaf in leaves(trimmed))


def test_a_state_is_the_one_that_decoding_makes(model: specjax.Model) -> None:
    decoder = model.decoder(specjax.GenerateOptions(**OPTIONS))
    settings = decoder.settings([Settings(draft=DraftConfig(n_max=2))] * BATCH)
    state = new_state(decoder, model.params, settings, SLOTS)
    found = planned().state
    assert sum(found.values()) == sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert found["drafter"] == sum(leaf.nbytes for leaf in jax.tree.leaves(state.sequences.drafter))
    kept = [sum(leaf.nbytes for leaf in jax.tree.leaves(layer)) for layer in state.sequences.layers]
    recurrent = [layer.limit is None for layer in state.sequences.layers]
    assert found["recurrent states"] == sum(size for size, is_sum in zip(kept, recurrent, strict=True) if is_sum)
    assert found["caches"] == sum(size for size, is_sum in zip(kept, recurrent, strict=True) if not is_sum)


def test_parts_of_a_split_model_add_up_to_the_model() -> None:
    """But for norms, which every device has."""
    whole, half = planned(), planned(mesh="1x2")
    for name, size in whole.parameters.items():
        assert size / 2 <= half.parameters[name] < size * 0.51
    assert half.state["caches"] == pytest.approx(whole.state["caches"] / 2, rel=0.01)
    rows = planned(mesh="2x1")
    assert rows.batch == 4  # every row of devices has as many
    assert rows.parameters == whole.parameters
    assert rows.state["caches"] == whole.state["caches"] * 2 // 3


def test_the_largest_batch_and_context_fit_and_no_larger_ones_do() -> None:
    plan = planned(device_memory=0.05, context=256)
    assert plan.fits
    batch, context = plan.largest_batch(), plan.largest_context()
    for larger in (0, 1):
        assert planned(device_memory=0.05, context=256, batch=batch + larger).fits == (larger == 0)
        longer = context + 256 * larger
        assert planned(device_memory=0.05, context=longer).fits == (larger == 0) or longer > 2048
    none = planned(device_memory=0.001)
    assert not none.fits
    assert none.largest_batch() == none.largest_context() == 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"device": "v9"}, "v5e"), ({"mesh": "1x3"}, "num_heads"), ({"mesh": "4"}, "ROWSxMODEL")],
)
def test_what_cannot_be_is_refused_with_what_can(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(specjax.SpecjaxError, match=named):
        planned(**changes)


def test_devices_have_less_than_is_published() -> None:
    assert 15 * 2**30 < DEVICES["v5e"].memory < 15.75 * 2**30
    assert DEVICES["v6e"].memory < 31.25 * 2**30


@pytest.mark.slow
def test_the_estimate_is_near_what_the_compiler_takes(model: specjax.Model) -> None:
    """Of XLA's forms on a CPU: compilers for other devices fuse and copy in other ways."""
    batch, slots, tokens = 8, 1024, 256
    with using("xla"):
        found = planned(temporaries=True, packed=None, batch=batch, context=slots).temporaries
        outlined = outline(packed=None)
        decoder = outlined.decoder(specjax.GenerateOptions(**OPTIONS))
        settings = decoder.settings([Settings(draft=DraftConfig(n_max=2))] * batch)
        state = outline_of_state(decoder, settings, slots)
        limit = np.int32(4)
        piece = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((batch, tokens), (batch,))]
        models = decoder.target, decoder.drafter
        lowered = {
            "a round": decode_chunk.lower(decoder, outlined.params, state, 4, limit, limit),
            "256 tokens of 8 prompts": feed_rows.lower(*models, outlined.params, state.sequences, None, *piece),
        }
        for name, each in lowered.items():
            taken = each.compile().memory_analysis().temp_size_in_bytes
            assert taken / 2 <= found[name] <= 3 * taken


def live(function: Any, *shapes: tuple[int, ...]) -> int:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return peak_bytes(jax.make_jaxpr(function)(*arguments).jaxpr)


SIDE = 64
SQUARE = (SIDE, SIDE)
ONE = 4 * SIDE * SIDE


def test_what_is_read_later_is_held_meanwhile() -> None:
    """Of a chain of products two are held at a time, of one that returns to the first, three."""
    assert live(lambda x: x @ x @ x @ x, SQUARE) == 2 * ONE

    def returns(x: jax.Array) -> jax.Array:
        first = x @ x
        return (first @ x @ x) @ first

    assert live(returns, SQUARE) == 3 * ONE


def test_fused_operations_and_views_hold_nothing() -> None:
    assert live(lambda x: jnp.sum(jnp.exp(2 * x + 1)), SQUARE) == 4
    assert live(lambda x: x.reshape(-1)[: SIDE * 2].reshape(2, SIDE) @ x, SQUARE) == 4 * 2 * SIDE


def test_a_residual_stream_is_held_once_however_many_layers_add_to_it() -> None:
    def layers(count: int) -> int:
        def run(x: jax.Array, weight: jax.Array) -> jax.Array:
            for _ in range(count):
                scale = jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True))
                x = x + (x * scale) @ weight
            return x

        return live(run, SQUARE, SQUARE)

    assert layers(12) == layers(3) <= 4 * ONE


def test_a_loop_holds_what_one_turn_holds() -> None:
    def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.tanh(carry @ carry), None

    once = live(lambda x: jax.lax.scan(body, x, None, length=1)[0], SQUARE)
    assert once == live(lambda x: jax.lax.scan(body, x, None, length=9)[0], SQUARE) <= 2 * ONE


def test_the_command_says_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan-memory", "--mesh", "1x2", "--device", "v5e", "--context", "512", "--no-temporaries"]
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["total"] == sum(sum(document[name].values()) for name in ("parameters", "state"))
    assert document["largest_batch"] > 100
    assert main([*arguments, "--device-memory", "0.001"]) == 1
    assert "does not fit" in capsys.readouterr().out


def test_the_large_piece_of_gpus_does_not_grow_with_the_batch() -> None:
    plan = specjax.plan_memory(device="h100", batch=1, context=2048)
    small = {name: size for name, size in plan.temporaries.items() if name != "1024 tokens of 1 prompt"}
    assert len(small) == len(plan.temporaries) - 1
    assert plan.total > replace(plan, temporaries=small).total
    assert plan.largest_batch() == replace(plan, temporaries=small).largest_batch()
