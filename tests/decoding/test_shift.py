"""A shift moves every part of a state together, and speculation after it gives the tokens of plain decoding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripted import CAPACITY, PIECE, Scripted, feed, ragged_prompts, script, start
from tiny_models import DENSE, make_params, relative_rms
from wants import drafting

import checkpoints
from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.loop import decode_chunk
from specjax.decoding.seats import feed_rows
from specjax.decoding.shift import shift_context
from specjax.models import registry
from specjax.models.drafters.ngram import NGram
from specjax.models.gemma4 import Gemma4Assistant
from specjax.models.protocol import Drafter, Features, Params, Target
from specjax.models.qwen3_5 import Qwen35MTP
from specjax.models.registry import FAMILIES
from specjax.models.step3_5 import Step35MTP
from specjax.state import KVCache, KVTypes, SequenceState, Shift

FIXTURES = Path(__file__).parents[1] / "fixtures"
LENGTHS = (40, 90, 310)  # the last one is longer than the rings, which have a window of 24 and a chunk of 64
KEEP, DROP = (0, 7, 20), (0, 30, 200)  # a row that drops nothing stays as it is
MORE = 24


@dataclass(frozen=True)
class ScriptedHeads(Scripted, Step35MTP):
    """Heads with scripted drafts."""


@dataclass(frozen=True)
class ScriptedAssistant(Scripted, Gemma4Assistant):
    """An assistant with scripted drafts."""


@cache
def family(name: str) -> tuple[Target, Drafter, Params]:
    model = checkpoints.load(FIXTURES / name / "model.gguf", FAMILIES)
    target, _ = registry.build(model.config)
    if name.startswith("step3_5"):
        return target, ScriptedHeads(model.config), model.params
    assistant = checkpoints.load(FIXTURES / name / "assistant", FAMILIES, need_tokenizer=False)
    return target, ScriptedAssistant(model.config, assistant.config), {**model.params, **assistant.params}


def decoder(name: str, drafts: int) -> Decoder:
    target, drafter, _ = family(name)
    return Decoder(target, drafter if drafts else None, max_drafts=drafts, margins=True)


def prompts(name: str) -> list[list[int]]:
    return ragged_prompts(family(name)[0].config, LENGTHS, seed=2)


def shift(state: SequenceState, keep: tuple, drop: tuple) -> SequenceState:
    keep, drop = (jnp.asarray(count, jnp.int32) for count in (keep, drop))
    return shift_context(state, keep, drop)


def go_on(of: Decoder, params: Params, state: DecodeState) -> tuple[list[list[int]], Any, DecodeState]:
    """MORE tokens per row, the records of the rounds, and the state after them."""
    state = state.replace(budget=jnp.full((len(LENGTHS),), MORE, jnp.int32))
    state, chunk = decode_chunk(of, params, state, MORE)
    rounds = jax.tree.map(np.asarray, chunk.rounds)
    tokens = [
        [token for made, n in zip(rounds.tokens[:, row], rounds.n_emitted[:, row], strict=True) for token in made[:n]]
        for row in range(len(LENGTHS))
    ]
    return tokens, rounds, state


@cache
def decoded(name: str, drafts: int) -> list[tuple[list[list[int]], Any]]:
    """Shift, decode, shift again, decode again."""
    of, params = decoder(name, drafts), family(name)[2]
    texts = [
        (*prompt[:keep], *prompt[keep + drop :]) for prompt, keep, drop in zip(prompts(name), KEEP, DROP, strict=True)
    ]
    state, logits = feed(of, params, prompts(name))
    some = jnp.ones((len(LENGTHS),), jnp.int32)
    wants, shifted = drafting(len(LENGTHS), n_max=drafts), shift(state, KEEP, DROP)
    started, _ = start(of, shifted, logits, some, wants, some)
    first, parts = np.asarray(started.pending), []
    for part in range(2):
        if drafts:
            truth = decoded(name, 0)[part][0]
            correct = np.random.default_rng(drafts).integers(0, drafts + 1, (len(LENGTHS), CAPACITY))
            params = script(
                params, texts, [[pending, *new] for pending, new in zip(first, truth, strict=True)], correct
            )
        tokens, rounds, started = go_on(of, params, started)
        parts.append((tokens, rounds))
        texts = [(*text, pending, *new[:-1]) for text, pending, new in zip(texts, first, tokens, strict=True)]
        np.testing.assert_array_equal(started.sequences.length, [len(text) for text in texts])
        first = np.asarray(started.pending)
        if part == 0:
            keep, drop = (3, 0, 5), (11, 20, 40)
            texts = [(*text[:k], *text[k + d :]) for text, k, d in zip(texts, keep, drop, strict=True)]
            started = replace(started, sequences=shift(started.sequences, keep, drop))
    return parts


@pytest.mark.parametrize(
    ("name", "drafts"),
    [
        pytest.param("gemma4/edge", 4, marks=pytest.mark.slow),
        pytest.param("step3_5/flash", 3, marks=pytest.mark.slow),
        pytest.param("step3_5/flash", 1, marks=pytest.mark.slow),
        pytest.param("gemma4/edge", 2, marks=pytest.mark.slow),
    ],
)
def test_greedy_speculation_after_shifts_equals_plain_greedy_after_them(name: str, drafts: int) -> None:
    for (tokens, rounds), (want, plain) in zip(decoded(name, drafts), decoded(name, 0), strict=True):
        assert plain.margin[:, :, 0].min() > 5e-4, "near-ties: equality would hang on rounding"
        assert tokens == want
        assert set(rounds.n_accepted[rounds.n_drafted == drafts]) == set(range(drafts + 1))


@pytest.mark.parametrize(
    ("name", "layer", "kind"),
    [
        ("dense/qwen3", 0, "f32"),
        ("dense/llama", 0, "f32"),
        ("gemma4/dense", 0, "f32"),
        ("gemma4/dense", 2, "f32"),
        ("step3_5/flash", 0, "f32"),
        ("step3_5/flash", 1, "f32"),
        ("step3_5/flash", 1, "bf16"),
        ("dense/qwen3", 0, "q8_0"),
    ],
)
def test_in_a_model_of_one_layer_a_shift_is_as_good_as_computing_anew(name: str, layer: int, kind: str) -> None:
    """Its keys and values depend on their own token alone. Sliding and full layers rotate differently."""
    model = checkpoints.load(FIXTURES / name / "model.gguf", FAMILIES)
    kinds = {"gemma4/dense": "layer_types", "step3_5/flash": "layers"}
    if name in kinds:
        config = replace(model.config, **{kinds[name]: (getattr(model.config, kinds[name])[layer],)})
    else:
        config = replace(model.config, num_layers=1)
    ends = {key: value for key, value in model.params["target"].items() if not key.startswith("layers_")}
    params = {"target": {**ends, "layers_0": model.params["target"][f"layers_{layer}"]}}
    of = Decoder(registry.build(config)[0], None, max_drafts=0, kv_types=KVTypes(kind, kind))
    every = ragged_prompts(config, LENGTHS, seed=3)
    state, _ = feed(of, params, [prompt[:-1] for prompt in every])
    state = shift(state, KEEP, DROP)
    fresh, want = feed(
        of, params, [[*p[:keep], *p[keep + drop :]] for p, keep, drop in zip(every, KEEP, DROP, strict=True)]
    )
    last = np.zeros((len(every), PIECE), np.int32)
    last[:, 0] = [prompt[-1] for prompt in every]
    state, got = feed_rows(of.target, None, params, state, None, last, np.ones(len(every), np.int32))
    tolerance = {"f32": 1e-5, "bf16": 1e-2, "q8_0": 2e-2}[kind]
    assert relative_rms(got, want) < tolerance
    assert_same_entries(state.layers[0], fresh.layers[0], np.asarray(fresh.length), tolerance)


def assert_same_entries(
    got: KVCache, want: KVCache, length: np.ndarray, tolerance: float, but: tuple[int, ...] = (-1, -1, -1)
) -> None:
    """Keys and values of every position below `length` that a later token can see, but for one position in each row."""
    positions = np.arange(CAPACITY)
    seen = (positions < length[:, None]) & (positions != np.array(but)[:, None])
    if got.window is not None:
        seen &= positions >= length[:, None] - got.window
    rows, where = np.nonzero(seen)
    for ours, theirs in ((got.keys, want.keys), (got.values, want.values)):
        ours, theirs = (np.asarray(x, np.float32)[rows, where % x.shape[1]] for x in (ours, theirs))
        assert relative_rms(ours, theirs) < tolerance


@pytest.mark.parametrize("name", ["step3_5/flash", "qwen3_5"])
def test_heads_hold_what_they_would_hold_if_fed_what_is_left(name: str) -> None:
    """But for the first token after the dropped ones, whose pair has the hidden state of a dropped token."""
    if name == "qwen3_5":
        drafter: Drafter = Qwen35MTP(DENSE)
        params, config = make_params(DENSE), DENSE
    else:
        target, _, params = family(name)
        config = target.config
        drafter = Step35MTP(config)
    hidden_of = np.random.default_rng(4).normal(size=(config.vocab_size, config.width)).astype(np.float32)
    extend = jax.jit(drafter.extend)

    def fed(texts: list[list[int]]) -> Any:
        state = drafter.init_state(len(texts), CAPACITY, rows=4, chunk=256, kv_types=KVTypes())
        length = jnp.zeros((len(texts),), jnp.int32)
        for begin in range(0, max(LENGTHS), 64):
            tokens, count = np.zeros((len(texts), 64), np.int32), np.zeros(len(texts), np.int32)
            for row, text in enumerate(texts):
                piece = text[begin : begin + 64]
                tokens[row, : len(piece)], count[row] = piece, len(piece)
            state = extend(params, tokens, Features(jnp.asarray(hidden_of[tokens])), count, state, length)
            length = length + count
        return state, length

    every = ragged_prompts(config, LENGTHS, seed=5)
    state, length = fed(every)
    keep, drop = (jnp.asarray(count, jnp.int32) for count in (KEEP, DROP))
    got = state.shift(Shift(keep, drop, length))
    want, left = fed([[*p[:k], *p[k + d :]] for p, k, d in zip(every, KEEP, DROP, strict=True)])
    caches = zip(*(state.kv if isinstance(state.kv, tuple) else (state.kv,) for state in (got, want)), strict=True)
    first_after = tuple(k if d else -1 for k, d in zip(KEEP, DROP, strict=True))
    for ours, theirs in caches:
        assert_same_entries(ours, theirs, np.asarray(left), 1e-5, but=first_after)
    np.testing.assert_array_equal(got.hidden[:, -1], want.hidden[:, -1])


def test_ngrams_forget_what_was_dropped() -> None:
    drafter, every = NGram(), ragged_prompts(DENSE, LENGTHS, seed=6)
    state = drafter.init_state(len(every), CAPACITY, rows=4, chunk=64, kv_types=KVTypes())
    tokens = np.zeros((len(every), max(LENGTHS)), np.int32)
    for row, text in enumerate(every):
        tokens[row, : len(text)] = text
    state = state.append(jnp.asarray(tokens), jnp.asarray(LENGTHS, jnp.int32))
    keep, drop = (jnp.asarray(count, jnp.int32) for count in (KEEP, DROP))
    state = state.shift(Shift(keep, drop, state.length))
    for row, (text, k, d) in enumerate(zip(every, KEEP, DROP, strict=True)):
        assert state.tokens[row, : state.length[row]].tolist() == [*text[:k], *text[k + d :]]
