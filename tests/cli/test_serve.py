"""What `specjax serve` refuses, it refuses before it loads a model."""

from __future__ import annotations

import socket

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


def test_an_address_that_cannot_be_had_is_found_out_first(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = cli("serve", "--model", "absent.gguf", "--port", port).error
        assert f"127.0.0.1:{port}: cannot listen there: Address already in use" in message
    assert "cannot listen there" in cli("serve", "--model", "absent.gguf", "--host", "203.0.113.1").error
    assert "absent.gguf: no such file" in cli("serve", "--model", "absent.gguf", "--port", port).error


@pytest.mark.parametrize(
    ("option", "value", "range_"),
    [
        ("--port", "99999", "a whole number from 0 to 65535"),
        ("--port", "-1", "a whole number from 0 to 65535"),
        ("--queue", "-1", "a whole number from 0 to 1000000000"),
        ("--seats", "0", "a whole number from 1 to 1000000000"),
        ("--most-tokens", "0", "a whole number from 1 to 1000000000"),
        ("--request-seconds", "-1", "a number from 0.001 to 1000000000"),
        ("--drain-seconds", "nan", "a number from 0 to 1000000000"),
        ("--drain-seconds", "inf", "a number from 0 to 1000000000"),
        ("--drain-seconds", "soon", "a number from 0 to 1000000000"),
    ],
)
def test_numbers_out_of_their_range_are_refused(cli: Cli, option: str, value: str, range_: str) -> None:
    assert f"argument {option}: it is '{value}'; give {range_}" in cli("serve", option, value).error


def test_no_number_of_bytes_is_endless(cli: Cli) -> None:
    assert "'inf' is no number of bytes" in cli("serve", "--body-bytes", "inf").error


@pytest.mark.parametrize("option", ["--seed", "--logprobs"])
def test_what_requests_alone_can_say_is_refused(cli: Cli, option: str) -> None:
    assert f"unrecognized arguments: {option} 5" in cli("serve", option, 5).error
