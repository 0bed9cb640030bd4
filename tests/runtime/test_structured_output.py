"""Texts that are held to JSON schemas and regular expressions, as users ask for them."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest
from small_model import END

import specjax
from specjax.decoding import begin
from specjax.decoding.loop import decode_chunk
from specjax.decoding.seats import feed_rows, start_rows
from specjax.grammar.expression import GrammarError
from specjax.runtime.options import PER_REQUEST

SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 4}, "b": {"enum": [1, "é"]}, "c": {"type": "boolean"}},
        "required": ["b"],
    },
    {"type": "array", "items": {"enum": ["x", None]}, "maxItems": 3},
    {"anyOf": [{"const": {"deep": [1, 2]}}, {"type": "string", "pattern": "[a-c]{2,4}"}]},
]
PROMPTS = ["def f(", "class A", "import os"]
REGEX = "(?:abc|de|f{2}){2,4}-[0-9]{3}"
DRAWN: Any = {"accept": "coupled", "logprobs": 2, "margins": True}
"""Three rows with these options, of which one draws, share one program."""


def check(result: specjax.Generation, schema: Any) -> None:
    assert result.finish_reason == "eos"
    assert result.tokens[-1] == END
    jsonschema.validate(json.loads(result.text), schema)


@pytest.mark.parametrize(
    "accept", ["coupled", *(pytest.param(rule, marks=pytest.mark.slow) for rule in ("rejection", "block"))]
)
def test_texts_of_random_weights_are_valid_json(model: specjax.Model, accept: Any) -> None:
    for seed in range(3):
        results = model.generate_batch(
            PROMPTS,
            json_schema=SCHEMAS,
            max_tokens=80,
            temperature=[1.0, 0.7, 0.0],
            seed=seed,
            draft=3,
            **{**DRAWN, "accept": accept},
        )
        for result, schema in zip(results, SCHEMAS, strict=True):
            check(result, schema)


@pytest.mark.slow
def test_the_bundled_model_speaks_json() -> None:
    results = specjax.load().generate_batch(
        PROMPTS, json_schema=SCHEMAS, max_tokens=80, temperature=[1.0, 0.0, 0.9], draft=3
    )
    for result, schema in zip(results, SCHEMAS, strict=True):
        assert result.finish_reason == "eos"
        jsonschema.validate(json.loads(result.text), schema)
    assert sum(result.stats.accepted for result in results) > 0


def test_drafts_change_nothing_and_neighbours_neither(model: specjax.Model) -> None:
    """Rows with neither, with a schema and with an expression; plainly decoded, drafted, and alone."""
    wants: list[dict[str, Any]] = [
        {"temperature": 0.9},
        {"temperature": 0.8, "json_schema": SCHEMAS[0]},
        {"temperature": 0.0, "regex": REGEX},
    ]
    options = [
        [specjax.GenerateOptions(draft=draft, **want, max_tokens=30, **DRAWN) for want in wants]
        for draft in (0, 3, specjax.DraftConfig(3, masked=False), specjax.DraftConfig(3, p_min=0.4))
    ]

    def said(asked: list[tuple[int, specjax.GenerateOptions]]) -> list[list[int]]:
        engine = model.engine([each for row in options for each in row], seats=3, slots=256)
        prompts = [model.encode(each) for each in PROMPTS]
        jobs = [engine.submit(model.request(prompts[index], each, sequence=index)) for index, each in asked]
        for _ in engine.run():
            pass
        return [job.tokens for job in jobs]

    together = said([each for row in options for each in enumerate(row)])
    plain = together[:3]
    assert re.fullmatch(REGEX, model.decode(plain[2]))
    assert together == plain * len(options)
    assert said([(1, options[1][1])]) == [plain[1]]


@pytest.mark.slow
def test_a_depth_that_is_found_while_decoding_changes_nothing(model: specjax.Model) -> None:
    wants: dict[str, Any] = {"json_schema": SCHEMAS, "max_tokens": 60, "temperature": 0.7, "accept": "coupled"}
    plain, found = (model.generate_batch(PROMPTS, **wants, draft=draft) for draft in (0, "auto"))
    assert [each.tokens for each in found] == [each.tokens for each in plain]


def test_another_grammar_compiles_nothing(model: specjax.Model) -> None:
    programs = (decode_chunk, start_rows, feed_rows)
    model.generate("def f(", regex=REGEX, draft=3, max_tokens=20)
    before = [program._cache_size() for program in programs]
    for want in ({"json_schema": SCHEMAS[1]}, {"regex": "[x-z]{5}"}):
        again = model.generate("class", **want, draft=3, max_tokens=20)
        assert again.finish_reason == "eos"
        assert again.timings.compile == 0
    assert [program._cache_size() for program in programs] == before


def test_a_grammar_that_joins_a_running_one_compiles_nothing(model: specjax.Model) -> None:
    base = specjax.GenerateOptions(draft=3, max_tokens=40, temperature=0.8, **DRAWN)
    first, second = replace(base, regex="[a-c]{40}"), replace(base, regex="[x-z]{9}")
    engine, programs = model.engine([first, second], seats=3, slots=256), (decode_chunk, start_rows, feed_rows)
    one = engine.submit(model.request(model.encode("def f("), first))
    while len(one.tokens) < 2:
        list(engine.step(rounds=1))
    before = [program._cache_size() for program in programs]
    other = engine.submit(model.request(model.encode("class A"), second))
    for _ in engine.run():
        pass
    assert [program._cache_size() for program in programs] == before
    assert other.timings.compile == 0
    assert re.fullmatch("[a-c]{40}", model.decode(one.tokens))
    assert re.fullmatch("[x-z]{9}", model.decode(other.tokens))


@pytest.mark.slow
def test_requests_with_grammars_come_to_a_running_engine(model: specjax.Model) -> None:
    """One comes when nobody had a grammar yet, others take its place, and the first goes on."""
    base = specjax.GenerateOptions(draft=3, max_tokens=24, ignore_eos=False)
    every = [
        replace(base, max_tokens=60, ignore_eos=True),
        replace(base, regex="[a-c]{20}"),
        replace(base, json_schema=SCHEMAS[1]),
        replace(base, regex=REGEX),
        replace(base, regex="[a-c]{20}", temperature=0.8, accept="coupled"),
    ]
    engine = model.engine(every, seats=2, slots=128)
    prompts = [model.encode(text) for text in ("def f(", "class A", "import", "x =", "y =")]
    jobs = [engine.submit(model.request(prompts[0], every[0]))]
    for _ in range(2):
        list(engine.step())
    assert engine.state.constraint is None
    jobs += [engine.submit(model.request(*each)) for each in zip(prompts[1:], every[1:], strict=True)]
    for _ in engine.run():
        pass
    assert engine.state.constraint is not None
    for job, prompt, options in zip(jobs, prompts, every, strict=True):
        alone = model.engine(every, seats=2, slots=128)
        other = alone.submit(model.request(prompt, options))
        assert list(alone.run())[-1].job is other
        assert job.tokens == other.tokens
    assert all(re.fullmatch("[a-c]{20}", model.decode(jobs[index].tokens)) for index in (1, 4))
    assert re.fullmatch(REGEX, model.decode(jobs[3].tokens))


def test_an_engine_without_grammars_knows_nothing_of_them(model: specjax.Model) -> None:
    stream = model.stream("def f(", max_tokens=5)
    list(stream)
    assert stream.engine.state.constraint is None


@pytest.mark.slow
def test_the_loop_in_a_program_of_ones_own(model: specjax.Model) -> None:
    """The grammars that it begins with can be used again, although the loop consumes its state."""
    options = specjax.GenerateOptions(regex=REGEX, draft=3, max_tokens=30)
    decoder, wants = model.decoder(options), [model.request([0], options).settings] * 2
    constraint, prompt = decoder.constraint(wants), jnp.asarray([model.encode(PROMPTS[0])] * 2)
    settings, length = decoder.settings(wants), jnp.full(2, prompt.shape[1])
    for _ in range(2):
        state, first = begin(decoder, model.params, prompt, length, settings, jnp.full(2, 30), constraint, slots=64)
        _, chunk = decode_chunk(decoder, model.params, state, 30)
        tokens = [int(first.rounds.tokens[0, 1, 0])]
        for emitted, count in zip(chunk.rounds.tokens[:, 1], chunk.rounds.n_emitted[:, 1], strict=True):
            tokens += emitted[: int(count)].tolist()
        assert tokens == model.generate(PROMPTS[0], options).tokens


def test_a_budget_can_end_within_a_structure(model: specjax.Model) -> None:
    whole = model.generate("def f(", regex=REGEX, draft=3, max_tokens=30)
    assert whole.finish_reason == "eos"
    for count in range(1, len(whole.tokens)):
        cut = model.generate("def f(", regex=REGEX, draft=3, max_tokens=count)
        assert (cut.finish_reason, cut.tokens) == ("length", whole.tokens[:count])
    stopped = model.generate("def f(", regex=REGEX, draft=3, max_tokens=30, stop="-")
    assert (stopped.finish_reason, stopped.text) == ("stop", whole.text.partition("-")[0])


def test_after_the_end_a_text_that_must_go_on_repeats_its_end(model: specjax.Model) -> None:
    result = model.generate("def f(", regex="ab", draft=3, max_tokens=8, ignore_eos=True)
    assert result.tokens == [97, 98] + 6 * [END]
    assert result.text == "ab"


def test_log_probabilities_are_the_models_own_and_margins_those_of_the_choice(model: specjax.Model) -> None:
    regex, temperature = "[a-f]{3}--[0-9]+", [0.0, 0.9, 0.9]
    results = model.generate_batch(
        ["def f("] * 3, regex=regex, temperature=temperature, draft=3, max_tokens=12, **DRAWN
    )
    for each in results:
        assert each.logprobs is not None
        scores = model.score(each.prompt_tokens, each.tokens)
        assert scores == pytest.approx([one.logprob for one in each.logprobs], abs=2e-4)
    result = results[0]
    assert result.margins is not None
    logits = model.logits([*result.prompt_tokens, *result.tokens])[len(result.prompt_tokens) - 1 : -1]
    first = np.sort(logits[0][[*b"abcdef", 256]])  # 256 is the token "de"
    assert result.margins[0] == pytest.approx(first[-1] - first[-2], abs=2e-4)
    dash = result.text.index("--")
    place = next(at for at in range(len(result.tokens)) if len(model.decode(result.tokens[:at])) == dash)
    assert result.margins[place] == result.margins[place + 1] == np.inf


@pytest.mark.slow
def test_traces_tell_of_masked_probabilities(model: specjax.Model, tmp_path: Path) -> None:
    result = model.generate("def f(", regex="[a-f]+--[0-9]{9}", draft=3, max_tokens=25, temperature=1.0, trace=True)
    assert result.trace is not None
    result.trace.save(tmp_path / "trace.npz")
    trace = specjax.Trace.load(tmp_path / "trace.npz")
    verified = np.arange(trace.drafts.shape[1]) < trace.n_drafted[:, None]
    for values in (trace.p, trace.q, trace.confidence):
        assert np.isfinite(values[verified]).all()
        assert (values[verified] <= 1 + 1e-6).all()
    assert np.isclose(trace.p[verified], 1).any(), "where one token may come next it is certain"
    assert trace.p[verified].min() > 0, "a masked drafter drafts nothing that may not come next"


def test_turns_of_a_session_begin_anew_and_a_reply_that_was_taken_back_goes_on(model: specjax.Model) -> None:
    chat = model.session(slots=256, draft=3, regex=REGEX, max_tokens=30)
    first, chat = chat.generate("def f(")
    assert re.fullmatch(REGEX, first.text)
    second, after = chat.generate([*chat.conversation, *b" x = "], json_schema=SCHEMAS[1], regex=None)
    check(second, SCHEMAS[1])
    for back in (1, 3, len(first.tokens) - 1):
        rewound = chat.rewind(back)
        again, whole = rewound.generate(rewound.conversation)
        assert again.tokens == first.tokens[-back:]
        assert whole.conversation == chat.conversation
    from_start, _ = chat.rewind(len(first.tokens)).generate("def f(")
    assert from_start.tokens == first.tokens
    with pytest.raises(specjax.PromptError, match="does not begin as its grammar wants"):
        chat.rewind(1).generate(chat.rewind(1).conversation, regex="[x-z]+")
    assert after.conversation[: len(chat.conversation)] == chat.conversation


def test_a_text_keeps_its_grammar_when_tokens_are_dropped() -> None:
    dense = specjax.load(Path(__file__).parents[1] / "fixtures" / "dense" / "qwen3" / "hf")
    chat = dense.session(slots=32, when_full="shift", draft=0, max_tokens=60, keep=2)
    reply, after = chat.generate(list(range(10)), regex="(?:ab|c)*d")
    assert after.drops
    assert re.fullmatch("(?:ab|c)*(?:ad?|d)?", reply.text)


def test_a_grammar_can_begin_after_a_token(model: specjax.Model) -> None:
    """Before it the text is what it is without a grammar, but that it does not end."""
    free = model.generate("def f(", max_tokens=30, ignore_eos=True, draft=3)
    place = next(at for at, token in enumerate(free.tokens) if at > 3 and token < 128 and token not in free.tokens[:at])
    begin = model.decode([free.tokens[place]])
    plain, drafted = (
        model.generate("def f(", max_tokens=30, regex=REGEX, grammar_after=begin, draft=draft) for draft in (0, 3)
    )
    assert plain.tokens == drafted.tokens
    for held in (plain, drafted):
        assert held.finish_reason == "eos"
        assert held.tokens[: place + 1] == free.tokens[: place + 1]
        assert re.fullmatch(REGEX, model.decode(held.tokens[place + 1 :]))
    grammar = model.grammar(specjax.GenerateOptions(regex=REGEX, grammar_after=begin))
    assert grammar is not None
    assert np.flatnonzero(grammar.allowed(0)).tolist() == list(range(END)), "no end, and no row behind the vocabulary"


@pytest.mark.slow
def test_prompts_that_start_alike_have_grammars_of_their_own(model: specjax.Model) -> None:
    prompts = [[7] * 60 + [each] for each in range(4)]
    regexes = ["[a-c]{3}", "[0-9]{4}", None, "[a-c]{3}"]
    together = model.generate_batch(prompts, regex=regexes, max_tokens=6, draft=3)
    for result, regex in zip(together, regexes, strict=True):
        assert regex is None or re.fullmatch(regex, result.text)


def test_grammars_are_remembered(model: specjax.Model) -> None:
    options = specjax.GenerateOptions(json_schema=SCHEMAS[0])
    assert model.grammar(options) is model.grammar(specjax.GenerateOptions(json_schema=json.dumps(SCHEMAS[0])))
    assert model.grammar(specjax.GenerateOptions()) is None
    assert {"json_schema", "regex"} <= set(PER_REQUEST)
    assert hash(options) is not None


@pytest.mark.parametrize(
    ("want", "error", "message"),
    [
        ({"regex": "a(b"}, GrammarError, "cannot be compiled"),
        ({"regex": 3}, TypeError, "regex is 3; give a text"),
        ({"regex": "a", "grammar_after": "no token"}, GrammarError, "not one token"),
        ({"regex": "a", "grammar_after": "\ud800"}, specjax.PromptError, "grammar_after is not Unicode text"),
        ({"grammar_after": "a"}, ValueError, "nothing that begins there"),
        ({"json_schema": [1]}, TypeError, "as text or as a dict"),
        ({"json_schema": "{"}, GrammarError, "not JSON"),
        ({"json_schema": '{"items":' * 100_000}, GrammarError, "too many levels"),
        ({"json_schema": {"type": "integer", "maximum": 3}}, GrammarError, "maximum"),
        ({"json_schema": {}, "regex": ""}, ValueError, "held to one of them"),
    ],
)
def test_wrong_wishes_are_errors(model: specjax.Model, want: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        model.generate("def f(", **want)


def test_what_is_missing_is_named(model: specjax.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(specjax.SpecjaxError, match="has no tokenizer, which json_schema"):
        replace(model, tokenizer=None).generate([1, 2], regex="a")
    assert model.tokenizer is not None
    monkeypatch.setattr(model.tokenizer, "eos_ids", frozenset())
    with pytest.raises(GrammarError, match="no token that ends a text"):
        model.generate("def f(", regex="never compiled before")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "outlines_core", None)
    with pytest.raises(GrammarError, match=r"specjax\[grammar\]"):
        model.generate("def f(", regex="never compiled either")
