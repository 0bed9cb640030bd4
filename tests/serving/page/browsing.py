"""The page in a real browser: Chromium, driven by selenium."""

from __future__ import annotations

import copy
import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from running import DRAFTS, Running
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from specjax.serving.app import Access
from specjax.serving.run import server_config
from specjax.serving.service import Service

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SECONDS = 180.0
PROMPT = "class Stack:\n    def __init__(self):\n"


class Shown(NamedTuple):
    """A token on the page: its text, its place in its round, and whether drafts were rejected there."""

    text: str
    place: int
    parted: bool


class Browser:
    """One Chromium, and what the tests do with it.

    Attributes:
        driver: selenium's.
    """

    def __init__(self, profile: Path) -> None:
        """
        Args:
            profile: a new folder.
        """
        options = ChromeOptions()
        options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
        for flag in [*FLAGS, f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = Chrome(options, Driver(shutil.which("chromedriver")))

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open the page as on a first visit, and wait until it knows the model."""
        self.driver.get(url)
        self.driver.execute_script("localStorage.clear(); sessionStorage.clear()")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get_log("browser")
        self.driver.refresh()

    def ready(self) -> None:
        """Wait until the page knows the model."""
        self.until(lambda: self.text("#model-name"))

    def until(self, condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
        """Wait for a condition. The page may replace what the condition looks at."""
        end = time.monotonic() + seconds
        while True:
            with suppress(StaleElementReferenceException):
                if value := condition():
                    return value
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.05)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def script(self, code: str, *args: Any) -> Any:
        return self.driver.execute_script(code, *args)

    def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> WebElement:
        return self.driver.switch_to.active_element

    def set(self, **values: object) -> None:
        """Fill in settings, as a user does."""
        for name, value in values.items():
            fields = self.all(f"#settings-form [name={name}]")
            if fields[0].get_attribute("type") == "radio":
                chosen = next(field for field in fields if field.get_attribute("value") == str(value))
                chosen.find_element(By.XPATH, "..").click()
            elif isinstance(value, bool):
                if fields[0].is_selected() != value:
                    fields[0].click()
            else:
                fields[0].clear()
                fields[0].send_keys(str(value))

    def send(self, text: str) -> None:
        """Send a prompt, without waiting for the answer."""
        prompt = self.one("#prompt")
        prompt.send_keys(text)
        prompt.send_keys(Keys.CONTROL, Keys.ENTER)

    def ended(self) -> None:
        """Wait until no answer grows any more."""
        self.until(lambda: self.all(".answer") and not self.all("[data-state=waiting], [data-state=running]"))

    def ask(self, text: str) -> None:
        """Send a prompt, and wait for its answers."""
        self.send(text)
        self.ended()

    def tokens(self, lane: int = 0) -> list[Shown]:
        """The tokens of an answer of the last turn, those that were kept at a fork included."""
        code = """
          const text = [...document.querySelectorAll(".turn:last-child .text")][arguments[0]];
          return [...text.children].map((each) =>
            [each.textContent, Number(each.dataset.place), each.classList.contains("parted")]);
        """
        return [Shown(*each) for each in self.script(code, lane)]

    def answer(self, lane: int = 0) -> str:
        """The text of an answer of the last turn."""
        return "".join(token.text for token in self.tokens(lane))

    def figure(self, name: str, lane: int = 0) -> str:
        """A figure of an answer of the last turn."""
        return self.all(f".turn:last-child [data-figure={name}] dd")[lane].text

    def errors(self) -> list[str]:
        """What the browser has complained of since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser while inside, with a profile of its own."""
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder))
        try:
            yield browser
        finally:
            browser.driver.quit()


@contextmanager
def fronting(service: Service, access: Access | None = None, port: int = 0) -> Iterator[tuple[str, uvicorn.Server]]:
    """A further way to a service that runs: its address, and the server, which tests may end at once.

    The engine's thread is left alone.
    """
    config = server_config(service, access or Access(), log_level="error", lifespan="off")
    server, listening = uvicorn.Server(config), socket.create_server(("127.0.0.1", port))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/", server
    finally:
        server.should_exit = server.force_exit = True
        thread.join(30)
        listening.close()


def templated(service: Service, template: str) -> Service:
    """The same service, as if the model had a chat template."""
    model = service.model
    assert model.tokenizer is not None
    tokenizer = copy.copy(model.tokenizer)
    tokenizer.vocabulary = replace(tokenizer.vocabulary, chat_template=template)
    other = copy.copy(service)
    other.model = replace(model, tokenizer=tokenizer)
    return other


def asked(**more: Any) -> dict[str, Any]:
    """The request that the page sends by the settings of the tests."""
    return {
        "prompt": PROMPT,
        "temperature": 0.8,
        "max_tokens": 40,
        "seed": 7,
        "accept": "coupled",
        "draft": DRAFTS,
    } | more


def events(running: Running, **body: Any) -> list[dict[str, Any]]:
    """What the server streams if it is asked as the page asks."""
    body |= {"stream": True, "trace": True, "stream_options": {"include_usage": True}}
    with running.client() as client:
        answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def traced(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How the tokens of a stream were made."""
    return [made for event in told for choice in event["choices"] for made in choice["trace"]]


def shown(trace: list[dict[str, Any]]) -> list[Shown]:
    """The same as the page has to show it."""
    return [Shown(made["text"], made["place"], bool(made["rejected"])) for made in trace]
