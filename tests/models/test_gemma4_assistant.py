"""Gemma 4 assistants against transformers, on the same random weights (see tests/fixtures/PROVENANCE.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from tiny_models import relative_rms
from wants import alike

import checkpoints
from specjax.decoding.acceptance import Rule, propose_token
from specjax.decoding.settings import SamplerConfig
from specjax.models.gemma4 import (
    Gemma4Assistant,
    Gemma4AssistantConfig,
    Gemma4Config,
    Gemma4Target,
    assistant_shapes,
    check_fit,
    init_assistant,
)
from specjax.models.protocol import Choice, FeatureRequest, Params, Proposal
from specjax.models.registry import FAMILIES
from specjax.state import SequenceState, commit

FIXTURES = Path(__file__).parents[1] / "fixtures" / "gemma4"
MODELS = ("dense", "edge")  # a dense head and a centroid head
TOLERANCE = 1e-5  # relative RMS, float32
CAPACITY = 256
PIECE = 40
REQUEST = FeatureRequest(final_hidden=True)


@cache
def load(name: str) -> tuple[Gemma4Config, Gemma4AssistantConfig, Params]:
    """A target, its assistant, and the parameters of both."""
    target = checkpoints.load(FIXTURES / name / "hf", FAMILIES)
    assistant = checkpoints.load(FIXTURES / name / "assistant", FAMILIES, need_tokenizer=False)
    return target.config, assistant.config, {**target.params, **assistant.params}


@cache
def reference(name: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The prompt with its continuation, and the drafts of every round along it."""
    with np.load(FIXTURES / name / "transformers.npz") as target, np.load(FIXTURES / name / "assistant.npz") as arrays:
        return np.concatenate([target["prompt"], target["greedy"]]), dict(arrays)


@partial(jax.jit, static_argnames=("drafter",))
def extend(
    drafter: Gemma4Assistant, params: Params, tokens: jax.Array, n_valid: jax.Array, state: SequenceState
) -> SequenceState:
    target = Gemma4Target(drafter.target_config)
    output, after = target.extend(params, tokens, n_valid, state, request=REQUEST, rows="none")
    fed = drafter.extend(params, tokens, output.features, n_valid, state.drafter, state.length)
    return SequenceState(after.layers, fed, after.length)


@partial(jax.jit, static_argnames=("drafter", "drafts"))
def propose(
    drafter: Gemma4Assistant, params: Params, pending: jax.Array, state: SequenceState, drafts: int
) -> Proposal:
    vocab = drafter.config.vocab_size

    def greedy(logits: jax.Array, position: jax.Array, tokens: Any = None, before: Any = None) -> Choice:
        del position
        if tokens is None:
            return Choice(jnp.argmax(logits, axis=-1), logits, jnp.ones(logits.shape[0]))
        best = jnp.take_along_axis(tokens, jnp.argmax(logits, axis=-1)[:, None], axis=1)[:, 0]
        row = jnp.full((logits.shape[0], vocab), -jnp.inf)
        everything = jnp.put_along_axis(row, tokens, logits, axis=1, inplace=False)
        return Choice(best, everything, jnp.ones(logits.shape[0]))

    return drafter.propose(params, pending, state, num_drafts=drafts, choose=greedy, keep_going=lambda c, made: c > 0)


@partial(jax.jit, static_argnames=("drafter",))
def verify_and_commit(
    drafter: Gemma4Assistant, params: Params, tokens: jax.Array, n: jax.Array, state: SequenceState
) -> SequenceState:
    all_valid = jnp.full((tokens.shape[0],), tokens.shape[1])
    target = Gemma4Target(drafter.target_config)
    output, window = target.verify(params, tokens, all_valid, state, request=REQUEST)
    return commit(replace(window, drafter=drafter.observe(tokens, output.features, state.drafter)), n)


def start(drafter: Gemma4Assistant, params: Params, prompt: np.ndarray, rows: int) -> SequenceState:
    """The state after a prompt that was fed in pieces."""
    target = Gemma4Target(drafter.target_config)
    caches = target.init_layers(1, CAPACITY, rows=rows, chunk=PIECE, rollback="replay")
    state = SequenceState(caches, drafter.init_state(1, CAPACITY, rows=rows, chunk=PIECE), jnp.zeros((1,), jnp.int32))
    for begin in range(0, len(prompt), PIECE):
        part = prompt[begin : begin + PIECE]
        state = extend(drafter, params, np.pad(part, (0, PIECE - len(part)))[None], jnp.array([len(part)]), state)
    return state


def assert_scores_agree(got: np.ndarray, want: np.ndarray) -> None:
    """Tokens that a centroid head does not score have one value below all others in transformers, -inf here."""
    scored = np.isfinite(got)
    assert relative_rms(got[scored], want[scored]) <= TOLERANCE
    if not scored.all():
        assert np.unique(want[~scored]).size == 1
        assert want[~scored].max() < want[scored].min()


@pytest.mark.parametrize("name", MODELS)
def test_drafts_agree_with_transformers_whatever_was_accepted_before(name: str) -> None:
    """The rejected drafts of a round stand in the caches when the next one begins; rings have long wrapped around."""
    target_config, config, params = load(name)
    drafter = Gemma4Assistant(target_config, config)
    text, want = reference(name)
    rounds, drafts = want["tokens"].shape
    assert set(want["accepted"]) == set(range(drafts + 1))
    length = len(text) - 64
    state = start(drafter, params, text[:length], drafts + 1)
    for index in range(rounds):
        proposal = propose(drafter, params, text[length : length + 1], state, drafts)
        np.testing.assert_array_equal(proposal.tokens[0], want["tokens"][index])
        for got, expected in zip(np.asarray(proposal.logq[0]), want["logits"][index], strict=True):
            assert_scores_agree(got, expected)
        if index < rounds - 1:
            accepted = int(want["accepted"][index])
            wrong = (text[length + 1 + accepted :][: drafts - accepted] + 1) % config.vocab_size
            window = np.concatenate([text[length : length + 1 + accepted], wrong])
            state = verify_and_commit(drafter, params, window[None], jnp.array([accepted + 1]), state)
            length += accepted + 1
            assert int(state.length[0]) == length


@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_of_the_steps_agree_with_transformers(name: str) -> None:
    target_config, config, params = load(name)
    drafter = Gemma4Assistant(target_config, config)
    text, want = reference(name)
    length = len(text) - 64
    state = start(drafter, params, text[:length], 5)
    hidden, token, step = state.drafter.hidden, text[length : length + 1], jax.jit(drafter.step)
    for index, expected in enumerate(want["hidden"][0]):
        _, hidden = step(params, jnp.asarray(token), hidden, state)
        token = want["tokens"][0, index : index + 1]
        assert relative_rms(hidden[0], expected) <= TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_written_files_give_the_same_config_and_parameters(name: str, tmp_path: Path) -> None:
    _, config, params = load(name)
    own = {"mtp": params["mtp"]}
    tokenizer = checkpoints.load(FIXTURES / name / "hf", FAMILIES).tokenizer
    assert tokenizer is not None
    checkpoints.write_gguf(tmp_path / "model.gguf", FAMILIES, config, own, tokenizer)
    checkpoints.write_hf(tmp_path / "hf", FAMILIES, config, own)
    for file in ("model.gguf", "hf"):
        again = checkpoints.load(tmp_path / file, FAMILIES, need_tokenizer=False, dtype="bfloat16")
        assert again.config == config
        assert jax.tree.structure(again.params) == jax.tree.structure(own)
        for got, leaf in zip(jax.tree.leaves(again.params), jax.tree.leaves(own), strict=True):
            np.testing.assert_array_equal(got.astype(leaf.dtype), leaf)
            assert got.dtype in (jnp.int32, jnp.float32, jnp.bfloat16)
            assert (got.dtype == jnp.int32) == (leaf.dtype == jnp.int32)


@pytest.mark.parametrize("name", MODELS)
def test_the_gguf_of_llama_cpp_has_all_but_the_centroids(name: str) -> None:
    _, config, params = load(name)
    gguf = checkpoints.load(FIXTURES / name / "assistant.gguf", FAMILIES)
    assert gguf.config == replace(config, centroids=None)
    want = {key: value for key, value in params["mtp"].items() if key != "centroids"}
    assert jax.tree.structure(gguf.params["mtp"]) == jax.tree.structure(want)
    for got, leaf in zip(jax.tree.leaves(gguf.params["mtp"]), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(got, leaf)


def test_the_order_of_tokens_stays_int32() -> None:
    _, _, params = load("edge")
    order = params["mtp"]["centroids"]["token_ordering"]
    assert order.dtype == jnp.int32
    assert sorted(order.tolist()) == list(range(order.size))


@pytest.mark.parametrize("name", MODELS)
def test_shapes_are_those_of_initialised_and_of_loaded_parameters(name: str) -> None:
    _, config, params = load(name)
    shapes = assistant_shapes(config)
    assert jax.eval_shape(partial(init_assistant, config), jax.eval_shape(lambda: jax.random.key(0))) == shapes
    assert jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params["mtp"]) == shapes["mtp"]


def test_an_assistant_of_another_target_is_refused_with_every_mismatch() -> None:
    target_config, config, _ = load("dense")
    check_fit(target_config, config)
    other = replace(config, target_width=40, vocab_size=256, full=replace(config.full, head_width=64, num_kv_heads=2))
    with pytest.raises(ValueError, match="does not fit") as error:
        check_fit(target_config, other)
    for part in ("vocabulary: 315", "target width: 48", "head_width of full layers: 32", "num_kv_heads of full"):
        assert part in str(error.value)


def test_a_file_of_the_time_before_assistants_could_be_run_says_how_to_convert_it_again(tmp_path: Path) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "old.gguf", "gemma4_assistant")
    writer.add_tensor("mtp.pre_projection.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(checkpoints.ConfigError, match=r"convert_hf_to_gguf\.py"):
        checkpoints.load(tmp_path / "old.gguf", FAMILIES, need_tokenizer=False)


def arrays_of(jaxpr: Any) -> Iterator[Any]:
    """What every operation of a program makes, those of inner programs included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval for variable in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from arrays_of(inner)


@pytest.mark.parametrize(
    ("rule", "sampler", "full_rows"),
    [
        ("coupled", SamplerConfig(), False),
        ("coupled", SamplerConfig(temperature=0.8), False),
        ("rejection", SamplerConfig(temperature=0.8), True),
    ],
    ids=["greedy", "coupled", "rejection"],
)
def test_a_centroid_head_makes_full_rows_only_for_probabilities(
    rule: Rule, sampler: SamplerConfig, full_rows: bool
) -> None:
    drafter, params, state = drafting_state("edge")
    program = jax.make_jaxpr(partial(propose_as_the_loop, drafter, rule, sampler))(params, state)
    vocab = drafter.config.vocab_size
    assert any(aval.shape[-1:] == (vocab,) for aval in arrays_of(program.jaxpr)) == full_rows


@pytest.mark.parametrize("name", MODELS)
def test_a_greedy_step_hands_one_int32_per_row_to_the_next(name: str) -> None:
    """Beside the confidence and the hidden state, which stay on the device too."""
    drafter, params, state = drafting_state(name)
    program = jax.make_jaxpr(partial(propose_as_the_loop, drafter, "coupled", SamplerConfig()))(params, state)
    (loop,) = (equation for equation in program.jaxpr.eqns if equation.primitive.name == "while")
    carried = sorted(str(variable.aval) for variable in loop.outvars)
    width = drafter.config.target_width
    assert carried == sorted(["int32[]", "bool[1]", "int32[3,1]", "float32[3,1]", f"float32[1,{width}]"])


def drafting_state(name: str) -> tuple[Gemma4Assistant, Params, SequenceState]:
    target_config, config, params = load(name)
    drafter = Gemma4Assistant(target_config, config)
    return drafter, params, start(drafter, params, reference(name)[0][:PIECE], 4)


def propose_as_the_loop(
    drafter: Gemma4Assistant, rule: Rule, sampler: SamplerConfig, params: Params, state: SequenceState
) -> Proposal:
    """Three drafts, chosen as decoding chooses them."""
    one = jnp.ones((1,), jnp.int32)

    def choose(logits: jax.Array, position: jax.Array, tokens: Any = None, before: Any = None) -> Choice:
        where: dict[str, Any] = {"settings": alike(1, sampler), "sequence": one, "position": position}
        return propose_token(logits, tokens, vocab_size=drafter.config.vocab_size, rule=rule, **where)

    return drafter.propose(params, one, state, num_drafts=3, choose=choose, keep_going=lambda c, made: c > 0)
