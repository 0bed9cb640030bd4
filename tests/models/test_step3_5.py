"""The Step-3.5 trunk against independent implementations, on the same weights (see tests/fixtures/PROVENANCE.md)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parameter_count import count
from tiny_models import relative_rms

import checkpoints
from benchmarks.released_models import STEP_35_FLASH
from specjax.models.parts.paired import Pairs
from specjax.models.protocol import FeatureRequest, Params
from specjax.models.registry import FAMILIES
from specjax.models.step3_5 import (
    Step35Config,
    Step35MTP,
    Step35Target,
    init_params,
    parameter_shapes,
)
from specjax.state import KVCache, SequenceState, commit

FIXTURES = Path(__file__).parents[1] / "fixtures" / "step3_5"
MODELS = ("flash", "plain")
TOLERANCE = 1e-5  # relative RMS, float32
CAPACITY = 256
PIECE = 16  # tokens fed at once: the rings of the sliding layers, with a window of 24, go round several times


@cache
def load(name: str, file: str) -> tuple[Step35Config, Params]:
    """A fixture model from its GGUF file ("model.gguf") or its Hugging Face folder ("hf")."""
    checkpoint = checkpoints.load(FIXTURES / name / file, FAMILIES)
    return checkpoint.config, checkpoint.params


@cache
def reference(name: str) -> dict[str, np.ndarray]:
    with np.load(FIXTURES / name / "reference.npz") as arrays:
        return dict(arrays)


@partial(jax.jit, static_argnums=0)
def prefill(config: Step35Config, params: Params, prompt: jax.Array) -> tuple[jax.Array, jax.Array, SequenceState]:
    """Logits [T, V] and hidden states [T, D] of a prompt fed in pieces, and the state after it."""
    target = Step35Target(config)
    pieces = -(-len(prompt) // PIECE)
    tokens = jnp.pad(prompt, (0, pieces * PIECE - len(prompt))).reshape(pieces, 1, PIECE)
    n_valid = jnp.clip(len(prompt) - PIECE * jnp.arange(pieces), 0, PIECE)[:, None]
    layers = target.init_layers(1, CAPACITY, rows=1, chunk=PIECE, rollback="replay")

    def feed(state: SequenceState, piece: tuple[jax.Array, jax.Array]) -> tuple[SequenceState, tuple]:
        request = FeatureRequest(final_hidden=True)
        out, state = target.extend(params, *piece, state, request=request, rows="all")
        return state, (out.logits, out.features.final_hidden)

    state = SequenceState(layers, None, jnp.zeros((1,), jnp.int32))
    state, (logits, hidden) = jax.lax.scan(feed, state, (tokens, n_valid))
    return *(rows.reshape(pieces * PIECE, -1)[: len(prompt)] for rows in (logits, hidden)), state


@partial(jax.jit, static_argnums=(0, 4))
def decode(config: Step35Config, params: Params, pending: jax.Array, state: SequenceState, count: int) -> jax.Array:
    """The pending token and the greedy choices after it, `count` tokens in all, one verified token at a time."""
    target = Step35Target(config)

    def step(carry: tuple[jax.Array, SequenceState], _: None) -> tuple[tuple[jax.Array, SequenceState], jax.Array]:
        token, state = carry
        out, window = target.verify(params, token[:, None], jnp.ones_like(token), state)
        assert out.logits is not None
        following = jnp.argmax(out.logits[:, 0], axis=-1).astype(token.dtype)
        return (following, commit(window, jnp.ones_like(token))), token[0]

    return jax.lax.scan(step, (pending[None], state), length=count)[1]


@pytest.mark.parametrize("name", MODELS)
def test_gguf_and_safetensors_give_the_same_config_and_parameters(name: str) -> None:
    (gguf_config, gguf), (hf_config, hf) = load(name, "model.gguf"), load(name, "hf")
    assert gguf_config == replace(hf_config, rope_formula=None)
    assert (hf_config.rope_formula is not None) == gguf_config.rope_factors == (name == "flash")
    assert jax.tree.structure(gguf) == jax.tree.structure(hf)
    for path, leaf in jax.tree.leaves_with_path(gguf):
        other = hf
        for key in path:
            other = other[key.key]
        np.testing.assert_allclose(leaf, other, rtol=1e-6, err_msg=jax.tree_util.keystr(path))


def whole(want: dict[str, np.ndarray]) -> np.ndarray:
    """The prompt of a reference and its greedy continuation."""
    return np.concatenate([want["prompt"], want["greedy"]])


def assert_greedy(logits: jax.Array, want: dict[str, np.ndarray]) -> None:
    """After the prompt and after each token of the continuation comes the next one."""
    assert logits[len(want["prompt"]) - 1 : -1].argmax(axis=-1).tolist() == want["greedy"].tolist()


def test_trunk_of_safetensors_agrees_with_transformers() -> None:
    want = reference("flash")
    logits, hidden, _ = prefill(*load("flash", "hf"), whole(want))
    assert relative_rms(hidden[: len(want["prompt"])], want["transformers_hidden"]) <= TOLERANCE
    assert relative_rms(logits[want["logit_rows"]], want["transformers_logits"]) <= TOLERANCE
    assert_greedy(logits, want)


@pytest.mark.parametrize("name", MODELS)
def test_trunk_of_gguf_agrees_with_llama_cpp(name: str) -> None:
    want = reference(name)
    logits, hidden, _ = prefill(*load(name, "model.gguf"), whole(want))
    assert relative_rms(hidden[: len(want["prompt"])], want["hidden"]) <= TOLERANCE
    assert relative_rms(logits[want["logit_rows"]], want["logits"]) <= TOLERANCE
    assert_greedy(logits, want)


@pytest.mark.slow  # the rounds of `test_step3_5_chain.py` verify and commit, and the trunk's logits say what comes next
@pytest.mark.parametrize(("name", "file"), [("flash", "hf"), ("plain", "model.gguf")])
def test_greedy_continuation_equals_that_of_the_references(name: str, file: str) -> None:
    want = reference(name)
    config, params = load(name, file)
    logits, _, state = prefill(config, params, want["prompt"])
    got = decode(config, params, jnp.argmax(logits[-1]), state, len(want["greedy"]))
    assert got.tolist() == want["greedy"].tolist()


@pytest.mark.parametrize("name", MODELS)
def test_first_head_over_a_prompt_agrees_with_llama_cpp(name: str) -> None:
    want = reference(name)
    config, params = load(name, "model.gguf")
    head = Step35MTP(config)

    @jax.jit
    def run(params: Params, tokens: jax.Array, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        positions = jnp.arange(len(tokens))[None]
        shifted = jnp.pad(hidden, ((1, 0), (0, 0)))[None, :-1]
        cache = head.init_state(1, CAPACITY, rows=2, chunk=len(tokens)).kv[0]
        assert isinstance(cache, KVCache)
        out, _ = head.run(params, 0, Pairs(tokens[None], shifted, positions, positions >= 0), cache)
        return out[0], head.logits(params, 0, out[0])

    hidden, logits = run(params, want["prompt"], want["hidden"])
    assert relative_rms(hidden, want["mtp_hidden"]) <= TOLERANCE
    assert relative_rms(logits[want["logit_rows"]], want["mtp_logits"]) <= TOLERANCE


def test_parameters_of_the_released_model_add_up() -> None:
    """The model card counts 196.81 billion: a trunk of 196 and heads of 0.81, without output heads of their own."""
    shapes = parameter_shapes(STEP_35_FLASH)
    assert count(shapes["target"]) / 1e9 == pytest.approx(196.81, rel=0.01)
    outputs = 3 * STEP_35_FLASH.vocab_size * STEP_35_FLASH.width
    assert (count(shapes["mtp"]) - outputs) / 1e9 == pytest.approx(0.81, rel=0.05)


def test_the_released_model_reads_eleven_billion_parameters_per_token() -> None:
    config = STEP_35_FLASH
    assert config.moe is not None
    one_expert = 3 * config.width * config.moe.expert_width
    unused = (config.moe.num_experts - config.moe.experts_per_token) * one_expert * 42
    read = count(parameter_shapes(config)["target"]) - unused - config.vocab_size * config.width  # of the table, a row
    assert read / 1e9 == pytest.approx(11, rel=0.05)


def test_shapes_are_those_of_initialised_parameters() -> None:
    config, params = load("flash", "hf")
    initialised = jax.eval_shape(partial(init_params, config), jax.eval_shape(lambda: jax.random.key(0)))
    assert parameter_shapes(config) == initialised
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda leaf: leaf.shape, initialised)
