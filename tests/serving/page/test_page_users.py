"""Who uses the page and how: keys alone, screen readers, narrow windows, the dark; and what it must not run."""

from __future__ import annotations

import re

import pytest
from browsing import PROMPT, Browser, asked, events, traced
from running import DRAFTS, Running
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from specjax.serving.static_page import FOLDER

pytestmark = pytest.mark.browser

MARKUP = "<b>bold</b>" * 4
"""What the bundled model continues with more markup."""


def test_the_browser_may_load_and_run_only_what_the_server_sends(page: Browser, running: Running, url: str) -> None:
    page.ask(PROMPT)
    loaded = page.script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert loaded
    assert all(name.startswith(url) for name in loaded)
    with running.client() as client:
        for path in ("/", "/page/app.js", "/page/base.css"):
            headers = client.get(path).headers
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
        assert client.get("/page/../static_page.py").status_code == 404
        assert client.get("/page/%2e%2e/static_page.py").status_code == 404
    assert not re.search(r"<script(?![^>]* src=)|\son\w+=|style=", (FOLDER / "index.html").read_text())
    refused = "try { document.createElement('script').textContent = '1'; } catch (error) { return true; }"
    assert page.script(refused)
    assert len(page.errors()) == 1, "the browser notes what it has just refused"


def test_keys_alone_are_enough(page: Browser, running: Running) -> None:
    trace = traced(events(running, **asked()))
    page.driver.refresh()
    page.ready()
    assert page.focused().get_attribute("id") == "prompt"
    page.press(PROMPT)
    ActionChains(page.driver).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    page.ended()
    for _ in range(20):
        ActionChains(page.driver).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
        if "text" in (page.focused().get_attribute("class") or "").split():
            break
    index = next(index for index, made in enumerate(trace) if made["rejected"])
    page.press(*[Keys.ARROW_RIGHT] * (index + 1))
    assert page.one(".card").is_displayed()
    assert page.text(".card ol")
    said = page.one("#announcer").get_attribute("textContent") or ""
    assert f"Rejected: {page.all('.card li code')[0].text}" in said
    page.press(Keys.ARROW_DOWN, Keys.ARROW_UP, Keys.HOME, Keys.END)
    assert "current" in (page.all(".text .token")[-1].get_attribute("class") or "")
    page.press(Keys.ENTER)
    assert page.focused().text == "Regenerate from here"
    page.press(Keys.ESCAPE)
    assert "text" in (page.focused().get_attribute("class") or "").split()
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ENTER, Keys.ENTER)
    page.until(lambda: page.all(".text .kept"))
    page.ended()
    assert len(page.all(".text .kept")) == 1


def test_everything_has_a_name_for_screen_readers(page: Browser) -> None:
    page.set(compare=True)
    page.ask(PROMPT)
    page.all(".text .token")[3].click()
    controls = page.all("button, input, select, textarea, [tabindex], dialog, nav, section, aside")
    assert len(controls) > 30
    nameless = [each for each in controls if each.is_displayed() and not each.accessible_name]
    assert [each.get_attribute("outerHTML") for each in nameless] == []
    assert page.one(".strip svg").get_attribute("aria-label")
    assert page.one("html").get_attribute("lang") == "en"


def test_nothing_is_wider_than_a_window_of_400_pixels(chromium: Browser, url: str) -> None:
    chromium.open(url, width=400, height=800)
    chromium.ready()
    assert not chromium.one("#settings-form").is_displayed()
    chromium.one("summary").click()
    chromium.set(max_tokens=120, compare=True)
    chromium.ask("x" * 200 + "\n" + PROMPT)
    token = chromium.all(".text .token")[20]
    chromium.script("arguments[0].scrollIntoView({ block: 'center' })", token)
    token.click()
    assert chromium.script("return document.documentElement.scrollWidth") <= 400
    card = chromium.script("return document.querySelector('.card').getBoundingClientRect().toJSON()")
    assert card["left"] >= 0
    assert card["right"] <= 400


CONTRASTS = """
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].slice(0, 3)
      .map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (!/^rgba\\(.*, 0\\)$/.test(colour)) return colour;
    }
  };
  return [...document.querySelectorAll("body *")].filter((node) =>
    node.checkVisibility() && [...node.childNodes].some((each) => each.nodeType === 3 && each.data.trim()) &&
    !node.closest("[disabled], option, .for-readers, .skip")
  ).map((node) => {
    const [front, back] = [light(getComputedStyle(node).color), light(ground(node))];
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    return [ratio, `${node.tagName}.${node.className}`, node.dataset?.place ?? "", back];
  });
"""


@pytest.mark.parametrize("dark", [False, True])
def test_contrasts_are_enough_and_shades_differ_in_lightness(chromium: Browser, url: str, dark: bool) -> None:
    chromium.open(url, dark=dark)
    chromium.ready()
    chromium.set(max_tokens=100, compare=True)
    chromium.ask(PROMPT)
    chromium.all(".text .token.parted")[0].click()
    found = chromium.script(CONTRASTS)
    assert len(found) > 100
    assert [each[:2] for each in found if each[0] < 4.5] == []
    shades = {place: back for _, _, place, back in found if place}
    assert set(shades) == {str(place) for place in range(DRAFTS + 1)}
    steps = [shades[str(place)] for place in range(DRAFTS + 1)]
    assert steps == sorted(steps, reverse=not dark)
    paper = chromium.script("return getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", paper))) < 60) == dark


def test_texts_of_users_and_models_never_become_markup(page: Browser) -> None:
    page.set(temperature=0)
    page.ask(MARKUP)
    assert "<b>" in page.answer(), "the model writes markup by itself"
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    page.all(".text .token")[2].click()
    page.one(".card textarea").clear()
    page.one(".card textarea").send_keys(evil)
    page.all(".card button")[-1].click()
    page.until(lambda: page.all(".text .typed"))
    page.ended()
    page.all(".text .typed")[0].click()
    page.press(Keys.ESCAPE)
    page.ask(evil)
    assert evil in page.text(".turn:last-child .asked")
    assert page.script("return document.querySelectorAll('main b, main img, main script, .card b').length") == 0
    assert page.driver.title == "specjax"


def test_settings_are_kept_for_the_next_visit(page: Browser) -> None:
    page.set(compare=True, b_draft=1, top_k=40, stop="\\n\\n")
    page.driver.refresh()
    page.ready()
    assert page.one("[name=b_draft]:checked").get_attribute("value") == "1"
    assert page.one("[name=top_k]").get_attribute("value") == "40"
    page.ask(PROMPT)
    assert len(page.all(".answer")) == 2
    assert "\n\n" not in page.answer()
    page.one("#reset-settings").click()
    assert page.one("[name=top_k]").get_attribute("value") == "0"
    assert not page.one("[name=compare]").is_selected()
