"""Qwen3-Next against independent implementations, on the same random weights (see tests/fixtures/PROVENANCE.md)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_reference import CAPACITY, DRAFTS, assert_close, decode, prefill
from tiny_models import relative_rms

import checkpoints
import specjax
from specjax.models.protocol import Choice, Params, Proposal
from specjax.models.qwen3_5 import MoEConfig, Qwen35MTP, Qwen35Target, hybrid_layer_types, parameter_shapes
from specjax.models.qwen3_next import Qwen3NextConfig
from specjax.models.registry import FAMILIES
from specjax.state import KVCache, KVTypes, RollbackStrategy, SequenceState, commit

FIXTURES = Path(__file__).parents[1] / "fixtures" / "qwen3_next"
MODELS = ("a3b", "tied")
FILES = ("hf", "model.gguf")
TOLERANCE = 1e-5  # relative RMS, float32


@cache
def load(name: str, file: str) -> tuple[Qwen3NextConfig, Params]:
    """A fixture model from its GGUF file ("model.gguf") or its Hugging Face folder ("hf")."""
    checkpoint = checkpoints.load(FIXTURES / name / file, FAMILIES)
    return checkpoint.config, checkpoint.params


@cache
def reference(name: str, program: str) -> dict[str, np.ndarray]:
    """What "transformers" or "llama_cpp" computed; the prompt is with the former."""
    with np.load(FIXTURES / name / f"{program}.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("name", MODELS)
def test_gguf_and_safetensors_give_the_same_config_and_parameters(name: str) -> None:
    (gguf_config, gguf), (hf_config, hf) = load(name, "model.gguf"), load(name, "hf")
    assert gguf_config == hf_config
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), gguf, hf)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", MODELS)
def test_the_trunk_agrees_with_transformers_and_llama_cpp(name: str, file: str) -> None:
    want = reference(name, "transformers")
    logits, hidden, _ = prefill(*load(name, file), want["prompt"])
    assert_close(hidden, want["hidden"])
    assert_close(logits[want["logit_rows"]], want["logits"])
    assert_close(logits[want["logit_rows"]], reference(name, "llama_cpp")["logits"])


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", MODELS)
def test_greedy_continuation_equals_that_of_transformers(name: str, file: str) -> None:
    want = reference(name, "transformers")
    config, params = load(name, file)
    logits, _, state = prefill(config, params, want["prompt"])
    got = decode(config, params, jnp.argmax(logits[-1]), state, len(want["greedy"]))
    assert got.tolist() == want["greedy"].tolist()


def test_speculation_changes_nothing() -> None:
    want = reference("tied", "transformers")
    model = specjax.load(FIXTURES / "tied" / "model.gguf")
    generation = model.generate(want["prompt"].tolist(), max_tokens=len(want["greedy"]))
    assert generation.tokens == want["greedy"].tolist()
    assert generation.stats.drafted > 0


@pytest.mark.parametrize("name", MODELS)
def test_the_head_over_a_prompt_agrees_with_llama_cpp(name: str) -> None:
    common, want = reference(name, "transformers"), reference(name, "llama_cpp")
    config, params = load(name, "model.gguf")
    drafter = Qwen35MTP(config)

    @jax.jit
    def run(params: Params, tokens: jax.Array, trunk_hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        shifted = jnp.pad(trunk_hidden, ((1, 0), (0, 0)))[None, :-1]
        positions = jnp.arange(len(tokens))[None]
        cache = KVCache.zeros(1, CAPACITY, config.num_kv_heads, config.head_width, KVTypes())
        hidden, _ = drafter.run(params, tokens[None], shifted, positions, positions >= 0, cache)
        return hidden[0], drafter.logits(params, hidden[0])

    hidden, logits = run(params, common["prompt"], common["hidden"])
    assert_close(hidden, want["mtp_hidden"])
    assert_close(logits[common["logit_rows"]], want["mtp_logits"])


class Exposed(Qwen35MTP):
    """The head, whose logits carry the hidden state that they were made from behind them."""

    def logits(self, params: Params, hidden: jax.Array) -> jax.Array:
        return jnp.concatenate([super().logits(params, hidden), hidden], axis=-1)


@partial(jax.jit, static_argnums=0)
def propose(config: Qwen3NextConfig, params: Params, pending: jax.Array, state: SequenceState) -> Proposal:
    def choose(logits: jax.Array, position: jax.Array) -> Choice:
        return Choice(jnp.argmax(logits[:, : config.vocab_size], axis=-1), logits, jnp.ones(position.shape))

    return Exposed(config).propose(
        params,
        pending,
        state,
        num_drafts=DRAFTS,
        choose=choose,
        keep_going=lambda confidence, made: confidence > 0,
    )


@partial(jax.jit, static_argnums=0)
def verify(
    config: Qwen3NextConfig, params: Params, pending: jax.Array, proposal: Proposal, state: SequenceState, n: jax.Array
) -> tuple[jax.Array, SequenceState]:
    """Accept n drafts, whatever the target says; its choice after them, and the state."""
    drafter = Qwen35MTP(config)
    tokens = jnp.concatenate([pending[:, None], proposal.tokens], axis=1)
    n_valid = jnp.full_like(n, tokens.shape[1])
    out, window = Qwen35Target(config).verify(params, tokens, n_valid, state, request=drafter.request)
    assert out.logits is not None
    window = window.replace(drafter=drafter.observe(tokens, out.features, proposal.state))
    return jnp.argmax(out.logits, axis=-1)[jnp.arange(len(n)), n].astype(pending.dtype), commit(window, n + 1)


@partial(jax.jit, static_argnums=(0, 3))
def start(
    config: Qwen3NextConfig, params: Params, prompt: jax.Array, rollback: RollbackStrategy
) -> tuple[jax.Array, SequenceState]:
    """The greedy token after the prompt, and the state with the head's part."""
    target, drafter = Qwen35Target(config), Qwen35MTP(config)
    tokens, n_valid = prompt[None], jnp.array([len(prompt)])
    state = SequenceState(
        target.init_layers(1, CAPACITY, rows=DRAFTS + 1, chunk=len(prompt), rollback=rollback),
        drafter.init_state(1, CAPACITY, rows=DRAFTS + 1, chunk=len(prompt)),
        jnp.zeros((1,), jnp.int32),
    )
    out, after = target.extend(params, tokens, n_valid, state, request=drafter.request)
    assert out.logits is not None
    head = drafter.extend(params, tokens, out.features, n_valid, state.drafter, state.length)
    return jnp.argmax(out.logits[:, 0], axis=-1), SequenceState(after.layers, head, after.length)


@pytest.mark.parametrize("rollback", ["replay", "snapshot"])
@pytest.mark.parametrize(("name", "file"), [("a3b", "hf"), ("tied", "model.gguf")])
def test_rounds_agree_with_llama_cpp(name: str, file: str, rollback: RollbackStrategy) -> None:
    """Tokens, logits and hidden states of every draft, in every round, after every count of accepted drafts."""
    want = reference(name, "llama_cpp")
    config, params = load(name, file)
    pending, state = start(config, params, reference(name, "transformers")["prompt"], rollback)
    assert set(want["accepted"]) == set(range(DRAFTS + 1))
    errors = []
    for index, accepted in enumerate(want["accepted"]):
        assert int(pending[0]) == want["pending"][index]
        proposal = propose(config, params, pending, state)
        assert proposal.tokens[0].tolist() == want["draft_tokens"][index].tolist()
        assert proposal.logq is not None
        logits, hidden = jnp.split(proposal.logq[0], [config.vocab_size], axis=-1)
        errors += [relative_rms(logits, want["draft_logits"][index]), relative_rms(hidden, want["draft_hidden"][index])]
        pending, state = verify(config, params, pending, proposal, state, jnp.array([accepted]))
    assert max(errors) <= TOLERANCE


QWEN3_NEXT_80B_A3B = Qwen3NextConfig(
    vocab_size=151936,
    width=2048,
    layer_types=hybrid_layer_types(48),
    mlp_width=5120,
    num_heads=16,
    num_kv_heads=2,
    head_width=256,
    rope_width=64,
    rope_theta=1e7,
    conv_width=4,
    linear_key_heads=16,
    linear_value_heads=32,
    linear_key_width=128,
    linear_value_width=128,
    context_length=262144,
    mtp_layers=1,
    moe=MoEConfig(num_experts=512, experts_per_token=10, expert_width=512, shared_expert_width=512),
)


def count(shapes: object) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def test_parameters_of_the_released_model_add_up() -> None:
    """The model card counts 80 billion, 79 of them in neither table, and 3 that a token reads."""
    config = QWEN3_NEXT_80B_A3B
    assert config.moe is not None
    shapes = parameter_shapes(config)
    trunk, table = count(shapes["target"]), config.vocab_size * config.width
    assert trunk / 1e9 == pytest.approx(80, rel=0.01)
    assert (trunk - 2 * table) / 1e9 == pytest.approx(79, rel=0.01)
    assert count(shapes) == trunk + count(shapes["mtp"]) == 81_324_862_720
    one_expert = 3 * config.width * config.moe.expert_width
    unused = (config.moe.num_experts - config.moe.experts_per_token) * one_expert * config.num_layers
    assert (trunk - unused - 2 * table) / 1e9 == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize(("change", "message"), [({"moe": None}, "has experts"), ({"rope_sections": (1, 1)}, "none")])
def test_a_config_of_another_architecture_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"Qwen3NextConfig: .*{message}"):
        replace(QWEN3_NEXT_80B_A3B, **change)
