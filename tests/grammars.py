"""Grammars for models without a tokenizer: their tokens are spelled with letters of our own."""

from __future__ import annotations

from functools import cache
from itertools import product

from specjax.decoding.grammar import Grammar
from specjax.grammar.automaton import byte_automaton
from specjax.grammar.tokens import over_tokens

LETTERS = 'abcdefgh01234"é'


@cache
def pieces(vocab_size: int) -> tuple[bytes, ...]:
    """The bytes of each token: none, single letters, half characters, pairs and so on. The last token ends texts."""
    words = ("".join(word) for size in range(1, 9) for word in product(LETTERS, repeat=size))
    spelled = [b"", b"\xc3", b"\xa9"]
    while len(spelled) < vocab_size - 1:
        spelled.append(next(words).encode())
    return (*spelled, b"<end>")


@cache
def grammar(regex: str, vocab_size: int) -> Grammar:
    """The grammar of an expression in these tokens."""
    return over_tokens(byte_automaton(regex), pieces(vocab_size), [vocab_size - 1], vocab_size)


def text_of(tokens: list[int], vocab_size: int) -> bytes:
    """What tokens spell, without the one that ends the text."""
    return b"".join(pieces(vocab_size)[token] for token in tokens if token != vocab_size - 1)
