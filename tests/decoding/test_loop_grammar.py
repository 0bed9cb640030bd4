"""Rows that are held to grammars: with drafts they say what they say without, alone what they say in a batch.

The states of grammars after a round are those of the tokens that were emitted, whatever was drafted and taken back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drafter_fixtures import attached, target
from grammars import grammar, text_of
from ragged import correct_drafts as scripted_counts
from scripted import HEAD, Run, ScriptedMTP, feed, ragged_prompts, run, script, start
from test_loop_drafters import with_draft_model
from tiny_models import DENSE, MOE, make_params

import checkpoints
from checkpoints.mapping.table import put_on_default_device
from specjax.decoding import begin, decode_chunk
from specjax.decoding.decoder import Decoder
from specjax.decoding.settings import DraftConfig, SamplerConfig, Settings
from specjax.models import registry
from specjax.models.drafters.draft_model import DraftModel
from specjax.models.drafters.first_of import FirstOf
from specjax.models.drafters.ngram import NGram
from specjax.models.drafters.trimmed import trimmed
from specjax.models.protocol import Drafter, Params, Target
from specjax.models.qwen3_5 import Qwen35MTP, Qwen35Target

FIXTURES = Path(__file__).parents[1] / "fixtures"
DRAFTS, MAX_TOKENS = 3, 24
LENGTHS = (3, 1, 30, 20, 9, 12, 5, 17)  # eight, as in `ragged`: programs without a grammar are the same
WARM = SamplerConfig(temperature=0.9, top_k=30)
FIRST, SECOND = '(?:[a-h]{2,5}"[0-4]*|é)+', '"(?:ab|c[a-d]|é|[0-4]{3}){1,3}"'
REGEXES = (FIRST, None, SECOND, FIRST, SECOND, None, SECOND, FIRST)
SAMPLERS = (SamplerConfig(), SamplerConfig(), WARM, WARM, SamplerConfig(), WARM, WARM, WARM)
BUDGETS = (MAX_TOKENS, MAX_TOKENS, MAX_TOKENS, MAX_TOKENS, 4, MAX_TOKENS, MAX_TOKENS, MAX_TOKENS)

Case = Callable[[], tuple[Target, Drafter, Params]]


def of_files(folder: str, assistant: str | None = None) -> Case:
    def load() -> tuple[Target, Drafter, Params]:
        loaded = checkpoints.load(FIXTURES / folder, registry.FAMILIES, need_tokenizer=False)
        own, head = registry.build(loaded.config)
        if assistant is None:
            assert head is not None
            return own, head, dict(loaded.params)
        other = checkpoints.load(FIXTURES / assistant, registry.FAMILIES, need_tokenizer=False)
        return own, registry.from_file(other.config).attach(own), {**loaded.params, **other.params}

    return load


def beside_target(folder: str) -> Case:
    def load() -> tuple[Target, Drafter, Params]:
        own, params = attached(folder)
        return target()[0], own, params

    return load


def trimmed_head() -> tuple[Target, Drafter, Params]:
    """An MTP head that knows a third of the tokens, and in some states none that may come next."""
    tokens = np.arange(0, DENSE.vocab_size, 3)
    drafter, more = trimmed(Qwen35MTP(DENSE), make_params(DENSE), tokens, put_on_default_device)
    return Qwen35Target(DENSE), drafter, {**make_params(DENSE), **more}


def scripted_head() -> tuple[Target, Drafter, Params]:
    """An MTP head whose script leaves it its own drafts: other scripts are the same program."""
    own = script(make_params(DENSE), ragged_prompts(DENSE, LENGTHS, seed=3), [[]] * len(LENGTHS), HEAD)
    return Qwen35Target(DENSE), ScriptedMTP(DENSE), own


CASES: dict[str, Case] = {
    "mtp": scripted_head,
    "mtp moe": lambda: (Qwen35Target(MOE), Qwen35MTP(MOE), make_params(MOE)),
    "chained heads": of_files("step3_5/flash/model.gguf"),
    "assistant": of_files("gemma4/dense/model.gguf", "gemma4/dense/assistant"),
    "assistant with centroids": of_files("gemma4/edge/model.gguf", "gemma4/edge/assistant"),
    "glm4_moe": of_files("glm4_moe/air/model.gguf"),
    "qwen3_next": of_files("qwen3_next/tied/hf"),
    "eagle3": beside_target("eagle3/speculators_layers"),
    "dflash": beside_target("dflash/specforge_sliding"),
    "dspark": beside_target("dspark/speculators_rnn"),
    "draft model": lambda: (
        Qwen35Target(DENSE),
        DraftModel(Qwen35Target(DENSE), DENSE.vocab_size),
        with_draft_model(0.05),
    ),
    "ngram and mtp": lambda: (Qwen35Target(DENSE), FirstOf((NGram(2, 1), Qwen35MTP(DENSE))), make_params(DENSE)),
    "trimmed mtp": trimmed_head,
}
USUAL = ("mtp",)


def rows(vocab_size: int, drafts: int, **draft: Any) -> list[Settings]:
    return [
        Settings(
            sampler,
            DraftConfig(n_max=drafts, **draft),
            seed=5,
            stop_tokens=(vocab_size - 1,),
            grammar=None if regex is None else grammar(regex, vocab_size),
        )
        for regex, sampler in zip(REGEXES, SAMPLERS, strict=True)
    ]


def decoded(own: Target, drafter: Drafter | None, params: Params, wants: list[Settings] | None = None) -> Run:
    decoder = Decoder(own, drafter, "coupled", DRAFTS if drafter else 0, margins=True)
    wants = rows(own.vocab_size, decoder.max_drafts) if wants is None else wants
    prompts = ragged_prompts(own.config, LENGTHS, seed=3)  # type: ignore[attr-defined]
    if drafter is None:  # plain decoding with these weights is one program, whatever drafts beside it
        params = {name: weights for name, weights in params.items() if name != "script"}
    return run(decoder, params, prompts, BUDGETS, rows=wants, rounds_per_chunk=1 if drafter else 8)


def assert_states_are_those_of_the_texts(result: Run, wants: list[Settings]) -> None:
    assert result.state.constraint is not None
    states = np.asarray(result.state.constraint.rows.state)
    for want, tokens, state in zip(wants, result.tokens, states, strict=True):
        if want.grammar is not None:
            assert state == want.grammar.offset(want.grammar.after(tokens))


@pytest.mark.parametrize(
    "name", [each if each in USUAL else pytest.param(each, marks=pytest.mark.slow) for each in CASES]
)
def test_drafts_change_no_token_of_a_text_with_a_grammar(name: str) -> None:
    own, drafter, params = CASES[name]()
    want = plain() if name == "mtp" else decoded(own, None, params)
    got = masked() if name == "mtp" else decoded(own, drafter, params)
    assert got.tokens == want.tokens
    for result, drafts in ((want, 0), (got, DRAFTS)):
        assert_states_are_those_of_the_texts(result, rows(own.vocab_size, drafts))
    assert got.rounds.n_accepted.max() > 0


@cache
def plain() -> Run:
    own, _, params = CASES["mtp"]()
    return decoded(own, None, params)


@cache
def masked() -> Run:
    return decoded(*CASES["mtp"]())


def test_drafts_without_the_mask_change_no_token_and_are_accepted_less() -> None:
    own, drafter, params = CASES["mtp"]()
    held = masked()
    free = decoded(own, drafter, params, rows(own.vocab_size, DRAFTS, masked=False))
    assert free.tokens == plain().tokens
    assert held.rounds.n_accepted.sum() > free.rounds.n_accepted.sum()
    # Row 1 has no grammar, and drafts the same.
    np.testing.assert_array_equal(
        held.rounds.n_accepted[held.rounds.n_emitted[:, 1] > 0, 1],
        free.rounds.n_accepted[free.rounds.n_emitted[:, 1] > 0, 1],
    )


@pytest.mark.slow
def test_a_row_says_alone_what_it_says_beside_others() -> None:
    own, drafter, params = CASES["mtp"]()
    prompts, wants = ragged_prompts(own.config, LENGTHS, seed=3), rows(own.vocab_size, DRAFTS)  # type: ignore[attr-defined]
    decoder = Decoder(own, drafter, "coupled", DRAFTS, margins=True)
    for row in (0, 2, 3):
        alone = run(decoder, params, [prompts[row]], BUDGETS[row], rows=[wants[row]], sequence=[row])
        assert alone.tokens[0] == plain().tokens[row]


def test_texts_with_a_grammar_are_not_what_is_said_without() -> None:
    """Else nothing was held to anything. A text that has ended is one of the grammar, and the row without is free."""
    own, _, params = CASES["mtp"]()
    free = decoded(own, None, params, [replace(want, grammar=None) for want in rows(own.vocab_size, 0)])
    assert free.state.constraint is None
    assert free.tokens[1] == plain().tokens[1]
    assert all(free.tokens[row] != plain().tokens[row] for row, regex in enumerate(REGEXES) if regex)
    ended = plain().tokens[2]
    assert ended[-1] == own.vocab_size - 1
    assert re.fullmatch(SECOND, text_of(ended, own.vocab_size).decode())
    assert len(plain().tokens[4]) == BUDGETS[4], "its budget ended before its text did"


@pytest.mark.parametrize("seed", [0, 1])
def test_after_every_round_the_state_is_that_of_what_was_emitted(seed: int) -> None:
    """Accept counts from 0 to K, and ends among the drafts, by a script."""
    own, _, params = CASES["mtp"]()
    prompts, wants = ragged_prompts(own.config, LENGTHS, seed=3), rows(own.vocab_size, DRAFTS)  # type: ignore[attr-defined]
    params = script(params, prompts, plain().tokens, scripted_counts(DRAFTS, seed)[: len(LENGTHS)])
    decoder = Decoder(own, ScriptedMTP(DENSE), "coupled", DRAFTS, margins=True)
    fed = feed(decoder, params, prompts)
    settings, numbers = decoder.settings(wants), jnp.arange(len(prompts))
    constraint = decoder.constraint(wants)
    state, _ = start(decoder, *fed, jnp.asarray(BUDGETS), settings, numbers, constraint=constraint)
    texts, counts = [[int(token)] for token in state.pending], set()
    while np.asarray(state.active).any():
        state, chunk = decode_chunk(decoder, params, state, 1)
        for row, text in enumerate(texts):
            count = int(chunk.rounds.n_emitted[0, row])
            text += chunk.rounds.tokens[0, row, :count].tolist()
            counts |= {int(chunk.rounds.n_accepted[0, row])} if count else set()
            if (own_grammar := wants[row].grammar) is not None:
                assert state.constraint.rows.state[row] == own_grammar.offset(own_grammar.after(text))
    assert texts == plain().tokens
    assert counts == set(range(DRAFTS + 1))


def test_a_program_without_grammars_has_nothing_of_them() -> None:
    """What it was lowered from says so: no operation comes from the file of grammars."""
    own, drafter, params = CASES["mtp"]()
    decoder = Decoder(own, drafter, "coupled", DRAFTS)
    texts = {}
    for held in (False, True):
        wants = [replace(want, grammar=want.grammar if held else None) for want in rows(own.vocab_size, DRAFTS)]
        settings, constraint, count = decoder.settings(wants), decoder.constraint(wants), jnp.ones(len(wants), int)
        given = params, jnp.zeros((len(wants), 8), int), count, settings, count, constraint
        state, _ = jax.eval_shape(partial(begin, decoder, slots=64), *given)
        texts[held] = decode_chunk.lower(decoder, params, state, 8).as_text(debug_info=True)
    assert "decoding/grammar.py" not in texts[False]
    assert "decoding/grammar.py" in texts[True]
