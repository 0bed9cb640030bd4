"""What a user gives as a prompt, and what is wrong with it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checkpoints import TextTokenizer
from specjax.decoding.grammar import Grammar
from specjax.errors import PromptError, SpecjaxError
from specjax.models.protocol import Target

Prompt = str | Sequence[int]
"""A text, or token ids."""


def encode(prompt: Prompt, tokenizer: TextTokenizer | None, path: Path) -> list[int]:
    """Token ids of a prompt given as text, or the ids themselves.

    Args:
        prompt: what is to be continued.
        tokenizer: the model's, if it has one.
        path: the model's, for messages.

    Raises:
        PromptError: it is neither text nor token ids; or the text has half a surrogate pair, or a byte of the command
            line that is not UTF-8.
        SpecjaxError: there is no tokenizer for it.
    """
    if not isinstance(prompt, str):
        return token_ids(prompt)
    if tokenizer is None:
        raise SpecjaxError(
            f"{path} has no usable tokenizer; give the prompt as token ids"
            " (load it with need_tokenizer=True to learn what is wrong)"
        )
    check_text(prompt)
    return tokenizer.encode(prompt)


def encode_further(text: Prompt, tokenizer: TextTokenizer | None, path: Path) -> list[int]:
    """The same for what follows a prompt: the tokens that stand before every text are left out.

    Raises:
        PromptError, SpecjaxError: as `encode`.
    """
    tokens = encode(text, tokenizer, path)
    leading = len(tokenizer.vocabulary.leading) if tokenizer is not None and isinstance(text, str) else 0
    return tokens[leading:]


def check_text(text: str, name: str = "the prompt") -> None:
    """Raise `PromptError` for a text with half a surrogate pair, or a byte of the command line that is not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{name} is not Unicode text: {error.reason} at character {error.start},"
            f" {text[error.start : error.end]!r}; leave it out"
        ) from error


def token_ids(prompt: Any, name: str = "the prompt") -> list[int]:
    """The ids of a prompt that is not a text, or of an array; `PromptError` if they are no whole numbers."""
    if isinstance(prompt, bytes | bytearray):
        raise PromptError(f"{name} is bytes; decode it to a text first: prompt.decode()")
    try:
        tokens = list(prompt)
    except TypeError:
        raise PromptError(f"{name} is {prompt!r}; give a text, or a list of token ids") from None
    if wrong := [token for token in tokens if not _is_whole(token)]:
        raise PromptError(f"{name} has {wrong[:3]!r} among its token ids; give a text, or whole numbers only")
    return [operator.index(token) for token in tokens]


def _is_whole(number: Any) -> bool:
    """Whether it is a whole number of Python, NumPy or JAX."""
    try:
        operator.index(number)
    except TypeError:
        return False
    return not isinstance(number, bool)


def several(texts: Any, name: str, for_one: str) -> list[Any]:
    """The texts as a list; `PromptError` if they are one text, which a method `for_one` takes, or are not several."""
    if isinstance(texts, str | bytes):
        raise PromptError(f"{name} is one text, {texts[:20]!r}; give a list of {name}, or call {for_one}")
    try:
        return list(texts)
    except TypeError:
        raise PromptError(f"{name} is {texts!r}; give a list of {name}") from None


def check_choices(choices: Sequence[Prompt]) -> None:
    """Raise `PromptError` if one of the choices is empty: it would always be the best one."""
    if empty := [index for index, choice in enumerate(choices) if len(choice) == 0]:
        raise PromptError(f"choices[{empty[0]}] is empty; the probability of no text is 1: give each at least a token")


def check_begun(grammar: Grammar, begun: Sequence[int]) -> None:
    """Raise `PromptError` if the part of a text that has been said is not one that its grammar allows."""
    try:
        grammar.after(begun)
    except ValueError as error:
        raise PromptError(
            f"the prompt ends in a reply that goes on, but does not begin as its grammar wants: {error}; rewind the"
            " session further, or begin another one with this prompt"
        ) from None


def check_prompts(target: Target, prompts: Sequence[Sequence[int]], new_tokens: int = 1) -> None:
    """Raise `PromptError` for a prompt that is empty, leaves no room for new tokens, or has ids outside the vocabulary.

    Args:
        target: says how long its context is, and how large its vocabulary.
        prompts: token ids.
        new_tokens: how many the context must hold beside the prompt; -1 if the prompt's last token is not fed.
    """
    for index, prompt in enumerate(prompts):
        name = "the prompt" if len(prompts) == 1 else f"prompt {index}"
        if not len(prompt):
            raise PromptError(f"{name} is empty; give at least one token of text to continue")
        if len(prompt) + new_tokens > target.context_length:
            limit = f"must also hold {new_tokens} more" if new_tokens > 0 else "is shorter"
            raise PromptError(
                f"{name} has {len(prompt)} tokens; the model's context of {target.context_length} {limit}: shorten the"
                " prompt"
            )
        outside = [token for token in prompt if not 0 <= token < target.vocab_size]
        if outside:
            raise PromptError(
                f"{name} has token ids outside the vocabulary of {target.vocab_size} (0 to {target.vocab_size - 1}):"
                f" {outside[:10]}"
            )
