"""`specjax serve`: an HTTP server in the forms of OpenAI's API."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from specjax.cli.options import add_command, add_decoding_options, add_model_options, generate_options, load_model
from specjax.cli.runtime import UsageError, say

if TYPE_CHECKING:
    from specjax.runtime.options import GenerateOptions

DESCRIPTION = """\
Serve a model over HTTP, in the forms of OpenAI's API: /v1/chat/completions, /v1/completions, /v1/models; and /tokenize,
/detokenize, /health, /metrics, /slots. At / is a page to talk to the model. Needs the extra `serve`.

Requests share one running batch of --seats rows. What a text says does not depend on its neighbours, unless it is drawn
with --draft auto and another rule than coupled. The options of decoding hold for requests that do not say otherwise.
--draft is also the most drafts that a request can ask for.
"""

EPILOG = """\
examples:
  specjax serve                                          the bundled model on http://127.0.0.1:8080
  specjax serve --model model.gguf --draft auto --seats 16 --slots 8192 --prefix-bytes 2G
  SPECJAX_API_KEY=$(cat key.txt) specjax serve --host 0.0.0.0
  curl http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' -d '{"prompt": "def f("}'

SIGTERM and Ctrl-C let requests that run come to their end, for --drain-seconds at most.
"""

Number = TypeVar("Number", int, float)
NAMES: dict[object, str] = {int: "a whole number", float: "a number"}
MANY = 10**9
"""More than anybody needs, and few enough to compute with."""
KEY_VARIABLE = "SPECJAX_API_KEY"
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(subparsers, "serve", "serve a model over HTTP", DESCRIPTION, EPILOG, run)
    add_model_options(parser)
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    server.add_argument(
        "--port",
        type=within(int, 0, 65535),
        default=8080,
        metavar="N",
        help="port to listen on; 0 finds a free one (default: 8080)",
    )
    server.add_argument(
        "--api-key",
        metavar="KEY",
        help="clients must send it as Authorization: Bearer KEY (default: that of the environment variable"
        f" {KEY_VARIABLE}, which the list of processes does not show; if there is none, everybody may ask)",
    )
    server.add_argument(
        "--cors",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this site ask, such as https://example.org; can be repeated (default: none)",
    )
    server.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name by which clients may call the server; can be repeated. Without --host 0.0.0.0 or the like"
        " only names of this machine are taken",
    )
    server.add_argument("--alias", metavar="NAME", help="the model's name for clients (default: the file's)")
    seats, count = parser.add_argument_group("seats and limits"), within(int, 1, MANY)
    seats.add_argument("--seats", type=count, default=16, metavar="B", help="texts that run at once (default: 16)")
    seats.add_argument(
        "--slots", type=count, default=8192, metavar="S", help="tokens of a text with its prompt (default: 8192)"
    )
    seats.add_argument(
        "--prefix-bytes",
        type=byte_count,
        default=byte_count("256M"),
        metavar="N",
        help="memory for prompts that start alike, such as 512M or 2G; 0 keeps none (default: 256M)",
    )
    seats.add_argument(
        "--sessions", type=Path, metavar="FOLDER", help="where sessions are saved (default: they stay in memory)"
    )
    seats.add_argument(
        "--session-bytes",
        type=byte_count,
        default=byte_count("1G"),
        metavar="N",
        help="memory for states of sessions; those that were not used for long are saved, or computed again"
        " (default: 1G)",
    )
    seats.add_argument(
        "--queue",
        type=within(int, 0, MANY),
        default=256,
        metavar="N",
        help="texts that may wait while all seats are taken (default: 256)",
    )
    seats.add_argument(
        "--most-tokens", type=count, default=8192, metavar="N", help="tokens that a request may ask for (default: 8192)"
    )
    seats.add_argument(
        "--body-bytes", type=byte_count, default=byte_count("4M"), metavar="N", help="longest body (default: 4M)"
    )
    seats.add_argument(
        "--request-seconds",
        type=within(float, 0.001, MANY),
        default=600.0,
        metavar="T",
        help="longest time of a request (default: 600)",
    )
    seats.add_argument(
        "--drain-seconds",
        type=within(float, 0, MANY),
        default=60.0,
        metavar="T",
        help="how long requests may go on when the server is told to end (default: 60)",
    )
    seats.add_argument(
        "--no-warm",
        action="store_true",
        help="compile programs when requests first need them, and not before the server listens",
    )
    add_decoding_options(parser, most_tokens="16 for completions, else as many as fit", temperature="1", own=False)


def byte_count(text: str) -> int:
    """A number of bytes, with K, M or G for its unit if it has one."""
    number, unit = (text[:-1], UNITS[text[-1].upper()]) if text[-1:].upper() in UNITS else (text, 1)
    try:
        count = int(float(number) * unit)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes; give one such as 4096, 512M or 2G") from None
    if count < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is negative; give 0 or more bytes")
    return count


def within(kind: Callable[[str], Number], least: Number, most: Number) -> Callable[[str], Number]:
    """Reads the value of an option: a number in this range."""

    def read(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:  # which is false of no number, too
            raise argparse.ArgumentTypeError(f"it is {text!r}; give {NAMES[kind]} from {least} to {most}")
        return value

    return read


def api_key(args: argparse.Namespace) -> str | None:
    """The key of the command line or of the environment; None lets everybody ask.

    Raises:
        UsageError: it is none that a client can send.
    """
    given = args.api_key is not None
    place, key = ("--api-key", args.api_key) if given else (KEY_VARIABLE, os.environ.get(KEY_VARIABLE))
    if key is not None and (not key or key != key.strip()):
        raise UsageError(
            f"{place}: the key is empty, or has spaces at its ends; give another one, or none if everybody may ask"
        )
    return key


def run(args: argparse.Namespace) -> int:
    """Returns the exit status once the server has ended."""
    key = api_key(args)
    options = generate_options(args)
    if args.temperature is None:
        options = replace(options, temperature=1.0)  # as OpenAI has it
    try:
        import pydantic  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(f"serve needs the extra `serve`: pip install 'specjax[serve]' ({error})") from error
    from specjax.serving.addresses import bound

    with bound(args.host, args.port) as sockets:
        return _serve(args, options, key, sockets)


def _serve(args: argparse.Namespace, options: GenerateOptions, key: str | None, sockets: list[socket.socket]) -> int:
    from specjax.serving.addresses import url_of
    from specjax.serving.app import Access
    from specjax.serving.limits import Limits
    from specjax.serving.run import run_server
    from specjax.serving.service import Service, Settings

    model = load_model(args, need_tokenizer=True)
    limits = Limits(
        queue=args.queue,
        tokens=args.most_tokens,
        body_bytes=args.body_bytes,
        seconds=args.request_seconds,
        drain_seconds=args.drain_seconds,
    )
    settings = Settings(
        args.alias or model.path.stem,
        options,
        args.max_tokens,
        seats=args.seats,
        slots=args.slots,
        prefix_bytes=args.prefix_bytes,
        sessions=args.sessions,
        session_bytes=args.session_bytes,
        limits=limits,
    )
    local = args.host in ("127.0.0.1", "localhost", "::1")
    hosts = ["127.0.0.1", "localhost", "::1", *args.allow_host] if local else ["*"]
    service = Service(model, settings)
    if not args.no_warm:
        say("building programs; with a cache of compiled programs later starts are fast")
        for _ in service.warm():
            pass
    where = " and ".join(map(url_of, sockets))
    say(f"{settings.name} on {where}, {args.seats} seats of {service.settings.slots} tokens")
    if run_server(service, Access(key, hosts, args.cors), sockets):
        return 0
    say("error: the engine has failed, and no other one could be made; start the server again")
    return 1
