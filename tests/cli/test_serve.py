"""What `specjax serve` refuses, it refuses before it loads a model."""

from __future__ import annotations

import pytest
from program import Cli

from specjax.cli.main import build_parser
from specjax.cli.serve import api_key


@pytest.mark.parametrize("key", ["", " ", "secret\n"])
def test_a_key_that_no_client_can_send_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    assert "--api-key: the key is empty" in cli("serve", "--model", "absent.gguf", "--api-key", key).error
    monkeypatch.setenv("SPECJAX_API_KEY", key)
    assert "SPECJAX_API_KEY: the key is empty" in cli("serve", "--model", "absent.gguf").error


def test_a_key_comes_from_the_command_line_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(*arguments: str) -> str | None:
        return api_key(build_parser().parse_args(["serve", *arguments]))

    monkeypatch.delenv("SPECJAX_API_KEY", raising=False)
    assert key() is None
    monkeypatch.setenv("SPECJAX_API_KEY", "of the environment")
    assert key() == "of the environment"
    assert key("--api-key", "given") == "given"
