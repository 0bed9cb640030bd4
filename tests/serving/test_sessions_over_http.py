"""Sessions over HTTP: what they say is what a conversation says that is computed anew."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from running import DRAFTS, SEATS, SLOTS, Running, serving

import specjax
from specjax.serving.app import Access
from specjax.serving.errors import ApiError
from specjax.serving.service import Settings


def said(client: httpx.Client, session: str | None, prompt: Any, **more: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **more}
    answer = client.post("/v1/completions", json=body if session is None else {**body, "session": session})
    assert answer.status_code == 200, answer.text
    return answer.json()


def text_of(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["text"]


def tokens_of(client: httpx.Client, answer: dict[str, Any]) -> list[int]:
    return [each["token"] for each in answer["choices"][0]["trace"]]


def test_turns_forks_and_going_back_say_what_fresh_texts_say(client: httpx.Client, running: Running) -> None:
    assert client.post("/sessions", json={"id": "a"}).status_code == 201
    model, first = running.model, "def add(a, b):\n"
    begun = said(client, "a", first, trace=True)
    assert text_of(begun) == text_of(said(client, None, first))
    conversation = [*model.encode(first), *tokens_of(client, begun)]
    told = client.get("/sessions/a").json()
    assert (told["tokens"], told["computed_tokens"]) == (len(conversation), len(conversation) - 1)
    assert told["text"] == model.decode(conversation)
    assert client.post("/sessions/a/fork", json={"id": "b"}).status_code == 201
    further = "\ndef sub(a, b):\n"
    second = said(client, "a", further, trace=True)
    fresh = said(client, None, [*conversation, *model.encode_further(further)])
    assert text_of(second) == text_of(fresh)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(conversation) - 1
    other = said(client, "b", "\nimport os\n")
    assert text_of(other) == text_of(said(client, None, [*conversation, *model.encode_further("\nimport os\n")]))
    back = client.post("/sessions/a/rewind", json={"length": len(conversation) - 5}).json()
    assert back["tokens"] == len(conversation) - 5
    again = said(client, "a", further)
    assert text_of(again) == text_of(said(client, None, [*conversation[:-5], *model.encode_further(further)]))
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(model.encode(first))
    for name in ("a", "b"):
        assert client.delete(f"/sessions/{name}").json()["deleted"]
        assert client.get(f"/sessions/{name}").status_code == 404


def test_a_stop_string_leaves_a_session_that_can_go_on(client: httpx.Client, running: Running) -> None:
    client.post("/sessions", json={"id": "stops"})
    whole = running.model.generate("class Stack:\n", max_tokens=40, draft=DRAFTS, ignore_eos=True).text
    stop = whole[len(whole) // 2 :][:3]
    begun = said(client, "stops", "class Stack:\n", max_tokens=40, stop=stop, trace=True)
    assert begun["choices"][0]["finish_reason"] == "stop"
    conversation = [*running.model.encode("class Stack:\n"), *tokens_of(client, begun)]
    assert client.get("/sessions/stops").json()["tokens"] == len(conversation)
    further = said(client, "stops", "\n\n")
    assert text_of(further) == text_of(said(client, None, [*conversation, *running.model.encode_further("\n\n")]))
    client.delete("/sessions/stops")


def test_chats_go_on_from_what_a_session_has_computed(client: httpx.Client) -> None:
    client.post("/sessions", json={"id": "chat"})
    messages = [{"role": "user", "content": "import os\nimport sys"}]
    asked = {"temperature": 0, "max_tokens": 10, "session": "chat"}
    first = client.post("/v1/chat/completions", json={"messages": messages, **asked}).json()
    messages += [first["choices"][0]["message"], {"role": "user", "content": "def main():"}]
    second = client.post("/v1/chat/completions", json={"messages": messages, **asked}).json()
    fresh = client.post("/v1/chat/completions", json={"messages": messages, "temperature": 0, "max_tokens": 10}).json()
    assert second["choices"][0]["message"] == fresh["choices"][0]["message"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    client.delete("/sessions/chat")


@pytest.mark.parametrize(("seats", "slots"), [(SEATS, SLOTS), pytest.param(1, 1024, marks=pytest.mark.slow)])
def test_saved_sessions_are_there_after_a_restart(
    client: httpx.Client, running: Running, saved: Path, seats: int, slots: int
) -> None:
    """The second server finds nothing but the folder; it may have other seats and other caches' sizes."""
    client.post("/sessions", json={"id": "kept"})
    begun = said(client, "kept", "for i in range(10):\n", trace=True)
    told = client.post("/sessions/kept/save").json()
    assert told["saved"]
    assert not told["changed"]
    assert (saved / "kept.session.safetensors").stat().st_size == told["file_bytes"]
    conversation = [*running.model.encode("for i in range(10):\n"), *tokens_of(client, begun)]
    expected = text_of(said(client, None, [*conversation, *running.model.encode_further("\n")]))
    options = specjax.GenerateOptions(draft=DRAFTS)
    again = Settings("again", options, seats=seats, slots=slots, sessions=saved)
    with serving(running.model, again, Access()) as restarted, restarted.client() as other:
        assert [each["id"] for each in other.get("/sessions").json()["data"]] == ["kept"]
        further = said(other, "kept", "\n")
        assert text_of(further) == expected
        assert further["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(conversation) - 1
        assert other.post("/sessions/kept/restore").json()["tokens"] == len(conversation)
    other_drafts = Settings("again", specjax.GenerateOptions(draft=1), seats=1, slots=512, sessions=saved)
    with serving(running.model, other_drafts, Access()) as shallow, shallow.client() as other:
        assert other.get("/sessions/kept").json()["computed_tokens"] == 0, (
            "the state does not fit: it is computed again"
        )
    client.delete("/sessions/kept")
    assert not [*saved.iterdir()]


def test_a_session_that_is_deleted_while_it_is_saved_stays_away(
    client: httpx.Client, running: Running, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions, deleting = running.service.sessions, threading.Thread(target=lambda: client.delete("/sessions/gone"))
    client.post("/sessions", json={"id": "gone"})
    written = sessions._written

    def write_slowly(*args: Any) -> bool:
        deleting.start()
        deleting.join(timeout=0.5)
        return written(*args)

    monkeypatch.setattr(sessions, "_written", write_slowly)
    client.post("/sessions/gone/save")
    deleting.join()
    assert client.get("/sessions/gone").status_code == 404
    assert not (saved / "gone.session.safetensors").exists()


def test_damaged_files_and_wrong_names_are_refused(client: httpx.Client, saved: Path) -> None:
    (saved / "damaged.session.safetensors").write_bytes(b"no session")
    answer = client.get("/sessions/damaged")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "session_unreadable")
    assert str(saved) not in answer.text
    for name in ("..", ".hidden", "a b", "x" * 65, "", "a/b", "\u00e9", "%2e%2e%2fx"):
        assert client.post("/sessions", json={"id": name}).status_code == 400, name
    for path in ("..%2f..%2fetc%2fpasswd", "%2e%2e", "a%00b"):
        assert client.get(f"/sessions/{path}").status_code in (400, 404)
    assert client.delete("/sessions/damaged").status_code == 200
    client.post("/sessions", json={"id": "twice"})
    assert client.post("/sessions", json={"id": "twice"}).json()["error"]["code"] == "session_exists"
    assert client.post("/sessions/twice/rewind", json={"length": 1}).status_code == 400
    assert client.post("/sessions/twice/rewind", json={}).status_code == 400
    many = client.post("/v1/completions", json={"prompt": ["a", "b"], "session": "twice"})
    assert many.status_code == 400
    client.delete("/sessions/twice")


@pytest.mark.parametrize("place", ["no folder", "folder", "full disk"])
def test_states_that_are_not_used_give_way(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    sessions = running.service.sessions
    monkeypatch.setattr(sessions, "folder", None if place == "no folder" else tmp_path)
    if place == "full disk":
        monkeypatch.setattr(type(running.model), "save_session", _no_space)
    with running.client() as client:
        for name in ("old", "new"):
            client.post("/sessions", json={"id": name})
            said(client, name, "import os\n")
        before = text_of(said(client, "old", "\n"))
        said(client, "new", "\n")
        monkeypatch.setattr(sessions, "num_bytes", 2**16)
        said(client, "new", "\n")
        listed = {each["id"]: each for each in client.get("/sessions").json()["data"]}
        assert listed["old"].get("bytes", 0) == 0
        assert listed["new"]["bytes"] > 0
        assert listed["old"]["in_memory"] == (place != "folder")
        told = client.post("/sessions/old/rewind", json={"tokens": 12 + 1}).json()
        assert (told["computed_tokens"] > 0) == (place == "folder")
        assert text_of(said(client, "old", "\n")) == before
        for name in ("old", "new"):
            client.delete(f"/sessions/{name}")


def _no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_state_that_forks_share_counts_until_the_last_gives_way(
    running: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = running.service.sessions
    monkeypatch.setattr(sessions, "folder", None)
    client.post("/sessions", json={"id": "first"})
    said(client, "first", "import os\n")
    client.post("/sessions/first/fork", json={"id": "second"})
    size = client.get("/sessions/second").json()["bytes"]
    client.post("/sessions", json={"id": "third"})
    said(client, "third", "import os\n")
    monkeypatch.setattr(sessions, "num_bytes", size)
    said(client, "third", "\n")
    listed = {each["id"]: each["bytes"] for each in client.get("/sessions").json()["data"]}
    assert (listed["first"], listed["second"]) == (0, 0)
    assert listed["third"] > 0
    for name in listed:
        client.delete(f"/sessions/{name}")


def test_one_turn_of_a_session_at_a_time(running: Running, client: httpx.Client) -> None:
    client.post("/sessions", json={"id": "busy"})
    turn = running.service.sessions.begin("busy")
    for stream in (False, True):
        refused = client.post("/v1/completions", json={"prompt": "b", "session": "busy", "stream": stream})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "session_busy")
    running.service.sessions.give_up(turn)
    assert said(client, "busy", "b", max_tokens=2)["usage"]["completion_tokens"] == 2
    with client.stream("POST", "/v1/completions", json={"prompt": "b", "session": "busy", "stream": True}) as answer:
        next(answer.iter_lines())  # the client leaves
    running.settle()
    assert said(client, "busy", "b", max_tokens=2)["usage"]["completion_tokens"] == 2
    client.delete("/sessions/busy")


def test_a_turn_ends_into_nothing_if_its_session_was_deleted(running: Running, client: httpx.Client) -> None:
    sessions = running.service.sessions
    client.post("/sessions", json={"id": "again"})
    first = sessions.begin("again")
    assert client.delete("/sessions/again").status_code == 200
    assert client.post("/sessions", json={"id": "again"}).status_code == 201
    second = sessions.begin("again")
    first.prompt, second.prompt = (1, 2, 3), (4, 5)
    sessions.end(first, [6])
    sessions.give_up(first)
    assert client.get("/sessions/again").json()["tokens"] == 0
    with pytest.raises(ApiError, match="goes on"):
        sessions.begin("again")
    sessions.end(second, [7])
    assert sessions.get("again").conversation == (4, 5, 7)
    client.delete("/sessions/again")


def test_a_session_stays_as_it_is_while_a_turn_goes_on(running: Running, client: httpx.Client) -> None:
    client.post("/sessions", json={"id": "going"})
    client.post("/sessions/going/save")
    turn = running.service.sessions.begin("going")
    for path, body in (("rewind", {"length": 0}), ("restore", None)):
        answer = client.post(f"/sessions/going/{path}", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "session_busy")
    running.service.sessions.give_up(turn)
    for path, body in (("rewind", {"length": 0}), ("restore", None)):
        assert client.post(f"/sessions/going/{path}", json=body).status_code == 200
    client.delete("/sessions/going")


def test_a_prompt_that_is_shown_or_scored_is_what_the_turn_adds(running: Running, client: httpx.Client) -> None:
    client.post("/sessions", json={"id": "scored"})
    body = {
        "session": "scored",
        "prompt": "import os\n",
        "max_tokens": 0,
        "echo": True,
        "temperature": 0,
        "logprobs": 1,
    }
    before: list[float] = []
    for text in ("import os\n", "class A:\n"):
        answer = client.post("/v1/completions", json={**body, "prompt": text}).json()
        choice = answer["choices"][0]
        assert choice["text"] == "".join(choice["logprobs"]["tokens"]) == text
        assert choice["logprobs"]["text_offset"][0] == 0
        assert answer["usage"]["completion_tokens"] == 0
        before += choice["logprobs"]["token_logprobs"]
    told = client.get("/sessions/scored").json()
    assert told["text"] == "import os\nclass A:\n", "no token that nobody has seen"
    tokens = [*running.model.encode("import os\n"), *running.model.encode_further("class A:\n")]
    assert told["tokens"] == len(tokens)
    assert before[1:] == pytest.approx(running.model.score(tokens[:1], tokens[1:]), abs=1e-4)
    plain = {"session": "scored", "prompt": "x", "max_tokens": 6, "temperature": 0}
    fresh = {"prompt": [*tokens, *running.model.encode_further("x")], "max_tokens": 6, "temperature": 0}
    texts = [client.post("/v1/completions", json=each).json()["choices"][0]["text"] for each in (plain, fresh)]
    assert texts[0] == texts[1]
    client.delete("/sessions/scored")
