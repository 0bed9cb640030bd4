"""A conversation between a person and a model, on top of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

from checkpoints import TextTokenizer
from checkpoints.tokenizers.chat_template import Message, render
from specjax.errors import SpecjaxError
from specjax.runtime.generation import Generation
from specjax.runtime.options import OptionChanges
from specjax.runtime.prompts import check_text
from specjax.runtime.request import Update
from specjax.sessions.session import Session


@dataclass(frozen=True)
class Chat:
    """A conversation. A turn returns a new one. The old one does not change: keep it to take the turn back.

    If the tokenizer has a chat template, the conversation is written by it. Without one the conversation is one long
    text: each turn adds a line, and the model continues.

    Attributes:
        session: the session, which holds everything that was computed.
        messages: all messages so far, of both sides.
        tokens: the conversation as one text, if there is no chat template; the next line is appended to it.
    """

    session: Session
    messages: tuple[Message, ...] = ()
    tokens: tuple[int, ...] = field(default=(), repr=False)

    @property
    def tokenizer(self) -> TextTokenizer:
        """
        Raises:
            SpecjaxError: the model has none.
        """
        tokenizer = self.session.model.tokenizer
        if tokenizer is None:
            raise SpecjaxError(
                f"{self.session.model.path} has no usable tokenizer, which a chat needs; use a session with token ids"
            )
        return tokenizer

    @property
    def has_template(self) -> bool:
        """Whether the tokenizer has a chat template."""
        return self.tokenizer.vocabulary.chat_template is not None

    def prompt(self, text: str) -> list[int]:
        """Token ids of the conversation with `text` said.

        Raises:
            PromptError: what was said is not Unicode text.
            TokenizerError: the chat template does not take it.
        """
        for message in self._with("user", text):
            check_text(message["content"])
        if self.has_template:
            return self.tokenizer.encode(render(self.tokenizer, self._with("user", text)))
        system = "".join(message["content"] + "\n" for message in self.messages[:1] if message["role"] == "system")
        if not self.tokens:
            return self.tokenizer.encode(f"{system}{text}\n")
        ended = self.tokenizer.decode(self.tokens[-1:], special=False).endswith("\n")
        return [*self.tokens, *self.tokenizer.encode(("" if ended else "\n") + text + "\n", special=False)]

    def say(
        self, text: str, observe: Callable[[Update], None] | None = None, **changes: Unpack[OptionChanges]
    ) -> tuple[Generation, Chat]:
        """One turn.

        Args:
            text: what the person says.
            observe, changes: see `Session.generate`.

        Returns:
            The reply, and the chat after it.

        Raises:
            TokenizerError: the chat template does not take the conversation.
            PromptError: it does not fit the session, or is not Unicode text.
        """
        prompt = self.prompt(text)
        reply, session = self.session.generate(prompt, observe, **changes)
        return reply, replace(self.after(text, reply.tokens), session=session)

    def after(self, text: str, reply: Sequence[int]) -> Chat:
        """The chat after a turn that the session has not seen, for example one that was interrupted."""
        said = self.session.model.decode(reply)
        messages = (*self._with("user", text), Message(role="assistant", content=said))
        return replace(self, messages=messages, tokens=(*self.prompt(text), *reply))

    def _with(self, role: str, text: str) -> tuple[Message, ...]:
        return (*self.messages, Message(role=role, content=text))


def open_chat(session: Session, system: str | None = None) -> Chat:
    """A new chat. `system` is the text of the system message, None for no such message."""
    return Chat(session, () if system is None else (Message(role="system", content=system),))
