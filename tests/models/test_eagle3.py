"""EAGLE-3 drafters against the modules of SpecForge and speculators, from their files."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import relative_rms

import checkpoints
from specjax.models import registry
from specjax.models.drafters.eagle3 import Eagle3Drafter
from specjax.models.drafters.eagle3.drafter import from_file
from specjax.models.protocol import Choice, Features, Params, Proposal, Target
from specjax.state import KVTypes, SequenceState

FIXTURES = Path(__file__).parent.parent / "fixtures"
NAMES = ("specforge", "specforge_wide", "speculators", "speculators_qwen3", "speculators_layers")
TOLERANCE = 1e-5  # relative RMS, float32
CAPACITY = 32


@cache
def target() -> tuple[Target, Params]:
    """The target that shares its embedding table and its head."""
    loaded = checkpoints.load(FIXTURES / "drafter_target" / "hf", registry.FAMILIES)
    return registry.build(loaded.config)[0], loaded.params


@cache
def drafter(name: str) -> tuple[Eagle3Drafter, Params]:
    loaded = checkpoints.load(FIXTURES / "eagle3" / name, registry.FAMILIES, need_tokenizer=False)
    model, params = target()
    config: Any = loaded.config
    fits = config.target_width == model.width
    # One has everything of its own, and only the width of its target differs.
    attached = from_file(config).attach(model) if fits else Eagle3Drafter(model, config)
    assert isinstance(attached, Eagle3Drafter)
    return attached, {**params, **loaded.params}


@cache
def peer(name: str, kind: str = "peer") -> dict[str, np.ndarray]:
    with np.load(FIXTURES / "eagle3" / name / f"{kind}.npz") as arrays:
        return dict(arrays)


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

    def choose(logits: jax.Array, position: jax.Array, of: jax.Array | None = None) -> Choice:
        best = jnp.argmax(logits, axis=-1)
        token = best if of is None else jnp.take_along_axis(of, best[:, None], axis=1)[:, 0]
        return Choice(token, logits, jnp.ones(position.shape))

    n = jnp.array([len(tokens) - 1])
    zero = jnp.zeros((1,), jnp.int32)
    state = own.init_state(1, CAPACITY, rows=count + 1, chunk=len(tokens) - 1, kv_types=KVTypes())
    heard = own.extend(params, tokens[None, :-1], Features(layer_inputs=features), n, state, zero)
    return own.propose(
        params,
        tokens[-1:],
        SequenceState((), heard, n),
        num_drafts=count,
        choose=choose,
        keep_going=lambda confidence, made: confidence > 0,
    )


@pytest.mark.parametrize("name", NAMES)
def test_rows_equal_those_of_the_trainer(name: str) -> None:
    own, params = drafter(name)
    want = peer(name)
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
    want = peer(name)
    features = tuple(jnp.asarray(want["features"][None, :, index]) for index in range(own.config.num_features))
    drafted = chain(own, params, want["tokens"], features, len(want["drafts"]))
    assert drafted.tokens[0].tolist() == want["drafts"].tolist()
    assert relative_rms(drafted.logq[0], want["draft_logits"]) <= TOLERANCE


@pytest.mark.parametrize("name", ["specforge", "speculators"])
def test_features_of_the_target_are_those_of_transformers(name: str) -> None:
    """The drafter names layers of the target, and is fed what these make of a text."""
    own, params = drafter(name)
    want = peer(name, "target")
    model, n = own.target, len(want["tokens"]) - 1
    layers = model.init_layers(1, CAPACITY, rows=4, chunk=n, rollback="replay", kv_types=KVTypes())
    state = SequenceState(layers, None, jnp.zeros((1,), jnp.int32))
    feed = jax.jit(partial(model.extend, request=own.request, rows="none"))
    output, _ = feed(params, want["tokens"][None, :-1], jnp.array([n]), state)
    drafted = chain(own, params, want["tokens"], output.features.layer_inputs, len(want["drafts"]))
    assert drafted.tokens[0].tolist() == want["drafts"].tolist()
    assert relative_rms(drafted.logq[0], want["draft_logits"]) <= TOLERANCE
