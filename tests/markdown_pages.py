"""Markdown files as tests see them: headings, links, code blocks and code spans."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

_FENCE = re.compile(
    r"(?:<!-- test: (?P<order>[^\n]*?) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_HEADING = re.compile(r"^#{1,6} +(.*?) *$", re.MULTILINE)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


class Link(NamedTuple):
    """What a link leads to: a path relative to the page, empty for the page itself, and an anchor, often empty."""

    path: str
    anchor: str


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: as the fence says; empty for commands.
        code: its lines.
        line: number of the first one in the file.
        order: "run", "slow", "skip, REASON" or nothing: the comment `<!-- test: ORDER -->` before the fence.
    """

    language: str
    code: str
    line: int
    order: str

    def commands(self) -> Iterator[list[str]]:
        """The words of each command of a shell block, without comments."""
        if self.language in ("", "sh"):
            for line in self.code.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                while words:
                    end = next((i for i, word in enumerate(words) if word in ("&&", "|", ";", ">")), len(words))
                    yield words[:end]
                    words = words[end + 1 :]


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def prose(self) -> str:
        """The text without its blocks and comments."""
        return _COMMENT.sub("", _FENCE.sub("", self.text))

    def blocks(self) -> Iterator[Block]:
        text = self.text
        for match in _FENCE.finditer(text):
            line = text.count("\n", 0, match.start("code")) + 1
            yield Block(match["language"], match["code"], line, match["order"] or "")

    def spans(self) -> list[str]:
        """Code within the prose, each on one line."""
        return [" ".join(span.split()) for span in _SPAN.findall(self.prose)]

    def links(self) -> list[Link]:
        """All links but those to other sites."""
        targets = [target for target in _LINK.findall(_SPAN.sub("", self.prose)) if not re.match(r"\w+:", target)]
        return [Link(*target.partition("#")[::2]) for target in targets]

    def anchors(self, site: Literal["github", "mkdocs"]) -> set[str]:
        """Anchors that a site makes of the headings."""
        headings = [_SPAN.sub(r"\1", _LINK.sub("", heading)) for heading in _HEADING.findall(self.prose)]
        return {(_github_slug if site == "github" else _mkdocs_slug)(heading) for heading in headings}


def _github_slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _mkdocs_slug(heading: str) -> str:
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


PAGES = [
    Page(path)
    for path in (
        *sorted(ROOT.glob("*.md")),
        *sorted(DOCS.rglob("*.md")),
        ROOT / "checkpoints/demo/README.md",
        ROOT / "pallas_kernels/tuned/README.md",
        ROOT / "tests/fixtures/PROVENANCE.md",
    )
]
