"""EAGLE-3 drafters against the modules of SpecForge and speculators, from their files."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drafter_fixtures import TOLERANCE, attached, greedy, loaded_drafter, peer, target
from tiny_models import relative_rms

from specjax.models.drafters.eagle3 import Eagle3Drafter
from specjax.models.protocol import Features, Params, Proposal
from specjax.state import KVTypes, SequenceState

NAMES = ("specforge", "specforge_wide", "speculators", "speculators_qwen3", "speculators_layers")
CAPACITY = 32


def drafter(name: str) -> tuple[Eagle3Drafter, Params]:
    config, params = loaded_drafter(f"eagle3/{name}")
    model = target()[0]
    fits = config.target_width == model.width
    # One has everything of its own, and only the width of its target differs.
    own = attached(f"eagle3/{name}")[0] if fits else Eagle3Drafter(model, config)
    assert isinstance(own, Eagle3Drafter)
    return own, params


@partial(jax.jit, static_argnums=0)
def over_rows(own: Eagle3Drafter, params: Params, tokens: jax.Array, features: jax.Array) -> tuple[jax.Array, ...]:
    """Fused features, what leaves the layers, and logits; row p pairs token p + 1 with the features at p."""
    kv = own.init_state(1, CAPACITY, rows=4, chunk=CAPACITY).kv
    fused = own.enter(params, features[None])
    positions = 1 + jnp.arange(len(features))[None]
    out, _ = own.run(params, tokens[None, 1:], fused, positions, positions > 0, kv)
    return fused[0], out[0], own.logits(params, out)[0]


@partial(jax.jit, static_argnums=(0, 4))
def chain(
    own: Eagle3Drafter, params: Params, tokens: jax.Array, features: tuple[jax.Array, ...], count: int
) -> Proposal:
    """Greedy drafts after the prompt but for its last token, which is pending. `logq` has the logits."""

    n = jnp.array([len(tokens) - 1])
    zero = jnp.zeros((1,), jnp.int32)
    state = own.init_state(1, CAPACITY, rows=count + 1, chunk=len(tokens) - 1, kv_types=KVTypes())
    heard = own.extend(params, tokens[None, :-1], Features(layer_inputs=features), n, state, zero)
    return own.propose(
        params,
        tokens[-1:],
        SequenceState((), heard, n),
        num_drafts=count,
        choose=greedy,
        keep_going=lambda confidence, made: confidence > 0,
    )


@pytest.mark.parametrize("name", NAMES)
def test_rows_equal_those_of_the_trainer(name: str) -> None:
    own, params = drafter(name)
    want = peer(f"eagle3/{name}")
    features = want["features"].reshape(len(want["features"]), -1)
    fused, out, logits = over_rows(own, params, want["tokens"], features)
    assert relative_rms(fused, want["fused"]) <= TOLERANCE
    hidden = want["hidden"]
    if own.config.final_norm == "both":
        norm = params["eagle3"]["norm"]["weight"]
        hidden = hidden / np.sqrt(np.mean(hidden**2, axis=-1, keepdims=True) + own.config.norm_eps) * norm
    assert relative_rms(out, hidden) <= TOLERANCE
    assert relative_rms(logits, want["logits"]) <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_a_greedy_chain_equals_that_of_the_trainer(name: str) -> None:
    own, params = drafter(name)
    want = peer(f"eagle3/{name}")
    features = tuple(jnp.asarray(want["features"][None, :, index]) for index in range(own.config.num_features))
    drafted = chain(own, params, want["tokens"], features, len(want["drafts"]))
    assert drafted.tokens[0].tolist() == want["drafts"].tolist()
    assert relative_rms(drafted.logq[0], want["draft_logits"]) <= TOLERANCE


@pytest.mark.parametrize("name", ["specforge", pytest.param("speculators", marks=pytest.mark.slow)])
def test_features_of_the_target_are_those_of_transformers(name: str) -> None:
    """The drafter names layers of the target, and is fed what these make of a text."""
    own, params = drafter(name)
    want = peer(f"eagle3/{name}", "target")
    model, n = own.target, len(want["tokens"]) - 1
    layers = model.init_layers(1, CAPACITY, rows=4, chunk=n, rollback="replay", kv_types=KVTypes())
    state = SequenceState(layers, None, jnp.zeros((1,), jnp.int32))
    feed = jax.jit(partial(model.extend, request=own.request, rows="none"))
    output, _ = feed(params, want["tokens"][None, :-1], jnp.array([n]), state)
    drafted = chain(own, params, want["tokens"], output.features.layer_inputs, len(want["drafts"]))
    assert drafted.tokens[0].tolist() == want["drafts"].tolist()
    assert relative_rms(drafted.logq[0], want["draft_logits"]) <= TOLERANCE
