"""`specjax chat`: talk with a model, line by line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specjax.cli.options import add_command, add_decoding_options, add_model_options, generate_options, load_model
from specjax.cli.runtime import UsageError, message_of, say

if TYPE_CHECKING:
    from specjax.runtime.generation import Generation
    from specjax.runtime.request import Update
    from specjax.sessions.chat import Chat

DESCRIPTION = """\
Talk with a model. Each line of the standard input is a turn; the replies go to the standard output as they come, and
what they cost to the standard error.

Every turn starts from the caches of the turns before: only what is new is computed. If the model brings a chat
template, the conversation is written by it. Without one, as with the bundled model, it is one text: the model goes on
after each line, in replies of at most 64 tokens unless --max-tokens says otherwise (with a template: 1024).
"""

EPILOG = """\
while it runs:
  /undo      take the last turn back
  /exit      leave; so does Ctrl-D
  Ctrl-C     break the reply off; what has been said of it stays

examples:
  specjax chat                                          the bundled model goes on with what you type: try  class Stack:
  specjax chat --model gemma-4-E2B-it-Q8_0.gguf --drafter assistant.gguf --system "Answer in one sentence."
  printf 'What is JAX?\\nAnd who uses it?\\n' | specjax chat --model Qwen3.6-27B-Q4_K_M.gguf > replies.txt
"""

REPLY_TOKENS, LINE_TOKENS = 1024, 64


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(subparsers, "chat", "talk with a model, line by line", DESCRIPTION, EPILOG, run)
    add_model_options(parser)
    chat = parser.add_argument_group("conversation")
    chat.add_argument("--system", metavar="TEXT", help="what the model is told before all else")
    chat.add_argument(
        "--slots", type=int, metavar="N", help="tokens that the conversation can hold (default: 4096 or the context)"
    )
    chat.add_argument("--shift", action="store_true", help="when it is full, drop the oldest tokens and go on")
    chat.add_argument("--quiet", action="store_true", help="replies only: no line about each turn")
    add_decoding_options(parser, most_tokens=f"{REPLY_TOKENS} with a chat template, else {LINE_TOKENS}")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    options = generate_options(args)
    from specjax.sessions.chat import open_chat

    model = load_model(args, need_tokenizer=True)
    session = model.session(options, slots=args.slots, when_full="shift" if args.shift else "error")
    chat = open_chat(session, args.system)
    if args.max_tokens is None:
        args.max_tokens = REPLY_TOKENS if chat.has_template else LINE_TOKENS
    earlier: list[Chat] = []
    for line in _agreed(_lines()):
        if line == "/exit":
            break
        if line == "/undo":
            say("the last turn is taken back" if earlier else "there is no turn to take back")
            chat = earlier.pop() if earlier else chat
        elif line.startswith("/") and line[1:].isalpha():
            say(f"{line} is no command; there are /undo and /exit")
        elif line.strip():
            before, chat = chat, _turn(chat, line, args)
            if chat is not before:
                earlier.append(before)
    return 0


def _lines() -> Iterator[str]:
    """What the person types, or what a pipe brings."""
    if not sys.stdin.isatty():
        for line in sys.stdin.buffer:
            try:
                yield line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UsageError(f"the standard input is not UTF-8 text: {error}") from error
        return
    import readline  # noqa: F401  line editing and history for input()

    while True:
        try:
            yield input("> " if sys.stdout.isatty() else "")
        except KeyboardInterrupt:
            print(file=sys.stderr)
            say("Ctrl-D or /exit leaves")
        except EOFError:
            print(file=sys.stderr)
            return


def _agreed(lines: Iterator[str]) -> Iterator[str]:
    """The lines that process 0 has, in every process."""
    from specjax.mesh.hosts import agreed, is_first

    while (line := agreed(next(lines, None) if is_first() else None)) is not None:
        yield line


def _turn(chat: Chat, line: str, args: argparse.Namespace) -> Chat:
    """Let the model reply. The chat stays as it is if the turn cannot be taken."""
    from specjax.mesh.hosts import several

    reply = _Reply(chat)
    try:
        generation, after = chat.say(line, reply.add, max_tokens=args.max_tokens)
    except KeyboardInterrupt:
        if several():  # the others go on with the reply
            raise
        reply.end()
        say("broken off")
        return chat.after(line, reply.tokens) if reply.tokens else chat
    except Exception as error:
        if (message := message_of(error)) is None or not sys.stdin.isatty() or several():
            raise
        say(f"error: {message}")
        return chat
    reply.end()
    if generation.finish_reason == "context":
        say(
            f"the reply is cut off: all {after.session.slots} slots of the conversation are taken; /undo and ask for"
            " less, or start again with more --slots, or with --shift to drop the oldest tokens"
        )
    if not args.quiet:
        say(_cost(generation, after))
    return after


class _Reply:
    """Prints a reply as it comes."""

    def __init__(self, chat: Chat) -> None:
        self.tokens: list[int] = []
        text = chat.session.model.watch(chat.session.options.stop)
        assert text is not None, "a chat has a tokenizer"
        self._text = text
        self._last = ""

    def add(self, update: Update) -> None:
        self.tokens += update.tokens
        self._text.push(update.tokens)
        self._print(self._text.shown())

    def end(self) -> None:
        self._print(self._text.rest())
        if not self._last.endswith("\n"):
            print(flush=True)

    def _print(self, text: str) -> None:
        if text:
            print(text, end="", flush=True)
            self._last = text


def _cost(generation: Generation, after: Chat) -> str:
    reuse, stats = after.session.reuse, generation.stats
    assert reuse is not None
    drafted = f", {stats.tokens_per_round:.2f} tokens a round" if stats.drafted else ""
    return (
        f"{len(generation.tokens)} tokens at {generation.tokens_per_second:.0f} tok/s{drafted};"
        f" prompt of {reuse.reused + reuse.fed}: {reuse.reused} reused, {reuse.fed} fed"
    )
