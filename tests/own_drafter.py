"""The drafter that the documentation shows."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "drafters.md"


def code_blocks() -> list[str]:
    """The Python code of the page, without blocks that a comment before them leaves out."""
    return re.findall(r"(?<!-->\n)```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@cache
def documented() -> dict[str, Any]:
    """What the first block defines."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code_blocks()[0], str(PAGE), "exec", dont_inherit=True), names)
    return names
