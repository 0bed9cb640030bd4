"""Grammars for the tokens of a model, remembered while its tokenizer is in use."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from checkpoints import TextTokenizer
from specjax.decoding.grammar import Grammar
from specjax.grammar.automaton import byte_automaton
from specjax.grammar.expression import GrammarError
from specjax.grammar.schema import schema_regex
from specjax.grammar.tokens import begun_by, over_tokens
from specjax.runtime.notices import announced

MOST_KNOWN = 64
"""So many grammars are remembered for a tokenizer; then the oldest are given up."""


@dataclass
class _Spelling:
    """A tokenizer's tokens as bytes, and the grammars that have been compiled for them."""

    pieces: list[bytes]
    grammars: dict[tuple[str, str, int, str | None, tuple[str, ...]], Grammar] = field(default_factory=dict)


_KNOWN: WeakKeyDictionary[TextTokenizer, _Spelling] = WeakKeyDictionary()


def regex_grammar(
    regex: str, tokenizer: TextTokenizer, vocab_size: int, after: str | None = None, marks: Sequence[str] = ()
) -> Grammar:
    """The grammar of the texts that an expression matches as a whole.

    Control tokens are never allowed, but for those that end a text, and for `marks`.

    Args:
        regex: in the syntax of Rust's crate `regex`, without look-around.
        tokenizer: spells the tokens.
        vocab_size: V of the model, which may have more rows than the tokenizer has tokens.
        after: the token that it begins after, written out; anything but an end may come before. None: it begins at
            once.
        marks: control tokens that stand for themselves, as the expression spells them.

    Raises:
        GrammarError: the expression does not compile, no text of it can be spelled, the tokenizer has no token that
            ends a text, or `after` is not one token.
    """
    return _compiled("regex", regex, lambda: regex, tokenizer, vocab_size, after, tuple(marks))


def schema_grammar(schema: str, tokenizer: TextTokenizer, vocab_size: int, after: str | None = None) -> Grammar:
    """The grammar of the JSON texts that a schema allows; the schema is given as JSON text.

    Raises:
        GrammarError: as `regex_grammar`; or the schema is no JSON, or has something that cannot be held.
    """
    parsed = _parsed(schema)
    return _compiled("schema", json.dumps(parsed), lambda: schema_regex(parsed), tokenizer, vocab_size, after)


def _parsed(schema: str) -> Any:
    def refuse(constant: str) -> None:
        raise GrammarError(f"the JSON schema has {constant}, which is no value of JSON")

    try:
        return json.loads(schema, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise GrammarError(f"the JSON schema is not JSON: {error}") from error


def _compiled(
    kind: str,
    text: str,
    regex: Callable[[], str],
    tokenizer: TextTokenizer,
    vocab_size: int,
    after: str | None,
    marks: tuple[str, ...] = (),
) -> Grammar:
    """The grammar of an expression, made anew only if nothing of this kind and text is remembered."""
    if not tokenizer.eos_ids:
        raise GrammarError("the tokenizer names no token that ends a text, so that no structure could be complete")
    known, key = _KNOWN.get(tokenizer), (kind, text, vocab_size, after, marks)
    if known is None:
        every = range(tokenizer.vocab_size)
        known = _KNOWN[tokenizer] = _Spelling([tokenizer.decode_bytes([token], special=False) for token in every])
    if key not in known.grammars:
        with announced("compiling a grammar; this is done once for a model and its text"):
            pieces = _with_marks(known.pieces, marks, tokenizer)
            grammar = over_tokens(byte_automaton(regex()), pieces, sorted(tokenizer.eos_ids), vocab_size)
            known.grammars[key] = grammar if after is None else _begun_by(grammar, after, tokenizer)
        while len(known.grammars) > MOST_KNOWN:
            del known.grammars[next(iter(known.grammars))]
    known.grammars[key] = grammar = known.grammars.pop(key)  # the one that was used last is given up last
    return grammar


def _with_marks(pieces: list[bytes], marks: Sequence[str], tokenizer: TextTokenizer) -> list[bytes]:
    """The tokens as bytes, with these control tokens among them; marks that the model has no token for are text."""
    spelled = {token: text.encode() for token, text in enumerate(tokenizer.vocabulary.tokens) if text in marks}
    return [spelled.get(token, piece) for token, piece in enumerate(pieces)] if spelled else pieces


def _begun_by(grammar: Grammar, after: str, tokenizer: TextTokenizer) -> Grammar:
    tokens = tokenizer.encode(after)[len(tokenizer.vocabulary.leading) :]
    if len(tokens) != 1 or tokens[0] in tokenizer.eos_ids:
        raise GrammarError(f"grammar_after is {after!r}, which is not one token of this model that texts go on after")
    free = np.zeros(len(grammar.classes), bool)
    free[: tokenizer.vocab_size] = [len(tokenizer.decode_bytes([token])) > 0 for token in range(tokenizer.vocab_size)]
    free[list(tokenizer.eos_ids)] = False
    return begun_by(grammar, tokens[0], free)
