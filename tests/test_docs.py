"""What the README and the documentation show is so: links lead somewhere, code runs, commands are understood."""

from __future__ import annotations

import json
import pkgutil
import re
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from markdown_pages import DOCS, PAGES, ROOT, Block, Page

from specjax.cli.main import build_parser, main

README = Page(ROOT / "README.md")
PACKAGES = "specjax|checkpoints|pallas_kernels"
FOLDERS = f"benchmarks|docs|notebooks|tests|{PACKAGES}"
BUNDLED = ROOT / "checkpoints/demo/specjax-demo-Q8_0.gguf"
TRAINED = ROOT / "tests/fixtures/trained"
FILES = {
    "model.gguf": BUNDLED,
    "Qwen3.5-4B-Q4_K_M.gguf": BUNDLED,  # a model of the same family
    "gemma4.gguf": TRAINED / "gemma4.gguf",
    "gemma4-assistant.gguf": TRAINED / "gemma4-assistant.gguf",
}
"""What a page's code finds in its folder, besides prompts.jsonl."""


def name_of(page: Page) -> str:
    return str(page.path.relative_to(ROOT))


@cache
def commands() -> dict[str, ArgumentParser]:
    """The parser of each command of `specjax`."""
    (choices,) = [action.choices for action in build_parser()._actions if isinstance(action, _SubParsersAction)]
    return choices


each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


@each_page
def test_links_lead_somewhere(page: Page) -> None:
    for path, anchor in page.links():
        target = (page.path.parent / path).resolve() if path else page.path
        assert target.exists(), f"there is no {path}"
        inside = target.is_relative_to(DOCS)
        assert inside or not page.path.is_relative_to(DOCS), f"{path} is not on the site; name it without a link"
        if not anchor:
            continue
        if target.is_relative_to(DOCS / "reference"):
            assert pkgutil.resolve_name(anchor)
            assert f"::: {anchor.rpartition('.')[0]}" in target.read_text(encoding="utf-8"), f"{anchor} is not there"
        else:
            for site in ("github", "mkdocs") if inside else ("github",):
                assert anchor in Page(target).anchors(site), f"{path}#{anchor}: no such heading on {site}"


@each_page
def test_files_and_modules_that_are_named_exist(page: Page) -> None:
    for span in page.spans():
        for path in re.findall(rf"(?:^|\s)((?:{FOLDERS})/[\w./-]*)(?=\s|$)", span):
            assert (ROOT / path).exists(), f"there is no {path}"
        if name := re.fullmatch(rf"((?:{PACKAGES})(?:\.\w+)+)(?:\(.*\))?", span):
            assert pkgutil.resolve_name(name[1]) is not None


@each_page
def test_commands_are_understood(page: Page) -> None:
    for block in page.blocks():
        for words in block.commands():
            if words[:1] == ["specjax"]:
                build_parser().parse_args(words[1:])
            elif words[:1] == ["python"] and len(words) > 1:
                check_script(words[1:])
            elif words[:1] == ["make"]:
                check_targets(words[1:])


@pytest.mark.parametrize("command", [None, *commands()])
def test_examples_of_the_help_are_understood(command: str | None) -> None:
    parser = build_parser() if command is None else commands()[command]
    examples = re.findall(r"^  (specjax .*?)(?:   *[^ -].*)?$", parser.epilog or "", re.MULTILINE)
    assert examples
    for words in Block("", "\n".join(examples), 0, "").commands():
        if words[0] == "specjax":
            build_parser().parse_args(words[1:])


@each_page
def test_commands_in_the_text_have_the_flags_that_are_named(page: Page) -> None:
    for span in page.spans():
        words = span.split()
        if re.match(r"specjax [a-z]+\b", span):
            flags = {word.partition("=")[0] for word in words if re.match("--[a-z]", word)}
            assert flags <= commands()[words[1]]._option_string_actions.keys(), span
        elif re.match(r"python \S", span):
            check_script(words[1:])
        elif re.match(r"make \S", span):
            check_targets(words[1:])


def check_targets(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in (word for word in words if "=" not in word):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make has no target {target}"


def check_script(words: list[str]) -> None:
    path = Path(words[1].replace(".", "/") + ".py") if words[0] == "-m" else Path(words[0])
    if words[0] in ("-c", "-m") and not (ROOT / path).exists():
        return  # of the standard library, or another package
    text = (ROOT / path).read_text(encoding="utf-8")
    for flag in (word.partition("=")[0] for word in words if re.match("--[a-z]", word)):
        assert f'"{flag}"' in text, f"{path} has no {flag}"


def runnable(page: Page) -> Iterator[Block]:
    for block in page.blocks():
        if block.order.startswith("skip"):
            assert len(block.order.split(maxsplit=1)) == 2, f"line {block.line}: say why the block is not run"
        elif block.language == "python" or block.order == "run":
            yield block


def cases() -> Iterator[Any]:
    """Pages with code, without the blocks that take long, and then with them."""
    for page in PAGES:
        orders = {block.order for block in runnable(page)}
        if orders - {"slow"}:
            yield pytest.param(page, False, id=name_of(page))
        if "slow" in orders:
            yield pytest.param(page, True, id=f"all of {name_of(page)}", marks=pytest.mark.slow)


@pytest.mark.usefixtures("shared_programs")
@pytest.mark.parametrize(("page", "whole"), [*cases()])
def test_code_runs_from_top_to_bottom(page: Page, whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, file in FILES.items():
        (tmp_path / name).symlink_to(file)
    prompts = [{"prompt": f"def {name}("} for name in ("add", "close", "items", "main")]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in prompts), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in runnable(page):
        if block.order == "slow" and not whole:
            continue
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.code, str(page.path), "exec"), names)
        for words in block.commands():
            assert words[0] == "specjax", f"line {block.line}: only commands of specjax are run"
            assert main(words[1:]) == 0, f"line {block.line}: {' '.join(words)} failed"
    check = CHECKS.get(name_of(page))
    if check is not None:
        check(names)


def check_kernels(names: dict[str, Any]) -> None:
    assert names["state"].shape == (2, 4, 64, 64)
    assert names["window"].shape == (2, 3, 128)


def check_drafters(names: dict[str, Any]) -> None:
    assert names["generation"].stats.accepted > 0


CHECKS = {"docs/drafters.md": check_drafters, "docs/kernels.md": check_kernels}
"""What must have come of a page's code, where the page itself does not assert it."""


def test_most_code_is_run() -> None:
    skipped = [block for page in PAGES for block in page.blocks() if block.order.startswith("skip")]
    assert len(skipped) <= 8  # what needs other programs, a running server, several devices or processes


def test_the_readme_is_short() -> None:
    assert len(README.text.splitlines()) <= 150


def test_every_page_has_a_place_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        assert f": {page.relative_to(DOCS)}\n" in navigation
