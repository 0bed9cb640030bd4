"""Every kind of vocabulary that a GGUF can carry cuts texts as llama.cpp does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoints import TextTokenizer, TokenizerError
from checkpoints.tokenizers import gguf as tokenizer_gguf
from checkpoints.tokenizers import hf as tokenizer_hf
from checkpoints.tokenizers.vocabulary import SPACE

FIXTURE = json.loads((Path(__file__).parents[1] / "fixtures" / "tokenizer_cases.json").read_text(encoding="utf-8"))
NAMES = ["llama-bpe", "deepseek-v3", "glm4", "gemma4", "llama"]
KINDS = dict(zip(NAMES, FIXTURE, strict=True))


def tokenizer_of(kind: str, **changes: Any) -> TextTokenizer:
    """The tokenizer of a kind; a change to None removes the key."""
    metadata = KINDS[kind]["metadata"] | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return tokenizer_gguf.from_metadata({key: value for key, value in metadata.items() if value is not None}, "test")


@pytest.mark.parametrize("kind", NAMES)
def test_ids_bytes_and_ends_equal_those_of_llama_cpp(kind: str) -> None:
    case, tokenizer = KINDS[kind], tokenizer_of(kind)
    for text, ids, literal in zip(case["texts"], case["ids"], case["literal"], strict=True):
        assert tokenizer.encode(text) == ids
        assert tokenizer.encode(text, special=False) == literal
    assert [tokenizer.decode_bytes([i]).hex() for i in range(tokenizer.vocab_size)] == case["pieces"]
    assert sorted(tokenizer.eos_ids) == case["ends"]


@pytest.mark.parametrize("kind", NAMES)
def test_every_text_comes_back(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    for text in KINDS[kind]["texts"]:
        expected = text if kind in ("llama-bpe", "deepseek-v3", "glm4") else text.replace(SPACE, " ")
        if kind == "llama" and text:
            expected = " " + expected.replace("<think>", "<think> ").replace("</think>", "</think> ")
        assert tokenizer.decode(tokenizer.encode(text, special=False)) == expected


@pytest.mark.parametrize("kind", NAMES)
def test_gguf_and_tokenizer_json_describe_the_same_tokenizer(kind: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(kind)
    metadata = tokenizer_gguf.to_metadata(tokenizer, tokenizer.vocab_size + 3)
    assert {key: value for key, value in KINDS[kind]["metadata"].items() if isinstance(value, (str, bool, int))} == {
        key: value for key, value in metadata.items() if isinstance(value, (str, bool, int))
    }
    tokenizer_hf.save(tokenizer, tmp_path)
    for other in (tokenizer_gguf.from_metadata(metadata, "test"), tokenizer_hf.from_directory(tmp_path)):
        assert other.vocabulary.model == tokenizer.vocabulary.model
        assert other.vocabulary.pre == tokenizer.vocabulary.pre
        assert other.eos_ids == tokenizer.eos_ids
        for text in KINDS[kind]["texts"]:
            assert other.encode(text) == tokenizer.encode(text)
            assert other.encode(text, special=False) == tokenizer.encode(text, special=False)


def test_whether_a_bos_token_is_added_is_the_files_word_then_the_kinds() -> None:
    assert tokenizer_of("llama-bpe", add_bos_token=None).vocabulary.leading
    assert not tokenizer_of("llama-bpe", add_bos_token=False).vocabulary.leading
    assert not tokenizer_of("deepseek-v3", add_bos_token=None).vocabulary.leading
    assert not tokenizer_of("glm4", add_bos_token=None).vocabulary.leading
    assert tokenizer_of("llama", add_bos_token=None).vocabulary.leading
    assert not tokenizer_of("llama", add_bos_token=False).vocabulary.leading
    assert tokenizer_of("gemma4", add_bos_token=False).vocabulary.leading  # early files have it wrong


def test_an_end_of_generation_is_a_control_token_whatever_its_type_in_the_file() -> None:
    types = list(KINDS["gemma4"]["metadata"]["tokenizer.ggml.token_type"])
    turn_end = KINDS["gemma4"]["metadata"]["tokenizer.ggml.tokens"].index("<turn|>")
    types[turn_end] = 1
    tokenizer = tokenizer_of("gemma4", token_type=types)
    assert turn_end in tokenizer.eos_ids
    assert tokenizer.encode("<turn|>") == [1, turn_end]
    assert tokenizer.decode([turn_end], special=False) == ""


def test_a_file_can_ask_for_no_space_before_texts() -> None:
    assert (
        tokenizer_of("llama", add_space_prefix=False).decode(tokenizer_of("llama").encode("a", special=False)) == " a"
    )
    tokenizer = tokenizer_of("llama", add_space_prefix=False)
    assert tokenizer.decode(tokenizer.encode("a", special=False)) == "a"


def test_ends_of_generation_that_texts_do_not_reveal_are_named_in_a_gguf() -> None:
    tokenizer = tokenizer_of("gemma4")
    plain = tokenizer.vocabulary.tokens.index("choice")
    with_more = TextTokenizer(tokenizer.vocabulary, tokenizer.backend, [plain])
    metadata = tokenizer_gguf.to_metadata(with_more, tokenizer.vocab_size)
    assert metadata["tokenizer.ggml.eot_token_id"] == plain
    assert "tokenizer.ggml.eom_token_id" not in metadata
    assert tokenizer_gguf.from_metadata(metadata, "test").eos_ids == tokenizer.eos_ids | {plain}


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("llama-bpe", {"model": "bert"}, "'bert' is not known; known are gpt2, gemma4, llama"),
        (
            "llama-bpe",
            {"pre": "nobody"},
            "'nobody' is not known; known are qwen2, qwen35, llama-bpe, glm4, deepseek-v3",
        ),
        ("gemma4", {"merges": None}, "lacks tokenizer.ggml.merges"),
        ("llama", {"scores": None}, "lacks tokenizer.ggml.scores"),
        ("llama", {"scores": [0.0]}, "454 tokens, but 1 scores"),
    ],
)
def test_what_cannot_be_read_is_said(kind: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        tokenizer_of(kind, **changes)


def test_bytes_without_a_token_are_an_error() -> None:
    tokens = [
        "x" + token if token == "<0x41>" else token for token in KINDS["gemma4"]["metadata"]["tokenizer.ggml.tokens"]
    ]
    with pytest.raises(TokenizerError, match="1 of 256 bytes have no token"):
        tokenizer_of("gemma4", tokens=tokens)


def test_a_sentencepiece_vocabulary_without_scores_is_not_written_to_a_gguf(tmp_path: Path) -> None:
    tokenizer_hf.save(tokenizer_of("llama"), tmp_path)
    with pytest.raises(TokenizerError, match="without scores"):
        tokenizer_gguf.to_metadata(tokenizer_hf.from_directory(tmp_path), 454)
