"""The server says what the model says, in OpenAI's forms, for OpenAI's own client."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest
from running import DRAFTS, Running

PROMPTS = ["def add(a, b):\n", "import os\n", "class Stack:\n", "for i in range("]
RECORDED: Any = {"trace": True, "logprobs": 3}  # one program for all that is recorded


def test_greedy_texts_and_counts_of_drafts_are_those_of_generate(running: Running) -> None:
    answer = running.openai.completions.create(model="demo", prompt=PROMPTS, max_tokens=24, temperature=0)
    own = [running.model.generate(prompt, max_tokens=24, draft=DRAFTS) for prompt in PROMPTS]
    assert [choice.text for choice in answer.choices] == [each.text for each in own]
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * len(PROMPTS)
    assert answer.usage is not None
    drafting: Any = answer.usage.model_extra and answer.usage.model_extra["drafting"]
    for name in ("rounds", "drafted", "accepted"):
        assert drafting[name] == sum(getattr(each.stats, name) for each in own)
    for name in ("drafted_by_position", "accepted_by_position"):
        assert drafting[name] == [
            sum(column) for column in zip(*(getattr(each.stats, name) for each in own), strict=True)
        ]
    assert answer.usage.prompt_tokens == sum(len(each.prompt_tokens) for each in own)
    assert answer.usage.completion_tokens == 24 * len(PROMPTS)


@pytest.mark.parametrize("accept", ["coupled", pytest.param("block", marks=pytest.mark.slow)])
def test_samples_are_those_of_generate_under_each_rule(running: Running, accept: str) -> None:
    """Rows of the server's one program have rules of their own."""
    answer = running.openai.completions.create(
        model="demo", prompt=PROMPTS[0], max_tokens=20, temperature=0.8, seed=7, extra_body={"accept": accept}
    )
    drafts = 0 if accept == "coupled" else DRAFTS  # by the coupled rule drafts change no sample
    own: Any = {"max_tokens": 20, "temperature": 0.8, "seed": 7, "accept": accept, "draft": drafts}
    assert answer.choices[0].text == running.model.generate(PROMPTS[0], **own).text
    assert answer.usage is not None
    assert answer.usage.model_extra is not None
    assert answer.usage.model_extra["drafting"]["accepted"] > 0


def test_a_stream_has_the_text_of_the_whole_answer(running: Running) -> None:
    asked: Any = {"model": "demo", "prompt": PROMPTS[0], "max_tokens": 30, "temperature": 0, "stop": ["\n\n"]}
    whole = running.openai.completions.create(**asked)
    stream = [*running.openai.completions.create(**asked, stream=True, stream_options={"include_usage": True})]
    assert "".join(event.choices[0].text for event in stream if event.choices) == whole.choices[0].text
    assert [event.choices[0].finish_reason for event in stream if event.choices][-1] == whole.choices[0].finish_reason
    assert stream[-1].usage == whole.usage
    assert len({event.id for event in stream}) == 1


def test_chats_stream_and_choices_are_samples_of_their_own(running: Running) -> None:
    asked: Any = {
        "model": "demo",
        "messages": [
            {"role": "system", "content": "import os"},
            {"role": "user", "content": [{"type": "text", "text": "x = "}]},
        ],
        "max_completion_tokens": 16,
        "n": 3,
        "seed": 5,
    }
    whole = running.openai.chat.completions.create(**asked)
    texts = [choice.message.content for choice in whole.choices]
    text = running.openai.completions.create(model="demo", prompt="import os\nx = \n", max_tokens=16, seed=5)
    assert texts[0] == text.choices[0].text
    assert len(set(texts)) > 1
    streamed = [""] * 3
    for event in running.openai.chat.completions.create(**asked, stream=True):
        for choice in event.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_the_trace_tells_how_each_token_was_made(running: Running, client: httpx.Client) -> None:
    body = {"prompt": PROMPTS[1], "max_tokens": 24, "temperature": 0, "trace": True}
    answer = client.post("/v1/completions", json=body).json()
    made, text = answer["choices"][0]["trace"], answer["choices"][0]["text"]
    own = running.model.generate(PROMPTS[1], max_tokens=24, draft=DRAFTS, **RECORDED)
    assert [each["token"] for each in made] == own.tokens
    assert "".join(each["text"] for each in made) == text
    assert own.trace is not None
    places, rejected = [0], [()]
    for index in range(len(own.trace)):
        drafted, accepted, emitted = (
            int(x[index]) for x in (own.trace.n_drafted, own.trace.n_accepted, own.trace.n_emitted)
        )
        drafts = own.trace.drafts[index, :drafted].tolist()
        places += [*range(1, accepted + 1), *[0] * (emitted - accepted)]
        rejected += [*[()] * accepted, *[tuple(drafts[accepted:])] * (emitted - accepted)]
    assert [each["place"] for each in made] == places[:24]
    assert [tuple(draft["token"] for draft in each["rejected"]) for each in made] == rejected[:24]
    assert max(places) > 1
    assert any(rejected)


def test_log_probabilities_are_those_of_generate_and_of_score(running: Running) -> None:
    model, prompt = running.model, PROMPTS[0]
    answer = running.openai.completions.create(
        model="demo", prompt=prompt, max_tokens=5, temperature=0, logprobs=3, echo=True
    )
    own = model.generate(prompt, max_tokens=5, draft=DRAFTS, **RECORDED)
    scores = answer.choices[0].logprobs
    assert scores is not None
    assert scores.token_logprobs is not None
    tokens = model.encode(prompt)
    assert scores.token_logprobs[0] is None
    expected = [*model.score(tokens[:1], tokens[1:]), *(each.logprob for each in own.logprobs or ())]
    assert scores.token_logprobs[1:] == pytest.approx(expected, abs=1e-4)
    assert answer.choices[0].text == prompt + own.text
    assert "".join(scores.tokens or ()) == prompt + own.text
    assert scores.top_logprobs is not None
    assert all(len(each) == 3 for each in scores.top_logprobs[1:])
    chat = running.openai.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "import"}],
        max_tokens=4,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    content = chat.choices[0].logprobs and chat.choices[0].logprobs.content
    assert content is not None
    assert "".join(each.token for each in content) == chat.choices[0].message.content
    assert all(len(each.top_logprobs) == 2 and each.logprob <= each.top_logprobs[0].logprob for each in content)


def test_offsets_point_into_the_text_where_characters_have_several_tokens(client: httpx.Client) -> None:
    body = {"prompt": "é漢", "echo": True, "regex": "(漢字🎉é){3}", "max_tokens": 60, "seed": 1, "logprobs": 1}
    (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    text, scores = choice["text"], choice["logprobs"]
    assert text == "é漢" + "漢字🎉é" * 3
    assert any(token.startswith("bytes:") for token in scores["tokens"])
    streamed = []
    for line in client.post("/v1/completions", json={**body, "stream": True}).text.splitlines():
        if line.startswith("data: {"):
            part = json.loads(line.removeprefix("data: "))["choices"][0]["logprobs"]
            streamed += part["text_offset"] if part else []
    assert streamed == scores["text_offset"]
    written, known = b"", [*zip(scores["tokens"], scores["text_offset"], strict=True)]
    for token, offset in known[:-1]:  # the last one ends the text
        assert offset == len(written.decode(errors="ignore"))
        written += bytes.fromhex(token[6:].replace("\\x", "")) if token.startswith("bytes:") else token.encode()
    assert written.decode() == text


def test_only_the_prompt_can_be_scored(client: httpx.Client, running: Running) -> None:
    body = {"prompt": "import os\n", "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
    answer = client.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == "import os\n"
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == len(running.model.encode("import os\n"))
    assert answer["usage"]["completion_tokens"] == 0


def test_other_depths_and_automatic_ones_change_nothing(running: Running, client: httpx.Client) -> None:
    bodies = [{"draft": draft} for draft in (0, 1, DRAFTS, "auto")] + [{"p_min": 0.5}]
    texts = [
        client.post("/v1/completions", json={"prompt": PROMPTS[2], "max_tokens": 40, "temperature": 0, **body}).json()
        for body in bodies
    ]
    assert len({answer["choices"][0]["text"] for answer in texts}) == 1
    assert texts[0]["usage"]["drafting"]["drafted"] == 0
    assert texts[0]["usage"]["drafting"]["tokens_per_round"] == 1


def test_requests_choose_their_drafters(running: Running, client: httpx.Client) -> None:
    assert client.get("/v1/models").json()["data"][0]["drafters"] == ["ngram", "mtp"]
    assert client.get("/props").json()["defaults"]["draft_by"] is None
    prompt = "def f(x):\n    return x + 1\n\n\ndef f(x):\n"

    def ask(draft_by: Any) -> Any:
        body = {"prompt": prompt, "max_tokens": 40, "temperature": 0, "draft_by": draft_by}
        return client.post("/v1/completions", json=body).json()

    asked = ["ngram", "mtp", ["mtp"], ["ngram", "mtp"], None]
    with ThreadPoolExecutor() as pool:
        answers = [*pool.map(ask, asked)]
    text = running.model.generate(prompt, max_tokens=40, draft=0).text
    assert [answer["choices"][0]["text"] for answer in answers] == [text] * len(asked)
    for answer, draft_by in zip(answers, asked, strict=True):
        own = running.model.generate(prompt, max_tokens=40, draft=DRAFTS, draft_by=draft_by).stats
        drafting = answer["usage"]["drafting"]
        assert drafting["drafted_by_drafter"] == own.drafted_by_drafter
        assert drafting["accepted_by_drafter"] == own.accepted_by_drafter
        assert [number for number, count in enumerate(own.drafted_by_drafter) if count] == [
            number for number, name in enumerate(("ngram", "mtp")) if draft_by is None or name in draft_by
        ]


def test_a_schema_holds_the_text(client: httpx.Client, running: Running) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    chat = running.openai.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "x = "}],
        response_format=wanted,  # type: ignore[arg-type]
        max_tokens=30,
        temperature=0,
    )
    assert json.loads(chat.choices[0].message.content or "") in ({"n": 1}, {"n": 2})
    assert chat.choices[0].finish_reason == "stop"
    answer = client.post("/v1/completions", json={"prompt": "x = ", "regex": "[0-9]{3}", "seed": 3}).json()
    assert len(answer["choices"][0]["text"]) == 3
    assert answer["choices"][0]["text"].isdecimal()


def test_texts_become_tokens_and_back(client: httpx.Client, running: Running) -> None:
    tokens = client.post("/tokenize", json={"content": "import os\n", "add_special": True}).json()["tokens"]
    assert tokens == running.model.encode("import os\n")
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"content": "import os\n"}
    pieces = client.post("/tokenize", json={"content": "import os", "with_pieces": True}).json()["tokens"]
    assert "".join(each["piece"] for each in pieces) == "import os"


def test_a_bias_and_penalties_are_those_of_generate_beside_texts_without(running: Running) -> None:
    """What the text without them begins with is never said, and nothing is said often. It stands last: from here on
    the server has room for biases, and other programs.
    """
    plain: Any = {"prompt": PROMPTS[1], "max_tokens": 24, "temperature": 0.0}
    own = running.model.generate(**plain, draft=DRAFTS)
    leaning = {"logit_bias": {str(own.tokens[0]): -100}, "presence_penalty": 0.5, "frequency_penalty": 1.5}
    bias = {"logit_bias": {own.tokens[0]: -100}, "presence_penalty": 0.5, "frequency_penalty": 1.5}
    with ThreadPoolExecutor() as pool:
        client = running.openai
        ask = partial(client.completions.create, model="demo")
        texts = [pool.submit(ask, **plain, **more) for more in (leaning, {})]
        got = [each.result().choices[0].text for each in texts]
    want = running.model.generate(**plain, **bias, draft=0)
    assert got == [want.text, own.text]
    assert own.tokens[0] not in want.tokens
    assert max(map(want.tokens.count, want.tokens)) < max(map(own.tokens.count, own.tokens))
