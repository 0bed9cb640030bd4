"""Draft vocabularies in everyday use: no text changes, and lists must fit their model and its drafter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from drafter_fixtures import greedy
from gguf import TokenType
from small_model import CONFIG, END, byte_tokenizer, write_small_model

import checkpoints
import specjax
from checkpoints import TextTokenizer
from checkpoints.tokenizers import gguf as tokenizer_gguf
from pallas_kernels.matmul import as_weight
from specjax.models.drafters.trimmed import TrimmedDrafter
from specjax.runtime.draft_vocabulary import TokenList, draft_tokens, fingerprint, most_frequent, read_token_list
from specjax.state import SequenceState

FIXTURES = Path(__file__).parent / "fixtures"
V = CONFIG.vocab_size
GREEDY = specjax.GenerateOptions(max_tokens=24, draft=2, ignore_eos=True)
PROMPTS = [[100, 101, 102, 32], [5, 9, 200], list(range(40, 54))]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "small.gguf")


@pytest.fixture(scope="module")
def whole(path: Path) -> specjax.Model:
    return specjax.load(path)


@pytest.fixture(scope="module")
def model(path: Path) -> specjax.Model:
    return specjax.load(path, draft_vocab=140)


def test_the_text_is_that_of_plain_decoding(whole: specjax.Model, model: specjax.Model) -> None:
    """Greedy and coupled rows in one batch. Some of their tokens cannot be drafted, and are said all the same."""
    wants: dict[str, Any] = {"temperature": [0.0, 0.8, 0.8], "seed": 3, "accept": "coupled"}
    plain = [each.tokens for each in whole.generate_batch(PROMPTS, GREEDY, draft=0, **wants)]
    drafted = model.generate_batch(PROMPTS, GREEDY, **wants)
    assert [each.tokens for each in drafted] == plain
    known = set(model.params["trimmed"]["tokens"].tolist())
    assert len(known) == 140
    assert any(token not in known for tokens in plain for token in tokens)
    assert all(0 < each.stats.accepted < each.stats.drafted for each in drafted)


def test_a_trimmed_model_says_so(whole: specjax.Model, model: specjax.Model) -> None:
    assert "drafted for by Qwen35MTP with 140 tokens" in repr(model)
    sizes = re.search(r"[\d.]+ M parameters in [\d.]+ MB", repr(model))
    assert sizes is not None
    assert sizes[0] in repr(whole), "gathered rows are copies"
    assert isinstance(model.drafter, TrimmedDrafter)
    assert model.drafter.keeper == whole.drafter


@dataclass(frozen=True)
class OwnHead(specjax.BaseDrafter):
    """A user's drafter, which scores what may follow a token with a table of its own."""

    def parameters(self, target: Any) -> Any:
        table = np.random.default_rng(0).standard_normal((target.vocab_size, target.width), np.float32)
        return {"own": {"head": table}}

    def head_paths(self) -> tuple[str, ...]:
        return ("own.head",)

    def propose(
        self, params: Any, pending: Any, state: Any, *, num_drafts: int, choose: Callable, keep_going: Callable
    ) -> specjax.Proposal:
        head = as_weight(params["own"]["head"])
        drafts = []
        for index in range(num_drafts):
            pending = choose(head.matmul(head.take(pending)), state.length + index + 1).token
            drafts.append(pending)
        return specjax.Proposal.sure(jnp.stack(drafts, axis=1), state.drafter)


def test_a_drafter_of_ones_own_can_say_where_its_head_is(path: Path) -> None:
    own = specjax.load(path, drafter=OwnHead(), draft_vocab=100)
    assert own.drafter is not None
    tokens, pending = np.asarray(own.params["trimmed"]["tokens"]), jnp.arange(200, 208)
    state = SequenceState((), None, jnp.zeros(8, jnp.int32))
    got = own.drafter.propose(own.params, pending, state, num_drafts=2, choose=greedy, keep_going=None).tokens  # type: ignore[arg-type]
    table, last = np.asarray(own.params["own"]["head"]), np.asarray(pending)
    for drafts in np.asarray(got).T:
        last = tokens[np.argmax(table[last] @ table[tokens].T, axis=1)]
        np.testing.assert_array_equal(drafts, last)


def test_gathered_rows_lie_where_their_head_lies(path: Path) -> None:
    placed = specjax.load(path, draft_vocab=140, place=["target.lm_head=pinned_host"]).params["trimmed"]
    assert placed["rows"]["target"]["lm_head"]["weight"].sharding.memory_kind == "pinned_host"
    assert placed["tokens"].sharding.memory_kind == "pinned_host"


@pytest.mark.slow
def test_saved_sessions_do_not_depend_on_the_draft_vocabulary(
    whole: specjax.Model, model: specjax.Model, tmp_path: Path
) -> None:
    _, chat = model.session(GREEDY, slots=128).generate(PROMPTS[0])
    chat.save(tmp_path / "chat")
    prompt = [*chat.conversation, *PROMPTS[1]]
    reply, after = whole.load_session(tmp_path / "chat").generate(prompt)
    fresh = whole.generate(prompt, GREEDY)
    assert after.reuse is not None
    assert after.reuse.reused > 0
    assert (reply.tokens, reply.stats) == (fresh.tokens, fresh.stats), "also the drafts are those of a fresh state"


def list_of(*tokens: int, **changes: Any) -> TokenList:
    said = {"vocab_size": V, "vocabulary": fingerprint(byte_tokenizer()), "origin": "a test"} | changes
    return TokenList(**said, tokens=tokens)


def with_control_tokens(*tokens: str) -> TextTokenizer:
    plain = byte_tokenizer().vocabulary
    types = plain.types + (TokenType.CONTROL,) * len(tokens)
    return tokenizer_gguf.from_vocabulary(replace(plain, tokens=plain.tokens + tokens, types=types))


def test_a_list_is_what_was_written_and_the_tokens_that_end_a_text(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    list_of(100, 7, 32).write(file)
    assert read_token_list(file) == list_of(100, 7, 32)
    assert json.loads(file.read_text())["tokens"] == [100, 7, 32]
    assert specjax.load(path, draft_vocab=file).params["trimmed"]["tokens"].tolist() == [7, 32, 100, END]
    assert draft_tokens(str(file), None, V).tolist() == [7, 32, 100]


def test_a_number_stands_for_the_lowest_ids_and_all_special_tokens() -> None:
    tokenizer = with_control_tokens("<a>", "<b>")
    assert draft_tokens(6, tokenizer, V).tolist() == [0, 1, 2, END, END + 1, END + 2]
    assert draft_tokens(6, None, V).tolist() == [0, 1, 2, 3, 4, 5]
    assert draft_tokens(V, tokenizer, V).tolist() == list(range(V))
    assert draft_tokens(np.int64(6), None, V).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("source", [True, 3.0, None])
def test_what_is_neither_a_file_nor_a_number_is_refused(source: Any) -> None:
    with pytest.raises(specjax.SpecjaxError, match=f"is {source}; give a number of tokens, or a file with a list"):
        draft_tokens(source, None, V)


def test_a_file_that_cannot_be_read_is_refused(path: Path) -> None:
    with pytest.raises(
        specjax.SpecjaxError, match=r"absent.json cannot be read \(No such.*`specjax vocabulary` writes"
    ):
        specjax.load(path, draft_vocab="absent.json")


def test_the_most_frequent_tokens_come_first_and_the_lowest_ids_fill_up() -> None:
    counts = np.zeros(V, np.int64)
    counts[[9, 4, 200, END]] = 2, 5, 2, 1
    assert most_frequent(counts, byte_tokenizer(), 3) == (4, 9, END)
    assert most_frequent(counts, byte_tokenizer(), 6) == (4, 9, 200, END, 0, 1)


def test_ids_that_fill_a_vocabulary_up_are_no_part_of_its_fingerprint() -> None:
    plain = byte_tokenizer().vocabulary
    padding = {"tokens": (*plain.tokens, "[PAD0]"), "types": (*plain.types, TokenType.UNUSED)}
    padded = tokenizer_gguf.from_vocabulary(replace(plain, **padding))
    assert fingerprint(padded) == fingerprint(byte_tokenizer()) != fingerprint(with_control_tokens("<a>"))
    files = [FIXTURES / "qwen3_5" / "dense" / name for name in ("hf", "model.gguf")]
    folder, gguf = (checkpoints.open_checkpoint(file, specjax.FAMILIES).tokenizer(required=True) for file in files)
    assert fingerprint(folder) == fingerprint(gguf)


@pytest.mark.parametrize("number", [0, -1, V + 1])
def test_a_number_out_of_range_is_refused(number: int) -> None:
    with pytest.raises(specjax.SpecjaxError, match=f"of {number} tokens is asked for; give .* from 1 to the {V} of"):
        draft_tokens(number, None, V)
    with pytest.raises(specjax.SpecjaxError, match=r"of 2 tokens .* always has the 3 special tokens"):
        draft_tokens(2, with_control_tokens("<a>", "<b>"), V)


@pytest.mark.parametrize(
    ("given", "tokenizer", "wrong"),
    [
        (list_of(1, V, -1, V + 7, V + 8), True, rf"4 ids are outside the vocabulary of {V}: {V}, -1, {V + 7}, \.\.\."),
        (list_of(3, 4, 3, 3, 4, 5), True, "2 ids occur more than once: 3, 4"),
        (list_of(3, vocabulary="abc", vocab_size=99), True, r"for another vocabulary \(abc, 99 tokens; the model's is"),
        (list_of(3, vocab_size=99), False, f"for a vocabulary of 99 tokens, and the model has {V}"),
        (list_of(3, 3, V, vocabulary="abc"), True, "another vocabulary .*; 1 ids are outside .*; 1 ids occur more"),
    ],
    ids=["outside", "twice", "vocabulary", "size", "all"],
)
def test_a_list_that_does_not_fit_is_refused_and_all_is_named(
    given: TokenList, tokenizer: bool, wrong: str, tmp_path: Path
) -> None:
    file = tmp_path / "tokens.json"
    given.write(file)
    with pytest.raises(specjax.SpecjaxError, match=f"tokens.json is no draft vocabulary for this model: .*{wrong}"):
        draft_tokens(file, byte_tokenizer() if tokenizer else None, V)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("tokens", "is not JSON"),
        ("[1, 2]", 'no object with "draft_vocabulary": 1'),
        ('{"tokens": [1], "vocab_size": 272}', 'no object with "draft_vocabulary": 1'),
        ('{"draft_vocabulary": 1, "vocab_size": 272, "tokens": []}', '"tokens" must be a list of token ids'),
        ('{"draft_vocabulary": 1, "vocab_size": 272, "tokens": [1, true]}', '"tokens" must be a list of token ids'),
        ('{"draft_vocabulary": 1, "tokens": [1]}', '"vocab_size" must be a number'),
        ('{"draft_vocabulary": 1, "vocab_size": 272, "vocabulary": 3, "tokens": [1]}', "a text or null"),
    ],
)
def test_what_is_no_list_is_refused(text: str, wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(text)
    with pytest.raises(specjax.SpecjaxError, match=f"{wrong}.*; `specjax vocabulary` writes such lists"):
        draft_tokens(file, None, V)


@pytest.mark.parametrize(
    ("target", "drafter", "wrong"),
    [
        ("dense/qwen3/hf", None, "has no MTP head, so there is none to trim"),
        ("dense/qwen3/hf", "ngram", "NGram has no output head"),
        ("drafter_target/hf", FIXTURES / "eagle3" / "specforge", "scores only 96 of 320 tokens already"),
        ("drafter_target/hf", FIXTURES / "dflash" / "dflash2", "has a selector"),
        ("gemma4/edge/hf", FIXTURES / "gemma4" / "edge" / "assistant", "centroid head scores the tokens of 4 of 21"),
    ],
    ids=["none", "ngram", "own-vocabulary", "selector", "centroids"],
)
def test_a_drafter_whose_head_cannot_be_trimmed_says_why_before_weights_are_read(
    target: str, drafter: Any, wrong: str
) -> None:
    read: list[int] = []
    with pytest.raises(specjax.SpecjaxError, match=wrong):
        specjax.load(FIXTURES / target, drafter=drafter, draft_vocab=100, progress=lambda *bytes: read.append(bytes[0]))
    assert not read
