"""Sessions over HTTP of models without recurrent state, whose caches are quantized, the drafter's too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from running import serving
from test_sessions_over_http import said, text_of, tokens_of

import specjax
from specjax.serving.app import Access
from specjax.serving.service import Settings

FIXTURES = Path(__file__).parents[1] / "fixtures"
MODELS = {
    "heads of its own": ("glm4_moe/air/hf", None, ("q8_0", "q8_0")),
    "an assistant, rings": ("gemma4/dense/hf", "gemma4/dense/assistant", ("q8_0", "q4_0")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heads of its own", "an assistant, rings"])
def test_saved_forked_and_rewound_sessions_say_what_is_said_without_interruption(name: str, tmp_path: Path) -> None:
    folder, assistant, kv = MODELS[name]
    drafter = None if assistant is None else FIXTURES / assistant
    model = specjax.load(FIXTURES / folder, drafter=drafter, need_tokenizer=True)
    options = specjax.GenerateOptions(draft=2, kv_type_k=kv[0], kv_type_v=kv[1], max_tokens=12)
    settings = Settings("tiny", options, seats=2, slots=128, sessions=tmp_path)
    prompt, further = list(range(20, 60)), [7, 8, 9]
    with serving(model, settings, Access()) as running, running.client() as client:
        client.post("/sessions", json={"id": "a"})
        begun = said(client, "a", prompt, trace=True)
        conversation = [*prompt, *tokens_of(client, begun)]
        client.post("/sessions/a/fork", json={"id": "b"})
        assert client.post("/sessions/a/save").json()["saved"]
        expected = said(client, "a", further, trace=True)
        drafting = expected["usage"]["drafting"]
        assert drafting["drafted"] > 0
        assert text_of(said(client, "b", further)) == text_of(expected), "a fork says the same"
        back = client.post("/sessions/b/rewind", json={"length": len(conversation)}).json()
        assert back["tokens"] == len(conversation)
        assert text_of(said(client, "b", further)) == text_of(expected), "and so does one that went back"
        fresh: dict[str, Any] = said(client, None, [*conversation, *further])
        assert text_of(fresh) == text_of(expected)
    with serving(model, settings, Access()) as restarted, restarted.client() as client:
        restored = client.post("/sessions/a/restore").json()
        assert restored["tokens"] == len(conversation)
        again = said(client, "a", further, trace=True)
        assert tokens_of(client, again) == tokens_of(client, expected)
        assert again["usage"]["drafting"] == drafting
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(conversation) - 1
