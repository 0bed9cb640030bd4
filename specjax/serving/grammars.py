"""The grammars of a server: each is compiled once, apart from all that does not wait for it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from subprocess import PIPE, Popen

from checkpoints import TextTokenizer
from specjax.decoding.grammar import Grammar
from specjax.grammar.automaton import ByteAutomaton
from specjax.grammar.compile import Structure, grammar_over, known_grammar
from specjax.grammar.expression import GrammarError
from specjax.serving.compiling import REFUSED, TOO_MUCH, unpacked
from specjax.serving.limits import Limits


@dataclass
class _Going:
    """A grammar that is being compiled, and how many requests wait for it."""

    task: asyncio.Task[Grammar]
    waiting: int = 0


class Grammars:
    """Compiles grammars, each in a process of its own, which ends when nobody waits for it any more.

    One at a time is compiled, because each may need much memory. Only the loop of the server may use it.
    """

    def __init__(self, tokenizer: TextTokenizer, vocab_size: int, limits: Limits) -> None:
        """
        Args:
            tokenizer: spells the tokens.
            vocab_size: V of the model.
            limits: how long compiling may take, and how much memory.
        """
        self._where, self._limits = (tokenizer, vocab_size), limits
        self._going: dict[Structure, _Going] = {}
        self._one = asyncio.Lock()

    async def get(self, structure: Structure) -> Grammar:
        """The grammar of a structure. One that is known comes at once.

        Raises:
            GrammarError: it cannot be held, or takes too much to compile.
        """
        if (grammar := known_grammar(structure, *self._where)) is not None:
            return grammar
        if (going := self._going.get(structure)) is None:
            going = self._going[structure] = _Going(asyncio.create_task(self._compile(structure)))
        going.waiting += 1
        try:
            return await asyncio.shield(going.task)
        finally:
            going.waiting -= 1
            if not going.waiting:
                going.task.cancel()
                del self._going[structure]

    async def _compile(self, structure: Structure) -> Grammar:
        async with self._one:
            automaton = await self._automaton(structure)
            return await asyncio.to_thread(grammar_over, automaton, structure, *self._where)

    async def _automaton(self, structure: Structure) -> ByteAutomaton:
        """The automaton over bytes, from another process."""
        limits = self._limits
        numbers = limits.grammar_seconds, limits.grammar_bytes, limits.grammar_states
        # It finds the modules that this process has found. Threads of linear algebra would need memory for nothing.
        found = os.pathsep.join(path or os.getcwd() for path in sys.path)
        process = Popen(  # not asyncio's, because that of uvloop runs what JAX has for forks
            [sys.executable, "-P", "-m", "specjax.serving.compiling", *map(str, numbers)],
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,  # Ctrl-C is for the server
            env={**os.environ, "PYTHONPATH": found, "OPENBLAS_NUM_THREADS": "1"},
        )
        try:
            asked = json.dumps([structure.kind, structure.text]).encode()
            said, _ = await asyncio.to_thread(process.communicate, asked)
        finally:
            process.kill()
        if process.returncode == 0:
            return unpacked(said)
        if process.returncode == REFUSED:
            raise GrammarError(said.decode())
        if process.returncode == TOO_MUCH or process.returncode < 0:  # ended by a limit
            raise GrammarError(
                f"the grammar needs more than {limits.grammar_seconds} seconds or {limits.grammar_bytes >> 20} MiB to"
                " compile; write a simpler one, with less or shorter repetitions"
            )
        raise RuntimeError(f"the process that compiles grammars ended with status {process.returncode}")
