"""The container file names what there is, and starts a command that the program knows. It is not built here."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from specjax.cli.main import build_parser

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()


def after(word: str) -> list[str]:
    return [line.removeprefix(word).strip() for line in LINES if line.startswith(f"{word} ")]


def test_what_is_copied_is_there() -> None:
    copied = [name for line in after("COPY") if not line.startswith("--from") for name in line.split()[:-1]]
    assert len(copied) >= 8
    assert all((ROOT / name).exists() for name in copied)


def test_it_starts_the_server_without_rights_and_looks_after_its_health() -> None:
    (entry,) = after("ENTRYPOINT")
    program, *arguments = json.loads(entry)
    assert program.endswith("/bin/specjax")
    args = build_parser().parse_args([*arguments, "--model", "/model/model.gguf"])
    assert (args.host, args.port) == ("0.0.0.0", 8080)
    (check,) = after("HEALTHCHECK")
    _, dash_c, code = json.loads(check[check.index("[") :])
    assert dash_c == "-c"
    ast.parse(code)
    assert f":{args.port}/health" in code
    users = [index for index, line in enumerate(LINES) if re.match("USER (?!root)", line)]
    assert users
    assert users[-1] < next(index for index, line in enumerate(LINES) if line.startswith("ENTRYPOINT"))
