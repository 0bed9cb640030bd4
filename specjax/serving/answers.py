"""Parts of answers that both kinds of completions have: choices as they grow, log-probabilities, usage, traces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkpoints import StreamDecoder, TextTokenizer
from specjax.runtime.request import TokenLogprobs
from specjax.serving.errors import ApiError
from specjax.serving.parts import End, Made, Part

REASONS = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}
"""Why a text ends, in OpenAI's words."""


@dataclass
class Choice:
    """A text as it grows.

    Attributes:
        text, tokens, logprobs, made: of all parts so far.
        end: how it ended, once it has.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    end: End | None = None

    def add(self, part: Part) -> None:
        """Take in a part.

        Raises:
            ApiError: the model's logits were no numbers, so that its tokens mean nothing.
        """
        self.text += part.text
        self.tokens += part.tokens
        self.logprobs += part.logprobs
        self.made += part.made
        self.end = part.end
        if part.end is not None and not part.end.finite:
            raise ApiError(500, "the model's logits are not finite numbers, and its tokens mean nothing")


def reason_of(end: End | None) -> str | None:
    """Why a text ended, in OpenAI's words; None if it goes on."""
    return None if end is None else REASONS[end.reason]


def spelled(tokenizer: TextTokenizer, token: int) -> str:
    """A token as text; of one that is no whole characters, its bytes, as OpenAI writes them."""
    data = _bytes(tokenizer, token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _bytes(tokenizer: TextTokenizer, token: int) -> bytes:
    return tokenizer.decode_bytes([token]) if token < tokenizer.vocab_size else b""


class Places:
    """Where in a text its tokens begin, as characters from its start.

    A character of several tokens is there with the last of them. All of them begin where it stands.
    """

    def __init__(self, tokenizer: TextTokenizer, begin: int = 0, *, special: bool = False) -> None:
        """
        Args:
            tokenizer: spells tokens.
            begin: where the first token begins.
            special: whether the text shows control tokens.
        """
        self._text, self._vocab_size, self._place = tokenizer.stream(special), tokenizer.vocab_size, begin

    def of(self, tokens: Iterable[int]) -> list[int]:
        """The places of the next tokens."""
        places = []
        for token in tokens:
            places.append(self._place)
            if token < self._vocab_size:
                self._place += len(self._text.push([token]))
        return places


def completion_logprobs(
    tokenizer: TextTokenizer,
    tokens: Sequence[int],
    logprobs: Sequence[TokenLogprobs | None],
    places: Sequence[int],
) -> dict[str, Any]:
    """Log-probabilities in the form of /v1/completions.

    Args:
        tokenizer: spells tokens.
        tokens, logprobs: at each of them; None for the first token of a text, which follows nothing.
        places: where in the text they begin.
    """
    return {
        "tokens": [spelled(tokenizer, token) for token in tokens],
        "token_logprobs": [None if each is None else each.logprob for each in logprobs],
        "top_logprobs": [
            None if each is None else {spelled(tokenizer, token): logprob for token, logprob in reversed(each.top)}
            for each in logprobs
        ],
        "text_offset": list(places),
    }


def chat_logprobs(
    tokenizer: TextTokenizer, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], top: int
) -> dict[str, Any]:
    """Log-probabilities in the form of /v1/chat/completions, with so many alternatives at each token."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = _bytes(tokenizer, token)
        return {"token": spelled(tokenizer, token), "logprob": logprob, "bytes": list(data)}

    return {
        "content": [
            {**entry(token, each.logprob), "top_logprobs": [entry(*other) for other in each.top[:top]]}
            for token, each in zip(tokens, logprobs, strict=True)
        ],
        "refusal": None,
    }


def trace_of(tokenizer: TextTokenizer, made: Iterable[Made], text: StreamDecoder) -> list[dict[str, Any]]:
    """How tokens were made.

    Args:
        tokenizer: spells drafts.
        made: the tokens.
        text: turns the tokens of the choice into text; those that complete no character have none.
    """
    return [
        {
            "token": each.token,
            "text": text.push([each.token]) if each.token < tokenizer.vocab_size else "",
            "place": each.place,
            "rejected": [
                {"token": token, "text": _bytes(tokenizer, token).decode(errors="replace")} for token in each.rejected
            ],
        }
        for each in made
    ]


def usage_of(ends: Sequence[End], prompts: Sequence[int]) -> dict[str, Any]:
    """What a request cost, and what drafts brought.

    Args:
        ends: of all its texts.
        prompts: tokens of each of its prompts, which count once however many texts go on from them.
    """
    stats = [end.stats for end in ends]
    rounds, tokens = sum(each.rounds for each in stats), sum(each.tokens for each in stats)
    drafted, accepted = sum(each.drafted for each in stats), sum(each.accepted for each in stats)
    generated = sum(end.tokens for end in ends)
    return {
        "prompt_tokens": sum(prompts),
        "completion_tokens": generated,
        "total_tokens": sum(prompts) + generated,
        "prompt_tokens_details": {"cached_tokens": min(sum(end.reused for end in ends), sum(prompts))},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
        "drafting": {
            "rounds": rounds,
            "tokens_per_round": tokens / rounds if rounds else 0.0,
            "drafted": drafted,
            "accepted": accepted,
            "drafted_by_position": _sums([each.drafted_by_position for each in stats]),
            "accepted_by_position": _sums([each.accepted_by_position for each in stats]),
            "drafted_by_drafter": _sums([each.drafted_by_drafter for each in stats]),
            "accepted_by_drafter": _sums([each.accepted_by_drafter for each in stats]),
        },
    }


def _sums(lists: Sequence[Sequence[int]]) -> list[int]:
    longest = max(map(len, lists), default=0)
    return [sum(each[place] for each in lists if place < len(each)) for place in range(longest)]
