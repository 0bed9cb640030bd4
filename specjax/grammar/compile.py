"""Grammars for the tokens of a model, remembered while its tokenizer is in use."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from checkpoints import TextTokenizer
from specjax.decoding.grammar import Grammar
from specjax.grammar.automaton import GrammarError, byte_automaton, check_regex
from specjax.grammar.schema import schema_regex
from specjax.grammar.tokens import over_tokens
from specjax.runtime.notices import announced


@dataclass
class _Spelling:
    """A tokenizer's tokens as bytes, and the grammars that have been compiled for them."""

    pieces: list[bytes]
    grammars: dict[tuple[str, int], Grammar] = field(default_factory=dict)


_KNOWN: WeakKeyDictionary[TextTokenizer, _Spelling] = WeakKeyDictionary()


def regex_grammar(regex: str, tokenizer: TextTokenizer, vocab_size: int) -> Grammar:
    """The grammar of the texts that an expression matches as a whole.

    Control tokens are never allowed, but for those that end a text.

    Args:
        regex: in the syntax of Rust's crate `regex`, without look-around.
        tokenizer: spells the tokens.
        vocab_size: V of the model, which may have more rows than the tokenizer has tokens.

    Raises:
        GrammarError: the expression does not compile, no text of it can be spelled, or the tokenizer has no token that
            ends a text.
    """
    check_regex(regex)
    return _compiled(regex, tokenizer, vocab_size)


def schema_grammar(schema: str, tokenizer: TextTokenizer, vocab_size: int) -> Grammar:
    """The grammar of the JSON texts that a schema allows; the schema is given as JSON text.

    Raises:
        GrammarError: as `regex_grammar`; or the schema is no JSON, or has something that cannot be held.
    """
    try:
        parsed = json.loads(schema)
    except json.JSONDecodeError as error:
        raise GrammarError(f"the JSON schema is not JSON: {error}") from error
    return _compiled(schema_regex(parsed), tokenizer, vocab_size)


def _compiled(regex: str, tokenizer: TextTokenizer, vocab_size: int) -> Grammar:
    if not tokenizer.eos_ids:
        raise GrammarError("the tokenizer names no token that ends a text, so that no structure could be complete")
    known, key = _KNOWN.get(tokenizer), (regex, vocab_size)
    if known is None:
        every = range(tokenizer.vocab_size)
        known = _KNOWN[tokenizer] = _Spelling([tokenizer.decode_bytes([token], special=False) for token in every])
    if key not in known.grammars:
        with announced("compiling a grammar; this is done once for a model and its text"):
            automaton = byte_automaton(regex)
            known.grammars[key] = over_tokens(automaton, known.pieces, sorted(tokenizer.eos_ids), vocab_size)
    return known.grammars[key]
