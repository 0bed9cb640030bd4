"""A person and a model in turns, on top of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from checkpoints import TextTokenizer
from checkpoints.tokenizers.chat_template import Message, render
from specjax.errors import SpecjaxError
from specjax.runtime.batch import Emission
from specjax.runtime.generation import Generation
from specjax.runtime.prompt_text import check_text
from specjax.sessions.session import Session


@dataclass(frozen=True)
class Chat:
    """A conversation. A turn gives a new one, and the old one stays as it was: keep it to take the turn back.

    A tokenizer with a chat template gets the conversation by its rules. Without one, what is said is a line of one long
    text, which the model goes on with.

    Attributes:
        session: what has been computed.
        messages: what has been said.
        tokens: the conversation as a text without template: what the next line follows.
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
            raise SpecjaxError(f"{self.session.model.path} has no usable tokenizer, and a chat is text")
        return tokenizer

    @property
    def has_template(self) -> bool:
        """Whether the model says how a conversation is written."""
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
        self, text: str, max_tokens: int | None = None, observe: Callable[[Emission], None] | None = None
    ) -> tuple[Generation, Chat]:
        """One turn.

        Args:
            text: what the person says.
            max_tokens, observe: see `Session.generate`.

        Returns:
            The reply, and the chat after it.

        Raises:
            TokenizerError: the chat template does not take the conversation.
            PromptError: it does not fit the session, or is not Unicode text.
        """
        prompt = self.prompt(text)
        reply, session = self.session.generate(prompt, max_tokens, observe)
        return reply, replace(self.after(text, reply.tokens), session=session)

    def after(self, text: str, reply: Sequence[int]) -> Chat:
        """The chat after a turn of which the session knows nothing: one that was broken off, say."""
        said = self.session.model.decode(reply)
        messages = (*self._with("user", text), Message(role="assistant", content=said))
        return replace(self, messages=messages, tokens=(*self.prompt(text), *reply))

    def _with(self, role: str, text: str) -> tuple[Message, ...]:
        return (*self.messages, Message(role=role, content=text))


def open_chat(session: Session, system: str | None = None) -> Chat:
    """A chat in which nothing has been said; `system` is what the model is told before all else."""
    return Chat(session, () if system is None else (Message(role="system", content=system),))
