"""Pieces of prompts: a long prompt that is alone is fed in larger ones where that pays, and says the same."""

from pathlib import Path

import jax
import pytest

import specjax
from pallas_kernels import using
from specjax.analysis.benchmark import random_prompt
from specjax.decoding.decoder import Decoder
from specjax.runtime import pieces
from specjax.runtime.pieces import MOST_PAIRS, PIECE_SIZES, piece_size, shapes_of_pieces
from specjax.state import SequenceState

FIXTURES = Path(__file__).parents[1] / "fixtures" / "trained"


def state_of(model: specjax.Model, seats: int, slots: int) -> SequenceState:
    return jax.eval_shape(lambda: Decoder(model.target, model.drafter, max_drafts=0).init_state(seats, slots))


def largest(state: SequenceState) -> int:
    return max(size for _, size in shapes_of_pieces(state))


def test_gpus_have_a_larger_piece_for_one_prompt_alone() -> None:
    state = state_of(specjax.load(), 4, 2048)
    assert largest(state) == PIECE_SIZES[-1]
    with using(platform="gpu"):
        shapes = shapes_of_pieces(state)
        assert (1, 1024) in shapes
        assert max(size for width, size in shapes if width > 1) == PIECE_SIZES[-1]
        assert [piece_size(left, shapes) for left in (10, 200, 600, 5000)] == [16, 256, 1024, 1024]
        assert piece_size(5000) == PIECE_SIZES[-1], "all logits of a piece are held where none is asked for"


def test_many_slots_and_rings_are_fed_small_pieces() -> None:
    slots = MOST_PAIRS // 1024
    with using(platform="gpu"):
        assert [largest(state_of(specjax.load(), 1, each)) for each in (slots, slots + 256)] == [1024, 256]
        rings = state_of(specjax.load(FIXTURES / "gemma4.gguf"), 1, 2048)
        assert rings.rings
        assert largest(rings) == PIECE_SIZES[-1]


@pytest.mark.parametrize("draft", [0, 2])
def test_larger_pieces_change_no_token(monkeypatch: pytest.MonkeyPatch, draft: int) -> None:
    model = specjax.load()
    prompt = random_prompt(model.target.vocab_size, 700, 0)
    options = specjax.GenerateOptions(max_tokens=24, draft=draft, ignore_eos=True)
    expected = model.generate(prompt, options)
    fed = []

    def next_of(*args: object) -> pieces.Piece:
        fed.append(piece := small(*args))
        return piece

    small = pieces.Piece.next_of
    monkeypatch.setattr(pieces.Piece, "next_of", next_of)
    monkeypatch.setitem(pieces.LARGE_PIECE, "cpu", 512)
    got = model.generate(prompt, options)
    assert got.tokens == expected.tokens
    assert 512 in {piece.tokens.shape[1] for piece in fed}
