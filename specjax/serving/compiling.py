"""What a client wants a text held to, compiled in a process of its own that can be ended. Nothing here imports JAX."""

from __future__ import annotations

import json
import resource
import sys
from contextlib import suppress
from io import BytesIO

import numpy as np

from specjax.grammar.automaton import ByteAutomaton, byte_automaton
from specjax.grammar.expression import GrammarError
from specjax.grammar.schema import schema_regex
from specjax.serving.tools.call import forced_calls
from specjax.serving.tools.formats import format_of

REFUSED, TOO_MUCH = 3, 4
"""Exit statuses of the process: what was asked for cannot be held; it needs more memory than there is."""


def regex_of(kind: str, text: str) -> str:
    """The regular expression of a structure; see `Structure` for the arguments. "calls" are forced ones.

    Raises:
        GrammarError: it cannot be held.
    """
    if kind == "schema":
        return schema_regex(json.loads(text))
    if kind == "calls":
        template, tools, several = json.loads(text)
        form = format_of(template)
        assert form is not None
        return forced_calls(form, tools, several)
    return text


def packed(automaton: ByteAutomaton) -> bytes:
    """An automaton as bytes, for `unpacked`."""
    file = BytesIO()
    np.savez(file, next=automaton.next, accepting=automaton.accepting)
    return file.getvalue()


def unpacked(data: bytes) -> ByteAutomaton:
    """The automaton of these bytes."""
    arrays = np.load(BytesIO(data), allow_pickle=False)
    return ByteAutomaton(arrays["next"], arrays["accepting"])


def main() -> int:
    """Read a structure, and write its automaton or what is wrong with it.

    Arguments of the process are its limits: seconds, bytes, and states of an automaton.
    """
    *limits, states = map(int, sys.argv[1:])
    for limit, most in zip((resource.RLIMIT_CPU, resource.RLIMIT_AS), limits, strict=True):
        with suppress(ValueError):  # a lower limit holds already, or the system cannot set it
            resource.setrlimit(limit, (most, most))
    try:
        automaton = byte_automaton(regex_of(*json.load(sys.stdin)))
        if len(automaton.next) > states:
            raise GrammarError(f"the grammar has {len(automaton.next)} states; this server takes at most {states}")
        status, answer = 0, packed(automaton)
    except GrammarError as error:
        status, answer = REFUSED, str(error).encode(errors="replace")
    except RecursionError:
        status, answer = REFUSED, b"the schema is nested too deeply; write it with fewer levels"
    except MemoryError:
        status, answer = TOO_MUCH, b""
    sys.stdout.buffer.write(answer)
    return status


if __name__ == "__main__":
    sys.exit(main())
