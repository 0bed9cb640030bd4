"""Malformed bodies by the thousand: each is answered by an error of the client's kind, and no seat is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from running import Running

VALID: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "a", "max_tokens": 1, "temperature": 0.5, "seed": 1, "stop": ["x"], "logprobs": 1}),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "top_p": 0.9, "n": 1, "stream": False},
    ),
    ("/v1/completions", {"prompt": [1], "max_tokens": 1, "logit_bias": {"5": 1}, "presence_penalty": 1}),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "a"}],
            "max_tokens": 1,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
    ),
    ("/tokenize", {"content": "a", "add_special": False}),
    ("/detokenize", {"tokens": [1, 2]}),
    ("/sessions/none/rewind", {"length": 1}),
]
WRONG: list[Any] = [
    *(None, True, -1, 1.5, 10**30, -(10**30), "", "x" * 5000, [], {}, [[]], [{}], {"a": {}}, [None], ["a", 1]),
    *(2**31, -(2**63), 1e308, "\u0000", "\ufeff", "..", [[[[]]]], {"type": "json_schema"}, {"type": 3}, [1, [2]]),
]
BAD_NUMBERS = (b"NaN", b"Infinity", b"-", b"1e999", b"0x1", b"01")


def mutated(rng: random.Random) -> tuple[str, bytes]:
    """A path and a body that is wrong there, whichever way."""
    path, body = rng.choice(VALID)
    text = json.dumps(body).encode()
    match rng.choice([kind for kind in range(6) if kind != 4 or b"1" in text]):
        case 0:  # cut off
            return path, text[: rng.randrange(len(text))]
        case 1:  # bytes that are no UTF-8, or no JSON
            at = rng.randrange(len(text))
            return path, text[:at] + bytes([rng.choice([0x00, 0x01, 0x80, 0xC0, 0xFF])]) + text[at:]
        case 2:  # a field that does not exist
            return path, json.dumps({**body, f"field{rng.randrange(1000)}": rng.choice(WRONG)}).encode()
        case 3:  # no object
            return path, json.dumps(rng.choice([*WRONG, [body]])).encode()
        case 4:  # a number that is none
            return path, text.replace(b"1", rng.choice(BAD_NUMBERS), 1)
        case _:  # very deep
            return path, b'{"prompt":' * rng.randrange(300, 5000) + b"1"


def bodies(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    rng = random.Random(seed)
    return (mutated(rng) for _ in range(count))


def check(running: Running, seed: int, count: int) -> None:
    failures = running.service.metrics.registry.get_sample_value
    with running.client() as client:
        for path, body in bodies(seed, count):
            answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
            assert 400 <= answer.status_code < 500, (path, body[:200], answer.text[:200])
            error = answer.json()["error"]
            assert isinstance(error["message"], str)
            assert error["type"].endswith("error")
        running.settle()
        assert failures("specjax_engine_failures_total") in (0, 1)  # another test lets one fail
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_some_hundred_malformed_bodies(running: Running) -> None:
    check(running, 0, 300)


@pytest.mark.slow
def test_ten_thousand_malformed_bodies(running: Running) -> None:
    check(running, 1, 10_000)


def test_fields_of_any_value_are_answered(running: Running) -> None:
    """Values that may be right or wrong: whatever they are, there is an answer, and it is no failure."""
    rng = random.Random(2)
    with running.client() as client:
        for _ in range(100):
            path, body = rng.choice(VALID[:2])
            body = {**body, rng.choice(list(body)): rng.choice(WRONG)}
            answer = client.post(path, json={**body, "max_tokens": 1})
            assert answer.status_code < 500, (path, body, answer.text[:200])
    running.settle()
