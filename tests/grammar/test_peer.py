"""Grammars allow the tokens that llguidance allows for the same expressions, at places along random texts."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specjax.grammar.automaton import byte_automaton
from specjax.grammar.tokens import over_tokens

FILE = Path(__file__).parents[1] / "fixtures" / "grammar_masks.json"


@cache
def recorded() -> Any:
    return json.loads(FILE.read_text())


@pytest.mark.parametrize("name", recorded()["regexes"])
def test_masks_are_those_of_llguidance(name: str) -> None:
    tokens = [bytes(token) for token in recorded()["tokens"]]
    grammar = over_tokens(byte_automaton(recorded()["regexes"][name]), tokens, [len(tokens) - 1], len(tokens))
    places = [(text, allowed) for regex, text, allowed in recorded()["places"] if regex == name]
    assert len(places) > 5
    for text, allowed in places:
        assert np.flatnonzero(grammar.allowed(grammar.after(text))).tolist() == allowed, bytes(
            b"".join(tokens[token] for token in text)
        )
