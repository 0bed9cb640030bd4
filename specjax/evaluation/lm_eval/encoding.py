"""From the texts of requests to the tokens that are scored. The rules are those of the harness, so that its scores of
several programs can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from checkpoints import TextTokenizer
from specjax.errors import PromptError


class Pair(NamedTuple):
    """Token ids of a prompt, which is not empty, and of what is scored after it."""

    prompt: list[int]
    continuation: list[int]


def encode(tokenizer: TextTokenizer, text: str) -> list[int]:
    """Token ids of a text. Tokens that stand before every text are there once, also if the text writes them out."""
    tokens, leading = tokenizer.encode(text), list(tokenizer.vocabulary.leading)
    written = tokens[len(leading) :][: len(leading)] == leading
    return tokens[len(leading) :] if written else tokens


def encode_pair(tokenizer: TextTokenizer, context: str, continuation: str, prefix: int) -> Pair:
    """A context and its continuation, encoded together and then parted.

    Spaces at the end of the context belong to the continuation, because tokens begin with the space before a word. What
    follows an empty context follows the prefix token.

    Raises:
        PromptError: nothing is left to be scored.
    """
    if context:
        spaces = len(context) - len(context.rstrip())
        start = encode(tokenizer, context[: len(context) - spaces])
        whole = encode(tokenizer, context + continuation)
        pair = Pair(start, whole[len(start) :])
    else:
        tokens = tokenizer.encode(continuation)[len(tokenizer.vocabulary.leading) :]
        pair = Pair(tokens[:1], tokens[1:]) if tokens[:1] == [prefix] else Pair([prefix], tokens)
    if not pair.prompt or not pair.continuation:
        raise PromptError(
            f"there is nothing to score: {continuation!r} adds no token to the context {context[-40:]!r}; give a"
            " continuation that does, for example one that begins with a space"
        )
    return pair


def within(pair: Pair, most: int) -> Pair:
    """The pair without tokens at its start, so that at most so many are fed; the last token of a pair is not fed.

    Raises:
        PromptError: the continuation alone is too long.
    """
    prompt, continuation = pair
    if len(continuation) > most:
        raise PromptError(f"a continuation has {len(continuation)} tokens; at most {most} fit, so score less at once")
    return Pair(prompt[-(most + 1 - len(continuation)) :], continuation)


def windows(tokens: Sequence[int], prefix: int, most: int) -> Iterator[Pair]:
    """A long text as pairs whose continuations are all of its tokens, each once; at most so many tokens are fed.

    The first token follows the prefix. The first token of a full window follows one token of context; the last window
    has as much context as there is room for.
    """
    done = min(most, len(tokens))
    if tokens:
        yield Pair([prefix], list(tokens[:done]))
    while done < len(tokens):
        end = min(done + most, len(tokens))
        yield Pair(list(tokens[end - most - 1 : done]), list(tokens[done:end]))
        done = end
