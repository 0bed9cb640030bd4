"""Qwen3.5 against independent implementations, on the same random weights (see tests/fixtures/PROVENANCE.md)."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import checkpoints
from specjax.models.protocol import Choice, FeatureRequest, Params, Proposal
from specjax.models.qwen3_5 import Qwen35Config, Qwen35MTP, Qwen35Target
from specjax.models.registry import FAMILIES
from specjax.state import KVCache, KVTypes, SequenceState, commit

FIXTURES = Path(__file__).parents[1] / "fixtures" / "qwen3_5"
MODELS = ("dense", "moe", "tied")
TOLERANCE = 1e-5  # relative RMS, float32
DRAFTS = 3
CAPACITY = 256


@cache
def load(name: str, file: str) -> tuple[Qwen35Config, Params]:
    """A fixture model from its GGUF file ("model.gguf") or its Hugging Face folder ("hf")."""
    checkpoint = checkpoints.load(FIXTURES / name / file, FAMILIES)
    return checkpoint.config, checkpoint.params


@cache
def reference(name: str, file: str) -> dict[str, np.ndarray]:
    with np.load(FIXTURES / name / file) as arrays:
        return dict(arrays)


def prompt_and_llama_cpp(name: str) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """The prompt of both references, the rows whose logits they keep, and llama.cpp's outputs."""
    common = reference(name, "transformers.npz")
    return common["prompt"], common["logit_rows"], reference(name, "llama_cpp.npz")


def assert_close(got: jax.Array, want: np.ndarray) -> None:
    assert got.shape == want.shape
    error = np.sqrt(np.mean((np.asarray(got) - want) ** 2) / np.mean(want**2))
    assert error <= TOLERANCE, f"relative RMS {error:.2e}"


@partial(jax.jit, static_argnums=0)
def prefill(config: Qwen35Config, params: Params, prompt: jax.Array) -> tuple[jax.Array, jax.Array, SequenceState]:
    """Logits [T, V] and final hidden states [T, D] of a prompt, and the state after it with the head's part."""
    target, drafter = Qwen35Target(config), Qwen35MTP(config)
    tokens, n_valid = prompt[None], jnp.array([len(prompt)])
    state = SequenceState(
        target.init_layers(1, CAPACITY, rows=DRAFTS + 1, chunk=len(prompt), rollback="replay"),
        drafter.init_state(1, CAPACITY, rows=DRAFTS + 1, chunk=len(prompt)),
        jnp.zeros((1,), jnp.int32),
    )
    out, after = target.extend(params, tokens, n_valid, state, request=FeatureRequest(final_hidden=True), rows="all")
    head = drafter.extend(params, tokens, out.features, n_valid, state.drafter, state.length)
    assert out.logits is not None
    assert out.features.final_hidden is not None
    return out.logits[0], out.features.final_hidden[0], SequenceState(after.layers, head, after.length)


@partial(jax.jit, static_argnums=(0, 4))
def decode(config: Qwen35Config, params: Params, pending: jax.Array, state: SequenceState, count: int) -> jax.Array:
    """The pending token and the greedy choices after it, `count` tokens in all, one verified token at a time."""
    target = Qwen35Target(config)

    def step(carry: tuple[jax.Array, SequenceState], _: None) -> tuple[tuple[jax.Array, SequenceState], jax.Array]:
        token, state = carry
        out, window = target.verify(params, token[:, None], jnp.ones_like(token), state)
        assert out.logits is not None
        following = jnp.argmax(out.logits[:, 0], axis=-1).astype(token.dtype)
        return (following, commit(window, jnp.ones_like(token))), token[0]

    trunk_only = SequenceState(state.layers, None, state.length)
    return jax.lax.scan(step, (pending[None], trunk_only), length=count)[1]


@pytest.mark.parametrize("name", MODELS)
def test_gguf_and_safetensors_give_the_same_config_and_parameters(name: str) -> None:
    (gguf_config, gguf), (hf_config, hf) = load(name, "model.gguf"), load(name, "hf")
    assert gguf_config == hf_config
    assert jax.tree.structure(gguf) == jax.tree.structure(hf)
    for path, leaf in jax.tree.leaves_with_path(gguf):
        other = hf
        for key in path:
            other = other[key.key]
        np.testing.assert_allclose(leaf, other, rtol=1e-6, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("name", MODELS)
def test_trunk_of_safetensors_agrees_with_transformers(name: str) -> None:
    want = reference(name, "transformers.npz")
    logits, hidden, _ = prefill(*load(name, "hf"), want["prompt"])
    assert_close(hidden, want["hidden"])
    assert_close(logits[want["logit_rows"]], want["logits"])


@pytest.mark.parametrize("name", MODELS)
def test_trunk_of_gguf_agrees_with_llama_cpp(name: str) -> None:
    prompt, rows, want = prompt_and_llama_cpp(name)
    logits, _, _ = prefill(*load(name, "model.gguf"), prompt)
    assert_close(logits[rows], want["logits"])


@pytest.mark.parametrize("name", MODELS)
def test_greedy_continuation_equals_that_of_transformers(name: str) -> None:
    want = reference(name, "transformers.npz")
    config, params = load(name, "hf")
    logits, _, state = prefill(config, params, want["prompt"])
    got = decode(config, params, jnp.argmax(logits[-1]), state, len(want["greedy"]))
    assert got.tolist() == want["greedy"].tolist()


@pytest.mark.parametrize("name", MODELS)
def test_head_over_a_prompt_agrees_with_llama_cpp(name: str) -> None:
    prompt, rows, want = prompt_and_llama_cpp(name)
    config, params = load(name, "model.gguf")
    drafter = Qwen35MTP(config)
    _, trunk_hidden, _ = prefill(config, params, prompt)

    @jax.jit
    def run(params: Params, tokens: jax.Array, trunk_hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        shifted = jnp.pad(trunk_hidden, ((1, 0), (0, 0)))[None, :-1]
        positions = jnp.arange(len(tokens))[None]
        cache = KVCache.zeros(1, CAPACITY, config.num_kv_heads, config.head_width, KVTypes())
        hidden, _ = drafter.run(params, tokens[None], shifted, positions, positions >= 0, cache)
        return hidden[0], drafter.logits(params, hidden[0])

    hidden, logits = run(params, prompt, trunk_hidden)
    assert_close(hidden, want["mtp_hidden"])
    assert_close(logits[rows], want["mtp_logits"])


@pytest.mark.parametrize("name", MODELS)
def test_drafting_agrees_with_llama_cpp(name: str) -> None:
    prompt, _, want = prompt_and_llama_cpp(name)
    config, params = load(name, "model.gguf")
    _, _, state = prefill(config, params, prompt)

    def greedy(logits: jax.Array, position: jax.Array) -> Choice:
        return Choice(jnp.argmax(logits, axis=-1), logq=logits, confidence=jnp.ones(position.shape))

    @jax.jit
    def propose(params: Params, pending: jax.Array, state: SequenceState) -> Proposal:
        return Qwen35MTP(config).propose(
            params,
            pending[None],
            state,
            num_drafts=DRAFTS,
            choose=greedy,
            keep_going=lambda confidence, made: confidence > 0,
        )

    drafts = propose(params, want["pending"], state)
    assert drafts.tokens[0].tolist() == want["draft_tokens"].tolist()
    assert drafts.logq is not None
    assert_close(drafts.logq[0], want["draft_logits"])
