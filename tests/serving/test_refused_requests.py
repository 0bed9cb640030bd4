"""What cannot be done is answered in OpenAI's error form, and costs no seat."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from running import Running

LONG = "x = 1\n" * 400
CHAT = {"messages": [{"role": "user", "content": "a"}]}

REFUSED: list[tuple[str, dict[str, Any], str | None]] = [
    ("completions", {"prompt": "a", "temperature": -1}, "temperature"),
    ("completions", {"prompt": "a", "temperature": "hot"}, "temperature"),
    ("completions", {"prompt": "a", "top_p": 0}, "top_p"),
    ("completions", {"prompt": "a", "top_k": -2}, "top_k"),
    ("completions", {"prompt": "a", "draft": 4}, "draft"),
    ("completions", {"prompt": "a", "draft": "much"}, "draft.int"),
    ("completions", {"prompt": "a", "draft_by": "eagle"}, "draft_by"),
    ("completions", {"prompt": "a", "draft_by": []}, "draft_by"),
    ("completions", {"prompt": "a", "draft_by": 1}, "draft_by.str"),
    ("completions", {"prompt": "a", "accept": "all"}, "accept"),
    ("completions", {"prompt": "a", "p_min": 2}, "p_min"),
    ("completions", {"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias"),
    ("completions", {"prompt": "a", "logit_bias": {"five": 1}}, "logit_bias"),
    ("completions", {"prompt": "a", "logit_bias": {"4096": 1}}, None),
    ("completions", {"prompt": "a", "logit_bias": {str(token): 1 for token in range(301)}}, "logit_bias"),
    ("completions", {"prompt": "a", "presence_penalty": 2.5}, "presence_penalty"),
    ("completions", {"prompt": "a", "frequency_penalty": -3}, "frequency_penalty"),
    ("completions", {"prompt": "a", "best_of": 3}, "best_of"),
    ("completions", {"prompt": "a", "suffix": "b"}, "suffix"),
    ("completions", {"prompt": "a", "logprobs": 21}, "logprobs"),
    ("completions", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ("completions", {"prompt": "a", "max_tokens": 301}, "max_tokens"),
    ("completions", {"prompt": "a", "n": 17}, "n"),
    ("completions", {"prompt": "a", "stop": [""]}, "stop"),
    ("completions", {"prompt": "a", "stop": ["a"] * 65}, "stop"),
    ("completions", {"prompt": "a", "stop": ["é" * 1024, "é" * 1025]}, "stop"),
    ("completions", {"prompt": "a", "unknown": 1}, "unknown"),
    ("completions", {"prompt": {"text": "a"}}, "prompt"),
    ("completions", {"prompt": [[1], "a"]}, "prompt"),
    ("completions", {"prompt": []}, "prompt"),
    ("completions", {"prompt": ""}, "prompt"),
    ("completions", {"prompt": [4096]}, "prompt"),
    ("completions", {"prompt": [-1]}, "prompt"),
    ("completions", {"prompt": LONG}, "prompt"),
    ("completions", {}, "prompt"),
    ("completions", {"prompt": "a", "regex": "a(b"}, None),
    ("completions", {"prompt": "a", "regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
    ("completions", {"prompt": "a", "json_schema": {"type": "object", "minimum": 3}}, None),
    ("completions", {"prompt": "a", "session": "nobody"}, "session"),
    ("completions", {"prompt": "a", "session": "../x"}, "session"),
    ("chat/completions", {"messages": []}, "messages"),
    ("chat/completions", {"messages": [{"role": "wizard", "content": "a"}]}, "messages.0.role"),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}, "top_logprobs"),
    ("chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "prompt"),
    ("chat/completions", {**CHAT, "tool_choice": "required"}, "tool_choice"),
    ("chat/completions", {**CHAT, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
]


@pytest.mark.parametrize(("path", "body", "param"), REFUSED, ids=lambda value: json.dumps(value)[:60])
def test_wrong_bodies_are_refused_and_say_what_is_wrong(
    client: httpx.Client, path: str, body: dict[str, Any], param: str | None
) -> None:
    for stream in (False, True):
        answer = client.post(f"/v1/{path}", json={**body, "stream": stream})
        assert answer.status_code in (400, 404)
        error = answer.json()["error"]
        assert error["type"] in ("invalid_request_error", "not_found_error")
        assert error["message"]
        if param is not None:
            assert error["param"] == param


def test_an_unknown_drafter_is_answered_with_the_names_of_those_that_there_are(client: httpx.Client) -> None:
    for path, more in (("completions", {"prompt": "a"}), ("chat/completions", CHAT)):
        answer = client.post(f"/v1/{path}", json={**more, "draft_by": ["mtp", "eagle"]})
        assert "draft_by is 'eagle', but the model's drafters are 'ngram', 'mtp'" in answer.json()["error"]["message"]


def test_a_prompt_far_too_long_is_refused_before_it_is_encoded(
    client: httpx.Client, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*arguments: object) -> list[int]:
        raise AssertionError("a long text takes seconds to encode")

    monkeypatch.setattr(running.service.tokenizer, "encode", encode)
    client.post("/sessions", json={"id": "long"})
    text = "ab " * 30_000
    bodies = [{"prompt": text}, {"prompt": [text]}, {"prompt": text, "session": "long"}]
    chat = {"messages": [{"role": "user", "content": text}]}
    for path, body in [*(("completions", each) for each in bodies), ("chat/completions", chat)]:
        answer = client.post(f"/v1/{path}", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert "the prompt has at least 7" in answer.json()["error"]["message"]
    client.delete("/sessions/long")


def test_messages_show_no_path_of_the_machine(client: httpx.Client, running: Running) -> None:
    folder = str(running.model.path.parent)
    for path, body, _ in REFUSED:
        assert folder not in client.post(f"/v1/{path}", json=body).text


def test_bodies_that_are_no_json_objects_are_refused(client: httpx.Client) -> None:
    head = {"Content-Type": "application/json"}
    for body in (b"", b"{", b"null", b"[]", b"\xff", b'"' + b"a" * 99, b"[" * 50_000, b'{"prompt": "\\ud800"}', b"NaN"):
        answer = client.post("/v1/completions", content=body, headers=head)
        assert answer.status_code == 400, body[:20]
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert client.post("/v1/completions", content=b"{}").status_code == 415
    assert client.post("/v1/completions", content=b"x" * 100_001, headers=head).status_code == 413
    chunks = (b"x" * 1000 for _ in range(200))
    assert client.post("/v1/completions", content=chunks, headers=head).status_code == 413


def test_unknown_paths_and_methods_have_the_same_form(client: httpx.Client) -> None:
    assert client.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert client.get("/v1/completions").status_code == 405
    assert client.get("/v1/models/other").json()["error"]["code"] == "model_not_found"


def test_the_key_is_asked_for_everywhere_but_for_health(running: Running) -> None:
    with httpx.Client(base_url=running.url) as stranger:
        assert stranger.get("/health").json() == {"status": "ok"}
        for path in ("/v1/models", "/metrics", "/slots", "/sessions", "/nothing"):
            answer = stranger.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        for value in ("Bearer", "Bearer wrong", "Basic a key", "a key", "Bearer a key2"):
            assert stranger.get("/v1/models", headers={"Authorization": value}).status_code == 401
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="wrong", max_retries=0).models.list()


def test_other_names_and_other_sites_are_kept_out(client: httpx.Client) -> None:
    assert client.get("/v1/models", headers={"Host": "rebound.example"}).status_code == 421
    assert client.get("/v1/models", headers={"Host": "["}).status_code == 421
    of_openai = "authorization,content-type,x-stainless-lang,x-stainless-retry-count"
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": of_openai}
    allowed = client.options("/v1/completions", headers={**asked, "Origin": "https://page.example"})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://page.example"
    assert "x-stainless-lang" in allowed.headers["access-control-allow-headers"]
    other = client.options("/v1/completions", headers={**asked, "Origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers


def test_a_body_that_does_not_come_is_given_up(running: Running) -> None:
    address = urlsplit(running.url)
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer a key\r\n"
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=20) as slow:
        slow.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{{".encode())
        assert slow.recv(1000).startswith(b"HTTP/1.1 408")


def test_openai_errors_have_the_types_of_the_client(running: Running) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        running.openai.completions.create(model="other", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        running.openai.completions.create(model="demo", prompt="a", temperature=-1)
    assert bad.value.param == "temperature"
    assert [model.id for model in running.openai.models.list()] == ["demo"]
    running.settle()
