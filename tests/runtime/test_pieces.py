"""Pieces of prompts: a long prompt that is alone is fed in larger ones where that pays, and says the same."""

from pathlib import Path

import jax
import pytest
from small_model import write_small_model

import specjax
from pallas_kernels import using
from specjax.analysis.benchmark import random_prompt
from specjax.decoding.decoder import Decoder
from specjax.runtime import pieces
from specjax.runtime.pieces import MOST_PAIRS, PIECE_SIZES, piece_size, shapes_of_pieces
from specjax.runtime.prefixes import PrefixCache

FIXTURES = Path(__file__).parents[1] / "fixtures" / "trained"


def shapes(model: specjax.Model, seats: int, slots: int) -> list[tuple[int, int]]:
    decoder = Decoder(model.target, model.drafter, max_drafts=0)
    return shapes_of_pieces(decoder, jax.eval_shape(lambda: decoder.init_state(seats, slots)))


def test_gpus_have_a_larger_piece_for_one_prompt_alone() -> None:
    model = specjax.load()
    small = shapes(model, 4, 2048)
    assert {size for _, size in small} == set(PIECE_SIZES)
    with using(platform="gpu"):
        found = shapes(model, 4, 2048)
        assert found == [*small, (1, 1024)]
        assert [piece_size(left, found) for left in (10, 200, 600, 5000)] == [16, 256, 1024, 1024]
        assert piece_size(5000) == PIECE_SIZES[-1], "all logits of a piece are held where none is asked for"


def test_many_slots_and_rings_are_fed_small_pieces() -> None:
    model, slots = specjax.load(), MOST_PAIRS // 1024
    with using(platform="gpu"):
        assert [shapes(model, 1, each)[-1] for each in (slots, slots + 256)] == [(1, 1024), (1, 256)]
        assert shapes(specjax.load(FIXTURES / "gemma4.gguf"), 1, 2048)[-1] == (1, 256)


@pytest.mark.parametrize(
    ("draft", "kind"),
    [(2, "q8_0"), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((0, "q8_0"), (2, "f32")))],
)
def test_larger_pieces_change_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draft: int, kind: str) -> None:
    model = specjax.load(write_small_model(tmp_path / "small.gguf", context_length=1024))
    prompt = random_prompt(model.target.vocab_size, 700, 0)
    options = specjax.GenerateOptions(max_tokens=24, draft=draft, ignore_eos=True, kv_type_k=kind, kv_type_v=kind)
    expected = model.generate(prompt, options)
    fed = []

    def next_of(*args: object) -> pieces.Piece:
        fed.append(piece := small(*args))
        return piece

    small = pieces.Piece.next_of
    monkeypatch.setattr(pieces.Piece, "next_of", next_of)
    monkeypatch.setitem(pieces.LARGE_PIECE, "cpu", 1024)  # more than there are slots
    monkeypatch.setitem(pieces.CALL_TOKENS, "cpu", pieces.ON_ACCELERATORS)
    got = model.generate(prompt, options)
    assert got.tokens == expected.tokens
    assert {piece.tokens.shape for piece in fed} == {(1, 1024)}


def test_what_many_prompts_begin_with_is_kept_in_small_blocks() -> None:
    prompt = list(range(3000))
    cache = PrefixCache(1 << 20)
    assert cache.stops(prompt, []) == tuple(range(256, 3000, 256))
    assert cache.stops(prompt, [], 1024) == (256, 512, 768, 1024, 2048)
    assert cache.stops(prompt[:900], [prompt[:600]], 1024) == (256, 512, 599, 768)
