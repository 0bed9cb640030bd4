"""Grammars for the tokens of a model, remembered while its tokenizer is in use."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from checkpoints import TextTokenizer
from specjax.decoding.grammar import Grammar
from specjax.grammar.automaton import ByteAutomaton, byte_automaton
from specjax.grammar.expression import GrammarError
from specjax.grammar.schema import schema_regex
from specjax.grammar.tokens import begun_by, over_tokens
from specjax.runtime.notices import announced
from specjax.runtime.prompts import check_text

MOST_KNOWN = 64
"""So many grammars are remembered for a tokenizer; then the oldest are given up."""


class Structure(NamedTuple):
    """What a text is held to, as it is asked for.

    Attributes:
        kind: how it is said: "regex" and "schema" are known here; whoever compiles others names them.
        text: what is said.
        after: the token that it begins after, written out; anything but an end may come before. None: it begins at
            once.
        marks: control tokens that stand for themselves, as the expression spells them.
    """

    kind: str
    text: str
    after: str | None = None
    marks: tuple[str, ...] = ()


@dataclass
class _Spelling:
    """A tokenizer's tokens as bytes, and the grammars that have been compiled for them."""

    pieces: list[bytes]
    grammars: dict[tuple[Structure, int], Grammar] = field(default_factory=dict)


_KNOWN: WeakKeyDictionary[TextTokenizer, _Spelling] = WeakKeyDictionary()
_LOCK = threading.Lock()
"""Is held while what is known is looked at or changed, and never while something is compiled."""


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
    return _compiled(Structure("regex", regex, after, tuple(marks)), lambda: regex, tokenizer, vocab_size)


def schema_grammar(schema: str, tokenizer: TextTokenizer, vocab_size: int, after: str | None = None) -> Grammar:
    """The grammar of the JSON texts that a schema allows; the schema is given as JSON text.

    Raises:
        GrammarError: as `regex_grammar`; or the schema is no JSON, or has something that cannot be held.
    """
    structure = schema_structure(schema, after)
    return _compiled(structure, lambda: schema_regex(json.loads(structure.text)), tokenizer, vocab_size)


def _compiled(structure: Structure, regex: Callable[[], str], tokenizer: TextTokenizer, vocab_size: int) -> Grammar:
    """The grammar of a structure, made from its expression only if it is not remembered."""
    if (grammar := known_grammar(structure, tokenizer, vocab_size)) is not None:
        return grammar
    with announced("compiling a grammar; this is done once for a model and its text"):
        return grammar_over(byte_automaton(regex()), structure, tokenizer, vocab_size)


def schema_structure(schema: str, after: str | None = None) -> Structure:
    """The structure of a schema that is given as JSON text. Schemas that differ in spaces alone have the same one.

    Raises:
        GrammarError: the schema is no JSON.
    """
    return Structure("schema", _normal(schema), after)


def _normal(schema: str) -> str:
    """A text that is the same for all texts of a schema."""

    def refuse(constant: str) -> None:
        raise GrammarError(f"the JSON schema has {constant}, which is no value of JSON")

    try:
        return json.dumps(json.loads(schema, parse_constant=refuse))
    except json.JSONDecodeError as error:
        raise GrammarError(f"the JSON schema is not JSON: {error}") from error
    except RecursionError:
        raise GrammarError("the JSON schema has too many levels; write it with fewer") from None


def known_grammar(structure: Structure, tokenizer: TextTokenizer, vocab_size: int) -> Grammar | None:
    """The grammar of a structure if it is remembered."""
    with _LOCK:
        known, key = _KNOWN.get(tokenizer), (structure, vocab_size)
        if known is None or key not in known.grammars:
            return None
        known.grammars[key] = grammar = known.grammars.pop(key)  # the one that was used last is given up last
        return grammar


def grammar_over(automaton: ByteAutomaton, structure: Structure, tokenizer: TextTokenizer, vocab_size: int) -> Grammar:
    """The grammar of a structure from its automaton over bytes. It is remembered.

    Raises:
        GrammarError: no text of it can be spelled, the tokenizer has no token that ends a text, or `after` is not one
            token.
    """
    if not tokenizer.eos_ids:
        raise GrammarError("the tokenizer names no token that ends a text, so that no structure could be complete")
    with _LOCK:
        known = _KNOWN.get(tokenizer)
    if known is None:
        every = range(tokenizer.vocab_size)
        known = _Spelling([tokenizer.decode_bytes([token], special=False) for token in every])
    pieces = _with_marks(known.pieces, structure.marks, tokenizer)
    grammar = over_tokens(automaton, pieces, sorted(tokenizer.eos_ids), vocab_size)
    if structure.after is not None:
        grammar = _begun_by(grammar, structure.after, tokenizer)
    with _LOCK:
        grammars = _KNOWN.setdefault(tokenizer, known).grammars
        grammars[structure, vocab_size] = grammar
        while len(grammars) > MOST_KNOWN:
            del grammars[next(iter(grammars))]
    return grammar


def _with_marks(pieces: list[bytes], marks: Sequence[str], tokenizer: TextTokenizer) -> list[bytes]:
    """The tokens as bytes, with these control tokens among them; marks that the model has no token for are text."""
    spelled = {token: text.encode() for token, text in enumerate(tokenizer.vocabulary.tokens) if text in marks}
    return [spelled.get(token, piece) for token, piece in enumerate(pieces)] if spelled else pieces


def _begun_by(grammar: Grammar, after: str, tokenizer: TextTokenizer) -> Grammar:
    check_text(after, "grammar_after")
    tokens = tokenizer.encode(after)[len(tokenizer.vocabulary.leading) :]
    if len(tokens) != 1 or tokens[0] in tokenizer.eos_ids:
        raise GrammarError(f"grammar_after is {after!r}, which is not one token of this model that texts go on after")
    free = np.zeros(len(grammar.classes), bool)
    free[: tokenizer.vocab_size] = [len(tokenizer.decode_bytes([token])) > 0 for token in range(tokenizer.vocab_size)]
    free[list(tokenizer.eos_ids)] = False
    return begun_by(grammar, tokens[0], free)
