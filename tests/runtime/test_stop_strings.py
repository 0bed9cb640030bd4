"""Stop strings: found wherever they stand between tokens, cut exactly, and never shown in part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_model import byte_tokenizer

from specjax.runtime.stop_strings import StopStrings, cut_at

TOKENIZER = byte_tokenizer()


def watch(*stop: str) -> StopStrings:
    return StopStrings(TOKENIZER.stream(special=False), stop, TOKENIZER.vocab_size)


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def test_a_string_that_spans_tokens_and_calls_ends_the_text() -> None:
    text = watch("</end>")
    assert text.push(ids("some te")) is None
    assert text.shown() == "some te"
    assert text.push(ids("xt</e")) is None
    assert text.shown() == "xt", "what may begin a stop string is held back"
    assert text.push(ids("nd>, more")) == 3
    assert text.shown() == ""
    assert text.rest() == ""


def test_a_token_that_goes_on_after_the_string_belongs_to_the_text_and_is_cut() -> None:
    text = watch("d")
    assert text.push(ids("abcde")[:3]) is None
    assert text.push([256, *ids("f")]) == 1, "token 256 is 'de'"
    assert text.shown() == "abc"


def test_what_was_held_back_is_shown_when_nothing_more_comes() -> None:
    text = watch("\n\n")
    assert text.push(ids("a\n")) is None
    assert text.shown() == "a"
    assert text.rest() == "\n"


def test_the_first_of_several_strings_counts() -> None:
    text = watch("bcd", "c")
    assert text.push(ids("abcd")) == 3
    assert text.shown() == "ab"
    assert cut_at("abcd", ("bcd", "c")) == "a"
    assert cut_at("abcd", ()) == "abcd"


def test_characters_of_several_bytes_are_whole() -> None:
    text = watch("é")
    assert text.push(ids("caf")) is None
    first, second = ids("é")
    assert text.push([first]) is None
    assert text.push([second]) == 1
    assert text.shown() == "caf"


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), st.integers(1, 5))
def test_what_is_shown_in_pieces_is_the_text_up_to_the_first_complete_string(
    text: str, stop: list[str], size: int
) -> None:
    watched, tokens, shown, kept = watch(*stop), ids(text), "", 0
    for begin in range(0, len(tokens), size):
        piece = tokens[begin : begin + size]
        count = watched.push(piece)
        shown += watched.shown()
        kept += len(piece) if count is None else count
        if count is not None:
            break
    else:
        shown += watched.rest()
    complete = [end for end in range(1, len(text) + 1) if any(text[:end].endswith(each) for each in stop)]
    assert kept == (complete[0] if complete else len(text))
    assert shown == cut_at(text[:kept], stop)
    assert text.startswith(shown)


@pytest.mark.parametrize("padding", [300, 1000])
def test_ids_beyond_the_vocabulary_stand_for_no_text(padding: int) -> None:
    text = watch("b")
    assert text.push([*ids("a"), padding]) is None
    assert text.shown() == "a"
