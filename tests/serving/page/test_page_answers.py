"""What the page shows of answers: the trace, figures, two settings side by side."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
from browsing import PROMPT, Browser, asked, events, fronting, shown, traced
from running import DRAFTS, Running
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.browser

REPEATED = "def f(x):\n    return x + 1\n\n\ndef f(x):\n"
"""A text in which n-grams find something."""
HINT = "With the rule coupled they would be the same."


@pytest.mark.parametrize("accept", ["coupled", "rejection"])
def test_text_shades_and_figures_are_those_of_the_trace(page: Browser, running: Running, accept: str) -> None:
    told = events(running, **asked(accept=accept))
    page.set(a_draft=DRAFTS, a_accept=accept)
    page.ask(PROMPT)
    assert page.tokens() == shown(traced(told))
    assert {token.place for token in page.tokens()} == {*range(DRAFTS + 1)}
    drafting = told[-1]["usage"]["drafting"]
    assert page.figure("tokens-per-round") == f"{drafting['tokens_per_round']:.2f}"
    assert page.figure("acceptance") == f"{round(100 * drafting['accepted'] / drafting['drafted'])} %"
    counts = zip(drafting["accepted_by_position"], drafting["drafted_by_position"], strict=True)
    assert [each.text.split()[-1] for each in page.all(".places li")] == [f"{a}/{d}" for a, d in counts]
    grounds, stood = page.all(".strip .ground"), page.all(".strip .stood")
    assert len(grounds) == drafting["rounds"]
    assert len(stood) == sum(token.place > 0 for token in page.tokens())


def test_an_answer_grows_while_it_comes_and_figures_with_it(page: Browser) -> None:
    page.script(
        """
        window.seen = new Set();
        const look = () => {
          const text = document.querySelector(".text");
          const rate = document.querySelector("[data-figure=tokens-per-round] dd");
          if (text) window.seen.add(`${text.children.length} ${rate.textContent}`);
        };
        new MutationObserver(look).observe(document.querySelector("#conversation"), { childList: true, subtree: true });
        """
    )
    page.set(max_tokens=200)
    page.ask(PROMPT)
    seen = page.script("return [...window.seen]")
    assert len({each.split()[0] for each in seen}) > 3
    assert len({each.split()[1] for each in seen}) > 3


def test_pointing_at_a_token_shows_the_drafts_that_were_rejected_there(page: Browser, running: Running) -> None:
    trace = traced(events(running, **asked()))
    page.ask(PROMPT)
    index = next(index for index, made in enumerate(trace) if len(made["rejected"]) > 1 and made["text"].strip())
    ActionChains(page.driver).move_to_element(page.all(".text .token")[index]).perform()
    page.until(lambda: page.one(".card").is_displayed())
    drafts = [each.get_attribute("textContent") for each in page.all(".card li code")]
    assert [re.sub("[·⏎⇥]", "", draft or "") for draft in drafts] == [
        re.sub(r"^ +| +$|[\n\t]", "", draft["text"]) for draft in trace[index]["rejected"]
    ]
    assert str(trace[index]["token"]) in page.text(".card-title")
    page.press(Keys.ESCAPE)
    assert not page.one(".card").is_displayed()


def test_settings_of_drafts_take_effect(page: Browser, running: Running) -> None:
    assert [each.text for each in page.all("#lane-a .choices")[0].find_elements(By.TAG_NAME, "span")] == [
        "Off",
        *(str(depth + 1) for depth in range(DRAFTS)),
        "Auto",
    ]
    texts = []
    for draft, deepest in ((0, 0), (1, 1), (DRAFTS, DRAFTS), ("auto", DRAFTS)):
        page.set(a_draft=draft)
        page.ask(PROMPT)
        places = {token.place for token in page.tokens()}
        assert max(places) <= deepest
        assert draft in (0, "auto") or 1 in places
        texts.append(page.answer())
        page.one("#new-conversation").click()
    assert texts == [running.model.generate(**(asked(draft=0))).text] * 4, "coupled texts do not depend on drafts"
    page.set(a_draft=0)
    page.ask(PROMPT)
    assert page.figure("tokens-per-round") == "1.00"
    assert page.figure("acceptance") == "\N{EN DASH}"


def test_the_drafter_can_be_chosen_in_both_columns(page: Browser, running: Running) -> None:
    assert [each.text for each in page.all("#lane-a [aria-label=Drafter] span")] == ["All", "ngram", "mtp"]
    page.set(compare=True, a_draft=DRAFTS, b_draft=DRAFTS, a_draft_by="ngram", b_draft_by="mtp", temperature=0)
    page.ask(REPEATED)
    assert [each.text for each in page.all(".answer h3")] == [
        f"A {DRAFTS} drafts · ngram · coupled",
        f"B {DRAFTS} drafts · mtp · coupled",
    ]
    own: dict[str, Any] = {"prompt": REPEATED, "max_tokens": 40, "draft": DRAFTS}
    for lane, name in enumerate(("ngram", "mtp")):
        generation = running.model.generate(**own, draft_by=name)
        assert page.answer(lane) == generation.text
        assert page.figure("tokens-per-round", lane) == f"{generation.stats.tokens_per_round:.2f}"
    assert page.figure("tokens-per-round", 0) != page.figure("tokens-per-round", 1)
    page.driver.refresh()
    page.ready()
    page.one("#new-conversation").click()
    page.ask(REPEATED)
    assert "ngram" in page.all(".answer h3")[0].text, "the choice is kept for the next visit"
    page.set(compare=False, a_draft_by="/")
    page.ask("\n")
    assert page.all(".turn:last-child h3")[0].text == f"A {DRAFTS} drafts · coupled"


def test_a_server_with_one_drafter_offers_no_choice(chromium: Browser, running: Running) -> None:
    alone = copy.copy(running.service)
    alone.model = replace(alone.model, drafter_names=("mtp",))
    with fronting(alone) as (url, _):
        chromium.open(url)
        chromium.ready()
        assert not chromium.all("[aria-label=Drafter]")
        assert "drafted for by mtp, up to" in chromium.text("#model-facts")
        chromium.set(max_tokens=8)
        chromium.ask(PROMPT)
        assert chromium.answer()


@pytest.mark.parametrize("order", ["together", "one after the other"])
def test_two_coupled_columns_are_equal_and_the_page_says_so(page: Browser, order: str) -> None:
    page.set(compare=True, b_draft=0)
    page.one("[name=order]").send_keys(order)
    page.ask(PROMPT)
    assert page.answer(0) == page.answer(1)
    assert page.text(".verdict") == "Equal: both texts are the same 40 tokens."
    assert any(token.place for token in page.tokens(0))
    assert not any(token.place for token in page.tokens(1))
    assert float(page.figure("tokens-per-round", 0)) > float(page.figure("tokens-per-round", 1))
    page.ask("\n")
    assert len(page.all(".turn")) == 2
    assert page.text(".turn:last-child .verdict").startswith("Equal")


def test_columns_that_part_are_marked_where_they_do(page: Browser) -> None:
    page.set(compare=True, b_draft=DRAFTS, b_accept="rejection")
    page.ask(PROMPT)
    left, right = ([token.text for token in page.tokens(lane)] for lane in (0, 1))
    first = next(index for index, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
    assert page.text(".verdict") == f"The texts part at token {first + 1}. {HINT}"
    for text in page.all(".text"):
        tokens = text.find_elements(By.CSS_SELECTOR, ".token")
        assert ["differs" in (token.get_attribute("class") or "") for token in tokens].index(True) == first
