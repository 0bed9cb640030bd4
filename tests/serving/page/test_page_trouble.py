"""What the page says if things go wrong, and how it tells a model of the conversation."""

from __future__ import annotations

import pytest
from browsing import PROMPT, Browser, fronting, templated
from running import Running
from selenium.webdriver.common.keys import Keys

from specjax.serving.app import Access

pytestmark = pytest.mark.browser

TEMPLATE = "{% for m in messages %}# {{ m.role }}: {{ m.content }}\n{% endfor %}# assistant:"


def test_stop_ends_the_answer_and_frees_the_seat(page: Browser, running: Running) -> None:
    page.set(max_tokens=300, a_draft=0)
    page.send(PROMPT)
    page.until(lambda: page.all(".text .token"))
    page.one("#stop").click()
    page.ended()
    assert page.text(".end") == "You stopped it."
    assert 0 < len(page.tokens()) < 300
    running.settle()
    assert page.one("#send").is_displayed()


def test_what_the_server_refuses_is_said_at_the_answer(page: Browser) -> None:
    page.set(max_tokens=5000)
    page.ask(PROMPT)
    assert "max_tokens is 5000" in page.text(".end")
    page.set(max_tokens=8)
    next(button for button in page.all(".end-buttons button") if button.text == "Try again").click()
    page.ended()
    assert len(page.tokens()) == 8
    page.set(temperature=-1)
    page.send("x")
    assert len(page.all(".turn")) == 1, "nothing is sent while a setting is wrong"
    assert page.one("#prompt").get_attribute("value") == "x"
    page.driver.get_log("browser")  # it notes the server's 400


def test_a_server_that_is_gone_is_named_and_waited_for(chromium: Browser, running: Running) -> None:
    with fronting(running.service) as (url, server):
        chromium.open(url)
        chromium.ready()
        chromium.set(temperature=0, max_tokens=300, a_draft=0)  # other settings end this text sooner
        chromium.send(PROMPT)
        chromium.until(lambda: chromium.all(".text .token"))
        server.should_exit = server.force_exit = True
        chromium.ended()
        assert chromium.text(".end") == "The connection broke off before the text had ended."
        assert chromium.tokens()
        running.settle()
    chromium.one("#prompt").send_keys("x")
    chromium.one("#send").click()
    chromium.ended()
    assert "The server does not answer" in chromium.text("#banner")
    assert "The server does not answer" in chromium.text(".turn:last-child .end")
    with fronting(running.service, port=int(url.rstrip("/").rpartition(":")[2])):
        chromium.until(lambda: not chromium.one("#banner").is_displayed())
        chromium.set(max_tokens=5)
        chromium.one(".turn:last-child .end-buttons button").click()
        chromium.ended()
        assert len(chromium.tokens()) == 5


def test_a_server_with_a_key_is_given_it(chromium: Browser, running: Running) -> None:
    with fronting(running.service, Access("the key")) as (url, _):
        chromium.open(url)
        chromium.until(lambda: chromium.one("#key-dialog").is_displayed())
        chromium.press("wrong", Keys.ENTER)
        assert chromium.until(lambda: chromium.text("#key-problem")) == "The server does not take this key."
        chromium.press("the key", Keys.ENTER)
        chromium.ready()
        chromium.set(max_tokens=5)
        chromium.ask(PROMPT)
        assert len(chromium.tokens()) == 5
        chromium.driver.refresh()
        chromium.ready()
        assert chromium.script("return localStorage.getItem('specjax-key')") is None


def test_a_model_with_a_chat_template_is_told_the_conversation(chromium: Browser, running: Running) -> None:
    service = templated(running.service, TEMPLATE)
    with fronting(service, Access("k")) as (url, _), running.client() as client:
        chromium.open(url)
        chromium.until(lambda: chromium.one("#key-dialog").is_displayed())
        chromium.press("k", Keys.ENTER)
        chromium.ready()
        chromium.set(temperature=0, max_tokens=12, system="Write Python.", stop="\\n")
        messages = [{"role": "system", "content": "Write Python."}]
        for text in ("import os", "import sys"):
            chromium.one("#prompt").send_keys(text, Keys.ENTER)
            chromium.until(lambda: len(chromium.all(".turn")) == (len(messages) + 1) // 2)
            chromium.ended()
            messages.append({"role": "user", "content": text})
            body = {"messages": messages, "max_tokens": 12, "temperature": 0, "stop": ["\n"]}
            headers = {"Authorization": "Bearer k"}
            told = client.post(f"{url}v1/chat/completions", json=body, headers=headers).json()
            content = told["choices"][0]["message"]["content"]
            assert chromium.answer() == content
            messages.append({"role": "assistant", "content": content})
