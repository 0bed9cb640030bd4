"""Forks: an answer is continued differently from one of its tokens on."""

from __future__ import annotations

import pytest
from browsing import PROMPT, Browser, asked, events, traced
from running import Running

pytestmark = pytest.mark.browser


def act(page: Browser, index: int, action: str) -> None:
    """Open the card of a token of the last turn, and press one of its buttons."""
    token = page.all(".turn:last-child .text .token")[index]
    page.script("arguments[0].scrollIntoView({ block: 'center' })", token)
    token.click()
    next(button for button in page.all(".card button") if button.text.startswith(action)).click()


def test_an_answer_regenerated_from_a_token_is_the_same_with_the_same_seed(page: Browser) -> None:
    page.ask(PROMPT)
    before = page.tokens()
    page.set(max_tokens=28)
    act(page, 12, "Regenerate from here")
    page.ended()
    assert [token.text for token in page.tokens()] == [token.text for token in before]
    assert page.tokens()[:12] == before[:12]
    assert len(page.all(".text .kept")) == 12
    assert "Fork 2 of 2" in page.text(".forks")
    page.one("[aria-label='Fork before']").click()
    assert page.tokens() == before
    page.one("[aria-label='Fork after']").click()
    assert len(page.all(".text .kept")) == 12


def test_one_can_go_on_from_a_rejected_draft_or_from_a_text_of_ones_own(page: Browser, running: Running) -> None:
    model, trace = running.model, traced(events(running, **asked()))
    page.ask(PROMPT)
    index = next(index for index, made in enumerate(trace) if made["rejected"] and index > 5 and made["text"].strip())
    kept = [*model.encode(PROMPT), *(made["token"] for made in trace[:index])]
    settings = {name: value for name, value in asked().items() if name != "prompt"}
    act(page, index, "Go on from ")
    page.ended()
    draft = trace[index]["rejected"][0]
    assert page.tokens()[index].text == draft["text"]
    further = model.generate([*kept, draft["token"]], **settings).text
    assert "".join(token.text for token in page.tokens()[index + 1 :]) == further

    token = page.all(".text .token")[index]
    token.click()
    page.one(".card textarea").clear()
    page.one(".card textarea").send_keys(" size")
    page.all(".card button")[-1].click()
    page.until(lambda: "Fork 3 of 3" in page.text(".forks"))
    page.ended()
    further = model.generate([*kept, *model.encode_further(" size")], **settings).text
    assert page.answer() == model.decode(kept[len(model.encode(PROMPT)) :]) + " size" + further


def test_a_prompt_can_be_edited_and_a_text_that_was_cut_goes_on(page: Browser, running: Running) -> None:
    whole = running.model.generate(**asked()).text
    page.set(max_tokens=20)
    page.ask(PROMPT)
    next(button for button in page.all(".end-buttons button") if button.text == "Go on").click()
    page.ended()
    assert page.answer() == whole
    page.one(".asked button").click()
    page.one(".asked textarea").send_keys("        self.items = ")
    page.one(".asked button.main").click()
    page.ended()
    assert page.answer() == running.model.generate(**asked(prompt=PROMPT + "        self.items = ", max_tokens=20)).text
    assert "Fork 3 of 3" in page.text(".forks")
