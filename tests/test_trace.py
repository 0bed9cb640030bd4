"""Traces: what they hold is what was generated, and what the model and the rules say of it."""

from __future__ import annotations

import io
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path

import jax
import numpy as np
import pandas
import pytest
from small_model import write_small_model

import specjax
from specjax.decoding.new_state import idle_state
from specjax.decoding.round import decode_round
from specjax.decoding.sampling import warp
from specjax.decoding.settings import DraftConfig, SamplerConfig, Settings
from specjax.errors import SpecjaxError
from specjax.runtime.recording import TraceWriter
from specjax.runtime.stream import generation_of
from specjax.traces.trace import NOTHING, Trace

FIXTURES = Path(__file__).parent / "fixtures"
PROMPT = "def add(a, b):"
DRAWN = {"temperature": 1.1, "top_k": 40, "top_p": 0.97, "seed": 5, "accept": "rejection", "draft": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> specjax.Model:
    """With a context of as many tokens as caches have slots, so that sessions have these too."""
    return specjax.load(write_small_model(tmp_path_factory.mktemp("model") / "small.gguf", context_length=256))


@pytest.fixture(scope="module")
def traced(model: specjax.Model):
    return cache(lambda **options: model.generate(PROMPT, max_tokens=40, ignore_eos=True, trace=True, **options))


@pytest.fixture(scope="module")
def batch(model: specjax.Model) -> list[specjax.Generation]:
    """Three texts, which ask for three drafts, for one and for none; with the best tokens at each place."""
    options = {"max_tokens": 12, "ignore_eos": True, "draft": [3, 1, 0], "trace": True, "logprobs": 3}
    return model.generate_batch(["a", "def", "x = 1"], **options)


@pytest.mark.parametrize("options", [{}, DRAWN, {**DRAWN, "accept": "coupled"}, {"draft": 0}])
def test_rounds_put_together_are_the_text(traced, options: dict) -> None:
    generation = traced(**options)
    trace = generation.trace
    emitted = trace.tokens[trace.tokens != NOTHING].tolist()
    assert [trace.texts[0].first, *emitted][: len(generation.tokens)] == generation.tokens
    assert list(trace.texts[0].prompt) == generation.prompt_tokens
    whole = [*generation.prompt_tokens, *generation.tokens]
    assert [whole[position] for position in trace.position] == trace.last.tolist()
    assert (trace.n_emitted <= trace.n_accepted + 1).all()
    assert trace.n_drafted.sum() == generation.stats.drafted
    assert trace.n_accepted.sum() == generation.stats.accepted
    assert np.isfinite(trace.seconds).all()
    assert trace.texts[0].settings["temperature"] == options.get("temperature", 0.0)
    assert all(trace.strings[token] == generation.text[0] for token in generation.tokens[:1])


def places(generation: specjax.Generation, model: specjax.Model) -> np.ndarray:
    """The model's logits at each place of each round, computed from its drafts in one pass: [N, R, V]."""
    trace, whole = generation.trace, [*generation.prompt_tokens, *generation.tokens]
    result = np.full((len(trace), trace.tokens.shape[1], model.config.vocab_size), np.nan, np.float32)
    for index, position in enumerate(trace.position):
        drafts = trace.drafts[index, : trace.n_drafted[index]].tolist()
        result[index, : len(drafts) + 1] = model.logits([*whole[: position + 1], *drafts])[position:]
    return result


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def test_probabilities_of_greedy_rounds_are_those_of_the_models_logits(traced, model: specjax.Model) -> None:
    generation = traced()
    trace, logp = generation.trace, log_softmax(places(generation, model))
    assert 0 < trace.n_accepted.sum() < trace.n_drafted.sum()
    round_, place = np.nonzero(trace.drafts != NOTHING)
    np.testing.assert_allclose(
        trace.p[round_, place], np.exp(logp[round_, place, trace.drafts[round_, place]]), rtol=1e-4
    )
    np.testing.assert_allclose(trace.entropy, -(np.exp(logp) * logp).sum(axis=-1), rtol=1e-4)
    rounds = np.arange(len(trace))
    following = trace.tokens[rounds, trace.n_emitted - 1]
    np.testing.assert_allclose(trace.p_next, np.exp(logp[rounds, trace.n_emitted - 1, following]), rtol=1e-4)
    two = np.sort(logp, axis=-1)
    np.testing.assert_allclose(trace.margin, two[..., -1] - two[..., -2], atol=1e-4)
    round_, place = np.nonzero(trace.tokens != NOTHING)
    np.testing.assert_allclose(
        trace.logprob[round_, place], logp[round_, place, trace.tokens[round_, place]], rtol=1e-4, atol=1e-5
    )
    assert np.isnan(trace.q).all()
    assert np.nanmin(trace.confidence) > 0


@pytest.mark.parametrize("accept", ["rejection", "coupled"])
def test_probabilities_of_drawn_rounds_are_those_that_acceptance_compares(
    traced, model: specjax.Model, accept: str
) -> None:
    """The coupled rule compares the tokens themselves; q is recorded of its drafts too."""
    generation = traced(**{**DRAWN, "accept": accept})
    trace, logits = generation.trace, places(generation, model)
    row = Settings(SamplerConfig(DRAWN["temperature"], DRAWN["top_k"], DRAWN["top_p"]), DraftConfig(DRAWN["draft"]))
    settings = model.decoder(specjax.GenerateOptions(**DRAWN)).settings([row] * len(trace))
    p = np.exp(warp(np.nan_to_num(logits), settings))
    round_, place = np.nonzero(trace.drafts != NOTHING)
    np.testing.assert_allclose(
        trace.p[round_, place], p[round_, place, trace.drafts[round_, place]], rtol=1e-3, atol=1e-6
    )
    reached = place <= trace.n_accepted[round_]
    accepted = place < trace.n_accepted[round_]
    sure = trace.p[round_, place] >= trace.q[round_, place]
    assert (~accepted & reached).any()
    assert (trace.q[round_, place] > 0).all()
    rejected = trace.n_accepted < trace.n_drafted
    assert np.isfinite(trace.q_next[rejected]).all()
    assert np.isnan(trace.q_next[~rejected]).all()
    if accept == "rejection":
        assert accepted[reached & sure].all(), "a draft that is no less probable for the target is always accepted"
        assert (trace.p_next[rejected] > trace.q_next[rejected]).all(), "what corrects a draft comes from p - q"


@pytest.mark.parametrize("accept", ["rejection", "coupled"])
def test_a_trace_filters_nothing_a_second_time(model: specjax.Model, accept: str) -> None:
    """What is recorded of distributions comes from where acceptance has made them."""
    sorted_ = {}
    for trace in (False, True):
        options = specjax.GenerateOptions(**{**DRAWN, "accept": accept, "trace": trace})
        decoder, row = model.decoder(options), model.request([0], options).settings
        state = jax.eval_shape(lambda decoder=decoder, row=row: idle_state(decoder, decoder.settings([row]), 64))
        program = str(jax.make_jaxpr(partial(decode_round, decoder))(model.params, state))
        sorted_[trace] = program.count("= top_k[")
    assert sorted_[False] > 2
    assert sorted_[True] - sorted_[False] <= 1, "the best tokens, of which none are asked for"


def test_a_trace_changes_nothing(traced, model: specjax.Model) -> None:
    plain = model.generate(PROMPT, max_tokens=40, ignore_eos=True, **DRAWN)
    assert plain.tokens == traced(**DRAWN).tokens
    assert plain.trace is None
    assert plain.logprobs is None
    assert traced(**DRAWN).margins is None


def test_texts_of_a_batch_keep_their_numbers_and_depths(traced, batch: list[specjax.Generation]) -> None:
    traces = [generation.trace for generation in batch]
    whole = Trace.join(traces)
    assert [text.number for text in whole.texts] == [0, 1, 2]
    assert [trace.n_drafted.max() for trace in traces] == [3, 1, 0]
    assert all(whole.of_text(number) == replace(trace, pieces=whole.pieces) for number, trace in enumerate(traces))
    twice = Trace.join([whole, whole])
    assert [text.number for text in twice.texts] == [0, 1, 2, 3, 4, 5]
    assert len(twice.of_text(4)) == len(traces[1])
    alone = traced(**DRAWN).trace
    both = Trace.join([alone, traces[0]])
    assert (alone.drafts.shape[1], both.drafts.shape[1]) == (2, 3)
    assert (both.of_text(0).drafts[:, 2:] == NOTHING).all()
    with pytest.raises(KeyError, match="no text has the number 9"):
        whole.of_text(9)
    with pytest.raises(ValueError, match="no trace to join"):
        Trace.join([])
    with pytest.raises(ValueError, match="number 1 is no trace; texts that are generated with trace=True"):
        Trace.join([alone, None])


def test_a_text_that_ends_early_has_no_rounds_behind_its_end(traced, model: specjax.Model) -> None:
    text = traced().text
    stopped = model.generate(PROMPT, max_tokens=40, ignore_eos=True, stop=text[10:13], trace=True)
    assert stopped.finish_reason == "stop"
    trace = stopped.trace
    begin = len(stopped.prompt_tokens)
    assert trace.position.max() < begin + len(stopped.tokens)
    stats = stopped.stats  # how many rounds have run behind the end when the host reads the string is up to the clock
    assert (stats.rounds, stats.drafted, stats.accepted) == (len(trace), trace.n_drafted.sum(), trace.n_accepted.sum())
    assert stats.rounds_by_drafts == np.bincount(trace.n_drafted).tolist()
    none = model.generate(PROMPT, max_tokens=1, trace=True).trace
    assert len(none) == 0
    assert "0 rounds" in repr(none)


def test_sessions_are_traced(model: specjax.Model) -> None:
    first, session = model.session(trace=True, ignore_eos=True, max_tokens=10).generate(PROMPT)
    second, _ = session.generate([*session.conversation, *model.encode("\nx")])
    assert second.trace.position[0] == len(second.prompt_tokens)
    assert second.trace.last[0] == second.tokens[0]
    assert len(first.trace) > 0


def test_jobs_of_an_engine_are_traced(traced, model: specjax.Model) -> None:
    options = specjax.GenerateOptions(max_tokens=40, ignore_eos=True, trace=True)
    engine = model.engine([options], seats=1, slots=256)
    job, waiting = (engine.submit(model.request(model.encode(PROMPT), options)) for _ in range(2))
    with pytest.raises(SpecjaxError, match="the job has not finished"):
        generation_of(model, job, options)
    engine.cancel(waiting)
    for _ in engine.run():
        pass
    trace = generation_of(model, job, options).trace
    assert np.array_equal(trace.tokens, traced().trace.tokens)
    assert np.array_equal(trace.p, traced().trace.p, equal_nan=True)
    nothing = generation_of(model, waiting, options)
    assert (nothing.finish_reason, nothing.tokens, nothing.trace) == ("cancelled", [], None)


def test_a_text_that_drops_tokens_on_its_way_is_traced_whole() -> None:
    """Chunks that found all slots taken ran no round."""
    dense = specjax.load(FIXTURES / "dense" / "qwen3" / "hf", drafter="ngram", need_tokenizer=False)
    options = {"max_tokens": 150, "ignore_eos": True, "draft": 2, "trace": True}
    reply, session = dense.session(slots=64, when_full="shift", keep=4, **options).generate([5, 6, 7, 5, 6])
    assert len(session.cuts) > 1
    trace = reply.trace
    assert [trace.texts[0].first, *trace.tokens[trace.tokens != NOTHING]][:150] == reply.tokens
    assert trace.position[-1] > 100
    assert (np.diff(trace.position) == trace.n_emitted[:-1]).all()
    assert np.isfinite(trace.seconds).all()


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("best", [0, 3])
def test_a_file_holds_everything(
    traced, batch: list[specjax.Generation], tmp_path: Path, suffix: str, best: int
) -> None:
    trace = (batch[0] if best else traced()).trace
    assert trace.top_tokens.shape[2] == best
    for part in (trace, trace[:0]):
        part.save(tmp_path / f"trace{suffix}")
        loaded = Trace.load(tmp_path / f"trace{suffix}")
        assert loaded == part
        for name, array in part.arrays().items():
            assert (loaded.arrays()[name].shape, loaded.arrays()[name].dtype) == (array.shape, array.dtype), name


def test_parquet_has_a_row_for_each_round(traced, tmp_path: Path) -> None:
    trace = traced().trace
    trace.save(tmp_path / "trace.parquet")
    table = pandas.read_parquet(tmp_path / "trace.parquet")
    assert table.n_accepted.tolist() == trace.n_accepted.tolist()
    assert np.array_equal(np.stack(table.drafts), trace.drafts)
    assert np.array_equal(np.stack(table.p), trace.p, equal_nan=True)


def test_a_file_that_is_no_trace_is_refused(traced, tmp_path: Path) -> None:
    trace = traced().trace
    assert {each.name for each in fields(Trace)} - {"texts", "pieces"} == set(trace.arrays())
    for use in (trace.save, Trace.load):
        with pytest.raises(SpecjaxError, match=r"t\.foo: the name of a trace's file must end in \.npz or \.parquet"):
            use(tmp_path / "t.foo")
    assert not list(tmp_path.iterdir())
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    (tmp_path / "other.parquet").write_text("no trace")
    pandas.DataFrame({"a": [1]}).to_parquet(tmp_path / "table.parquet")
    for name in ("other.parquet", "table.parquet"):
        with pytest.raises(SpecjaxError, match=f"{name}: not a trace"):
            Trace.load(tmp_path / name)
    with pytest.raises(SpecjaxError, match=r"other\.npz: not a trace"):
        Trace.load(tmp_path / "other.npz")


def test_its_events_are_those_of_the_running_writer(traced, model: specjax.Model) -> None:
    running, later = io.StringIO(), io.StringIO()
    stream = model.stream(PROMPT, max_tokens=40, ignore_eos=True)
    stream.observers.append(TraceWriter(running).add)
    for _ in stream.updates():
        pass
    traced().trace.write_events(later)
    assert later.getvalue() == running.getvalue()
    assert later.getvalue().count("mtp_draft") == len(traced().trace)


def test_tables_have_a_row_for_each_round_draft_or_token(traced) -> None:
    generation = traced()
    trace = generation.trace
    rounds, drafts, tokens = (trace.to_pandas(rows) for rows in ("rounds", "drafts", "tokens"))
    assert len(rounds) == len(trace)
    assert len(drafts) == generation.stats.drafted
    assert drafts.accepted.sum() == generation.stats.accepted
    shares = drafts[drafts.reached].groupby("place").accepted.sum().tolist()
    assert shares == generation.stats.accepted_by_position
    assert len(tokens) == generation.stats.tokens
    assert tokens.drafted.sum() == generation.stats.accepted
    assert "".join(tokens.string) == generation.text[len(trace.strings[trace.texts[0].first]) :]
    with pytest.raises(ValueError, match="known are 'rounds', 'drafts', 'tokens'"):
        trace.to_pandas("row")


def test_some_rounds_are_a_trace_too(traced) -> None:
    trace = traced().trace
    assert len(trace[2:5]) == 3
    assert (trace[trace.n_accepted == 0].n_accepted == 0).all()
    assert trace[0].round.tolist() == [0]


def test_depth_is_what_each_text_asked_for(batch: list[specjax.Generation]) -> None:
    deep, shallow, plain = (generation.trace for generation in batch)
    assert set(deep.depth) == {3}
    assert set(shallow.depth) == {1}
    assert set(plain.depth) == {0}
    with pytest.raises(ValueError, match="no more than 1 drafts"):
        shallow.what_if(2)


def test_a_draft_behind_the_end_of_a_text_was_not_judged(traced) -> None:
    """A text that ends with an accepted draft says nothing of the draft after it."""
    trace = traced().trace
    index = int(np.flatnonzero((trace.n_accepted > 0) & (trace.n_accepted < trace.n_drafted))[0])
    ended = replace(trace, n_emitted=np.where(np.arange(len(trace)) == index, trace.n_accepted, trace.n_emitted))
    place = trace.n_accepted[index]
    assert trace.reached[index, place]
    assert not ended.reached[index, place]
    assert ended.reached[index, place - 1]


@pytest.mark.parametrize("damage", ["half", "byte"])
@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_damaged_file_is_said_to_be_none(traced, tmp_path: Path, damage: str, suffix: str) -> None:
    path = tmp_path / f"trace{suffix}"
    traced().trace.save(path)
    data = bytearray(path.read_bytes())
    if damage == "half":
        data = data[: len(data) // 2]
    else:
        data[200:260] = bytes(60)
    path.write_bytes(data)
    with pytest.raises(SpecjaxError, match=r"trace\..*: not a trace"):
        Trace.load(path)


@pytest.mark.parametrize(("place", "value"), [(8, 1), (10, 12), (10, 14), (10, 99)])
def test_an_entry_that_cannot_be_unpacked_is_said_too(traced, tmp_path: Path, place: int, value: int) -> None:
    """Encrypted, or packed by bzip2, LZMA or in an unknown way: so the directory of the file says."""
    path = tmp_path / "trace.npz"
    traced().trace.save(path)
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + place] = value
    path.write_bytes(data)
    with pytest.raises(SpecjaxError, match="not a trace"):
        Trace.load(path)


def test_traces_are_equal_if_all_that_they_hold_is(traced) -> None:
    generation = traced()
    trace, text = generation.trace, generation.trace.texts[0]
    assert np.isnan(trace.q).any()
    assert trace == trace[:]
    assert generation == replace(generation, trace=trace[:])
    for other in (trace[:-1], replace(trace, p=trace.p / 2), replace(trace, texts=(replace(text, first=0),)), None):
        assert trace != other
