"""Text in, ids out, the same text back: whatever the text, and however the ids arrive."""

from __future__ import annotations

import json
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_checkpoints import END, MERGES, TURN_END, USER_DEFINED, make_tokenizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import checkpoints
from checkpoints import TokenizerError, Vocabulary
from checkpoints.tokenizers import gguf as tokenizer_gguf
from checkpoints.tokenizers import hf as tokenizer_hf
from checkpoints.tokenizers.backend import pre_tokenizer
from checkpoints.tokenizers.tokenizer import LONG
from checkpoints.tokenizers.vocabulary import BYTE_ALPHABET, PRE_TOKENIZERS
from specjax.models.registry import FAMILIES

FIXTURES = Path(__file__).parents[1] / "fixtures" / "qwen3_5"
TOKENIZER = make_tokenizer()
CRUEL = [
    "",
    " ",
    "   \n\t \r\n\r\n  x",
    "don't we'LL I'D \u017f'\u017f",
    "1234567890 1,000.5 ½②Ⅳ",
    "def f(a):\n    return 'é'  # 👩‍👩‍👧‍👦 🏳️‍🌈",
    "e\u0301 नमस्ते क्षि \u0300\u0301",
    "日本語 русский עברית ﷺ",
    "\x00\x01\x7f\x80\u0100ÿ",
    "\u2028a\u00a0b\u3000\ufeff",
    "\U0010ffff\ue000",
    "!!!\n\n??---==>{}[]",
    "<|endoftext|><|im_end|>x<think>y</think><|im_",
    "ĠĊ Ã©",
    "a" * 1000,
]


def reference(vocabulary: Vocabulary, *patterns: str, ignore_merges: bool = False) -> Tokenizer:
    """The tokenizer as tokenizer.json describes it for these models, built anew from a vocabulary."""
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(vocabulary.merges), ignore_merges=ignore_merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@pytest.mark.parametrize("text", CRUEL)
def test_ids_equal_those_of_hugging_face(text: str, pre: str) -> None:
    text = unicodedata.normalize("NFC", text)  # which tokenizer.json does, and a GGUF does not
    tokenizer = make_tokenizer(pre)
    cuts = PRE_TOKENIZERS[pre]
    expected = reference(tokenizer.vocabulary, *cuts.patterns, ignore_merges=cuts.ignore_merges)
    assert tokenizer.encode(text) == expected.encode(text).ids


@pytest.mark.parametrize("model", ["dense", "moe", "tied"])
def test_ids_equal_those_of_llama_cpp(model: str) -> None:
    from_gguf = checkpoints.load(FIXTURES / model / "model.gguf", FAMILIES).tokenizer
    from_hf = checkpoints.load(FIXTURES / model / "hf", FAMILIES).tokenizer
    assert from_gguf is not None
    assert from_hf is not None
    assert from_gguf.eos_ids == from_hf.eos_ids
    for case in json.loads((FIXTURES / "tokenizer_cases.json").read_text()):
        assert from_hf.encode(case["text"]) == case["ids"]
        assert from_gguf.encode(unicodedata.normalize("NFC", case["text"])) == case["ids"]


@pytest.mark.parametrize("special", [True, False])
@given(st.one_of(st.text(), st.sampled_from(CRUEL)))
@settings(max_examples=200, deadline=None)
def test_every_text_comes_back(special: bool, text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text, special)) == text


def test_long_texts_are_encoded_as_short_ones_are() -> None:
    text = "".join(CRUEL) * (LONG // len("".join(CRUEL)) + 1)
    assert TOKENIZER.encode(text) == TOKENIZER.backend.encode(text).ids
    assert TOKENIZER.decode(TOKENIZER.encode(text, special=False)) == text
    assert TOKENIZER.encode(text, special=False) != TOKENIZER.encode(text)


def test_no_text_has_fewer_tokens_than_is_said() -> None:
    composing = checkpoints.load(FIXTURES / "dense" / "hf", FAMILIES).tokenizer
    longest = max((TOKENIZER.vocabulary.piece(token) for token in range(TOKENIZER.vocab_size)), key=len).decode()
    assert TOKENIZER.fewest_tokens(longest * 9) == 3
    for tokenizer in (TOKENIZER, composing):
        assert tokenizer is not None
        for text in (*CRUEL, longest * 9, unicodedata.normalize("NFD", "\u0390" * 40)):
            assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text))


def test_every_byte_has_a_token() -> None:
    assert [TOKENIZER.decode_bytes([i]) for i in range(256)] == [bytes([byte]) for byte in range(256)]
    assert len(BYTE_ALPHABET) == 256


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1)), st.lists(st.integers(0, 40)), st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_stream_gives_the_same_text_however_it_is_cut(ids: list[int], cuts: list[int], special: bool) -> None:
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    stream = TOKENIZER.stream(special)
    text = "".join(stream.push(ids[start:end]) for start, end in pairwise(bounds)) + stream.flush()
    assert text == TOKENIZER.decode(ids, special)


def test_a_stream_holds_back_half_characters() -> None:
    stream = TOKENIZER.stream()
    euro = list("€".encode())
    assert [stream.push([byte]) for byte in euro] == ["", "", "€"]
    assert stream.push(euro[:2]) == ""
    assert stream.flush() == "�"


def test_combining_marks_belong_to_words_in_qwen35_only() -> None:
    text = "ab\u0301c"
    words = {
        name: [text[start:end] for _, (start, end) in pre_tokenizer(name).pre_tokenize_str(text)]
        for name in ("qwen2", "qwen35")
    }
    assert words == {"qwen2": ["ab", "\u0301c"], "qwen35": [text]}


def test_control_tokens_in_a_text_are_recognised_on_demand() -> None:
    text = "a<|im_end|><think>"
    assert TOKENIZER.encode(text) == [ord("a"), TURN_END, USER_DEFINED]
    literal = TOKENIZER.encode(text, special=False)
    assert TURN_END not in literal
    assert literal[-1] == USER_DEFINED
    assert TOKENIZER.decode(literal) == text


def test_control_tokens_can_be_left_out_of_the_text() -> None:
    assert TOKENIZER.decode([65, END, USER_DEFINED, TURN_END, 66], special=False) == "A<think>B"


def test_generation_ends_at_every_end_token() -> None:
    assert TOKENIZER.eos_ids == {END, TURN_END}


def test_ids_outside_the_vocabulary_are_refused() -> None:
    for bad in (-1, TOKENIZER.vocab_size):
        with pytest.raises(ValueError, match=f"token id {bad} is outside the vocabulary of 265"):
            TOKENIZER.decode([bad])


def test_metadata_and_tokenizer_json_round_trip(tmp_path: Path) -> None:
    metadata = tokenizer_gguf.to_metadata(TOKENIZER, 272)
    from_gguf = tokenizer_gguf.from_metadata(metadata, "test")
    tokenizer_hf.save(TOKENIZER, tmp_path)
    from_hf = tokenizer_hf.from_directory(tmp_path)
    assert from_gguf.vocab_size == 272
    assert from_hf.vocabulary.pre == "qwen35"
    for other in (from_gguf, from_hf):
        assert other.eos_ids == TOKENIZER.eos_ids
        assert other.vocabulary.merges == MERGES
        assert other.vocabulary.types[:265] == TOKENIZER.vocabulary.types
        for text in CRUEL:
            assert other.encode(text) == TOKENIZER.encode(text)
            assert other.encode(text, special=False) == TOKENIZER.encode(text, special=False)
    assert from_gguf.decode([265, 271]) == ""


def test_a_bos_token_is_added_where_the_file_asks_for_it() -> None:
    metadata = tokenizer_gguf.to_metadata(TOKENIZER, 265)
    metadata |= {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": END}
    tokenizer = tokenizer_gguf.from_metadata(metadata, "test")
    assert tokenizer.encode("a") == [END, ord("a")]
    assert tokenizer.encode("a", special=False) == [ord("a")]


def test_several_tokens_may_stand_before_every_text(tmp_path: Path) -> None:
    """As `[gMASK]<sop>` does in GLM's tokenizer.json, whose post-processor is a sequence of these two."""
    names = ("<|im_end|>", "<|endoftext|>")
    leading = (TURN_END, END)
    template = processors.TemplateProcessing([*names, "$A"], special_tokens=list(zip(names, leading, strict=True)))
    tokenizer_hf.save(TOKENIZER, tmp_path)
    backend = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    backend.save(str(tmp_path / "tokenizer.json"))
    read = tokenizer_hf.from_directory(tmp_path)
    metadata = tokenizer_gguf.to_metadata(read, 265)
    assert metadata["tokenizer.ggml.bos_token_id"] == TURN_END  # as llama.cpp's converter has it, which adds none
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    from_gguf = tokenizer_gguf.from_metadata(metadata, "test")
    for tokenizer in (read, from_gguf):
        assert tokenizer.vocabulary.leading == leading
        assert tokenizer.encode("a") == [*leading, ord("a")] == tokenizer.backend.encode("a").ids
        assert tokenizer.encode("a", special=False) == [ord("a")]


def test_tokens_behind_every_text_are_refused() -> None:
    backend = reference(TOKENIZER.vocabulary, *PRE_TOKENIZERS["qwen35"].patterns)
    backend.post_processor = processors.TemplateProcessing(
        ["$A", "<|endoftext|>"], special_tokens=[("<|endoftext|>", END)]
    )
    with pytest.raises(TokenizerError, match="may only put tokens in front"):
        tokenizer_hf.from_backend(backend, {"eos": END})


def test_a_freshly_trained_tokenizer_can_be_used() -> None:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizer("qwen2")
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["def f(x):\n    return x\n"] * 20, trainer)
    tokenizer = tokenizer_hf.from_backend(backend, {"eos": 0})
    assert tokenizer.vocabulary.pre == "qwen2"
    again = tokenizer_gguf.from_metadata(tokenizer_gguf.to_metadata(tokenizer, 320), "test")
    for text in CRUEL:
        assert again.encode(text) == tokenizer.encode(text)
        assert again.decode(again.encode(text)) == text


def test_a_pattern_without_a_name_is_not_written_to_a_gguf() -> None:
    backend = reference(TOKENIZER.vocabulary, r"\S+|\s+")
    tokenizer = tokenizer_hf.from_backend(backend, {"eos": END})
    with pytest.raises(TokenizerError, match="none of qwen2, qwen35"):
        tokenizer_gguf.to_metadata(tokenizer, 272)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": ["a"] * 265}, "1 tokens occur twice"),
        ({"token_type": [1] * 9}, "265 tokens, but 9 token types"),
        ({"token_type": [99] * 265}, "unknown token type 99"),
        ({"merges": ["de"]}, "'de' is not two tokens"),
        ({"merges": ["d zz"]}, "do not fit the vocabulary"),
        ({"eos_token_id": 265}, "{'eos': 265} are outside the vocabulary of 265"),
        ({"add_bos_token": True}, "none is named"),
        ({"tokens": [f"t{i}" for i in range(265)]}, "256 of 256 bytes have no token"),
    ],
)
def test_contradictory_vocabularies_are_refused(changes: dict[str, object], message: str) -> None:
    metadata = tokenizer_gguf.to_metadata(TOKENIZER, 265)
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(TokenizerError, match=message):
        tokenizer_gguf.from_metadata(metadata, "test")


def test_more_tokens_than_rows_are_not_written() -> None:
    with pytest.raises(TokenizerError, match="265 tokens, but the model only 264 rows"):
        tokenizer_gguf.to_metadata(TOKENIZER, 264)


def test_only_byte_level_bpe_is_read(tmp_path: Path) -> None:
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="only BPE is supported"):
        tokenizer_hf.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        tokenizer_hf.from_directory(tmp_path)
