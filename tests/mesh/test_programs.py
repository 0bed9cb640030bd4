"""What programs of several devices say to each other, and that they are compiled once and keep no second state."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

import specjax
from specjax.decoding.loop import decode_chunk
from specjax.decoding.new_state import new_state
from specjax.decoding.settings import DraftConfig, Settings

pytestmark = pytest.mark.mesh

Load = Callable[..., specjax.Model]
BATCH, ROUNDS, SLOTS = 2, 4, 64
COLLECTIVE = re.compile(r"= (\S+) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def chunk_of(model: specjax.Model, **options: Any) -> tuple[Any, Any]:
    """The compiled program of a chunk, and a state for it."""
    decoder = model.decoder(specjax.GenerateOptions(**options))
    settings = decoder.settings([Settings(draft=DraftConfig(n_max=decoder.max_drafts))] * BATCH)
    state = new_state(decoder, model.params, settings, SLOTS)
    return decode_chunk.lower(decoder, model.params, state, ROUNDS, np.int32(2), np.int32(2)).compile(), state


def collectives(program: Any) -> dict[str, list[int]]:
    """The kinds of collectives in a program, and how many numbers each result has."""
    found: dict[str, list[int]] = {}
    for shape, kind in COLLECTIVE.findall(program.as_text()):
        sizes = re.findall(r"\w+\[([\d,]*)\]", shape)
        found.setdefault(kind, []).append(max(int(np.prod([int(n) for n in each.split(",") if n])) for each in sizes))
    return found


@cache
def chunk_of_hybrid(load: Load, weights: str) -> tuple[Any, Any]:
    """The program of rounds with drafts on four devices, and a state, which one test may consume."""
    return chunk_of(load("hybrid", weights, "1x4"), draft=3)


def test_a_round_of_a_dense_model_adds_up_twice_a_layer(load: Load) -> None:
    """Besides, once for the embedding and once to see whether logits are finite; the argmax is gathered."""
    model = load("qwen3", "F32", "1x2")
    found = collectives(chunk_of(model, draft=0)[0])
    assert found.keys() == {"all-reduce", "all-gather"}
    assert len(found["all-reduce"]) <= 2 * model.config.num_layers + 2
    assert len(found["all-gather"]) <= 1


@pytest.mark.parametrize("weights", ["F32", pytest.param("Q8_0", marks=pytest.mark.slow)])
def test_a_round_with_drafts_keeps_to_its_budget(load: Load, weights: str) -> None:
    """The head runs twice, over waiting rows and for a further draft: an embedding, a pair and two sums each. Two sums
    go into the confidence of either draft.
    """
    found, config = collectives(chunk_of_hybrid(load, weights)[0]), load("hybrid", weights, "1x4").config
    assert found.keys() == {"all-reduce", "all-gather"}
    assert len(found["all-reduce"]) <= 2 * config.num_layers + 2 + 2 * 3 + 2 * 2
    assert len(found["all-gather"]) <= 1 + 2 + 2


@pytest.mark.parametrize(
    ("drafter", "sums", "gathers"),
    [
        ("eagle3", 2 * (1 + 2 + 2), 1 + 2),
        pytest.param("dspark", 1 + 2 * 2 + 2 * (1 + 2), 1 + 2, marks=pytest.mark.slow),
        pytest.param("dflash2", 1 + 2 * 2 + 2 * (2 + 2), 1 + 2 * 2 + 2 * 3, marks=pytest.mark.slow),
    ],
)
def test_other_drafters_keep_to_their_budget_too(load: Load, drafter: str, sums: int, gathers: int) -> None:
    """EAGLE-3 runs twice: an embedding, two sums of a layer, two of the confidence. A block is run once, and chosen
    from twice: by the embedding of the token before it, and with a selector by those of candidates. Features are
    projected once. The two convolutions of a layer are gathered, and the best tokens of all parts. No row of logits
    travels, no weight and no cache.
    """
    model = load("qwen3", "F32", "1x4", drafter)
    program, state = chunk_of(model, draft=3)
    found = collectives(program)
    assert found.keys() == {"all-reduce", "all-gather"}
    assert len(found["all-reduce"]) <= 2 * model.config.num_layers + 2 + sums
    assert len(found["all-gather"]) <= 1 + gathers
    assert max(size for each in found.values() for size in each) <= BATCH * 5 * model.config.width
    own = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state))
    assert program.memory_analysis().alias_size_in_bytes >= own


def test_no_weight_and_no_cache_travels(load: Load) -> None:
    """The largest thing that is sent is the residual stream of the rows of a round."""
    sizes = [size for each in collectives(chunk_of_hybrid(load, "F32")[0]).values() for size in each]
    assert max(sizes) == BATCH * 4 * load("hybrid", "F32", "1x4").config.width


def test_each_device_holds_its_part(load: Load) -> None:
    one, split = load("hybrid", "F32"), load("hybrid", "F32", "1x4")
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(one.params))
    own = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(split.params))
    assert own < total / 3  # norms are whole everywhere, and KV heads are fewer than devices


def test_a_state_on_a_mesh_is_consumed(load: Load) -> None:
    model = load("hybrid", "F32", "1x4")
    program, state = chunk_of_hybrid(load, "F32")
    leaves = jax.tree.leaves(state)
    after, _ = program(model.params, state, np.int32(2), np.int32(2))
    assert all(leaf.is_deleted() for leaf in leaves)
    own = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(after))
    assert program.memory_analysis().alias_size_in_bytes >= own
    assert [leaf.sharding for leaf in jax.tree.leaves(after)] == [leaf.sharding for leaf in leaves]


@pytest.mark.parametrize(
    ("name", "drafter", "mesh", "draft_vocab"),
    [
        ("qwen3", "dspark", "1x2", 102),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("qwen3", None, "1x2", None),
                ("qwen3", "eagle3", "1x4", None),
                ("hybrid", None, "2x2", None),
                ("hybrid", None, "1x4", 102),
                ("qwen3", "dspark", "1x4", None),
                ("qwen3", "dflash2", "2x2", None),
                ("qwen3", "odd", "1x4", None),
                ("gemma4", "assistant", "1x4", None),
            )
        ),
    ],
    ids=str,
)
def test_a_second_call_compiles_nothing(
    load: Load, compiled: list[str], name: str, drafter: str | None, mesh: str, draft_vocab: int | None
) -> None:
    """Nor does one with other texts, another length, and other settings of the rows."""
    model = load(name, "F32", mesh, drafter, draft_vocab=draft_vocab)
    drafts = 3 if model.drafter else 0

    def generate(*prompts: list[int], **changes: Any) -> None:
        model.generate_batch(prompts, draft=drafts, ignore_eos=True, **({"max_tokens": 20} | changes))

    generate([5, 6, 7], [8, 9, 10, 11], temperature=[0.0, 0.8])
    compiled.clear()
    generate([5, 6, 7], [8, 9, 10, 11], temperature=[0.0, 0.8])
    generate([9, 8], [7, 6, 5], max_tokens=12, temperature=[0.7, 0.9], top_k=[0, 5], seed=[3, 4])
    assert not compiled
