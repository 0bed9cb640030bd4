"""The paths of the server, and what stands before them: the key, the host, the origin."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specjax.serving import status
from specjax.serving.chat import Chat
from specjax.serving.completions import Completions
from specjax.serving.errors import ApiError, answer_of
from specjax.serving.metrics import Metrics
from specjax.serving.service import Service
from specjax.serving.session_paths import SessionPaths
from specjax.serving.static_page import of_the_page, page_routes

OPEN_PATHS = ("/health",)
"""Paths that need no key, besides those of the page."""

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Access:
    """Who may ask.

    Attributes:
        key: what clients must send as `Authorization: Bearer KEY`; None lets everybody ask.
        hosts: names by which the server may be called; others are refused, so that no page of another site reaches a
            server of this machine by a name of its own.
        origins: sites whose pages may ask, for browsers.
    """

    key: str | None = None
    hosts: Sequence[str] = ("*",)
    origins: Sequence[str] = ()


def make_app(service: Service, access: Access = Access()) -> Starlette:
    """The server as an application of ASGI. It starts the engine's thread, and ends it."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.worker.start()
        yield
        service.worker.stop()
        service.worker.join()

    async def failed(request: Request, error: Exception) -> Response:
        return answer_of(error, service.model.path).response()

    async def http_failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        words = {404: "there is no such path", 405: "the path does not take this method"}
        message = f"{request.method} {request.url.path}: {words.get(error.status_code, error.detail)}"
        return ApiError(error.status_code, message, headers=error.headers).response()

    routes: list[Route | Mount] = [*_routes(service), *page_routes()]
    middleware = [Middleware(Counted, metrics=service.metrics, routes=routes)]
    if access.origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(access.origins),
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],  # OpenAI's clients send headers of their own, which have no effect here
            )
        )
    middleware.append(Middleware(Guard, access=access))
    app = Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={HTTPException: http_failed, Exception: failed},
    )
    app.router.redirect_slashes = False
    return app


def _routes(service: Service) -> list[Route]:
    def guarded(handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except HTTPException:
                raise
            except Exception as error:
                return answer_of(error, service.model.path).response()

        return handle

    chat, completions, told = Chat(service), Completions(service), status.Status(service)
    posts: dict[str, Handler] = {
        "tokenize": told.tokenize,
        "detokenize": told.detokenize,
        "apply-template": chat.apply_template,
    }
    gets: dict[str, Handler] = {
        "v1/models": told.models,
        "v1/models/{name:path}": told.model,
        "health": told.health,
        "metrics": told.metrics,
        "slots": told.seats,
        "props": told.props,
    }
    for prefix in ("v1/", ""):
        posts |= {f"{prefix}chat/completions": chat, f"{prefix}completions": completions}
    every = [*(("POST", *each) for each in posts.items()), *(("GET", *each) for each in gets.items())]
    every += SessionPaths(service).routes()
    return [Route(f"/{path}", guarded(handler), methods=[method]) for method, path, handler in every]


class Guard:
    """Lets through who calls the server by one of its names and sends the key. The open paths need no key."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        """
        Args:
            app: what is behind.
            access: who may ask.
        """
        self._app, self._access = app, access
        self._digest = None if access.key is None else hashlib.sha256(access.key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        error = self._error(scope) if scope["type"] == "http" else None
        await (self._app if error is None else error.response())(scope, receive, send)

    def _error(self, scope: Scope) -> ApiError | None:
        headers = dict(scope["headers"])
        if "*" not in self._access.hosts and _name(headers.get(b"host", b"")) not in self._access.hosts:
            return ApiError(
                421, "the server is not called so; call it by one of its names, or start it with --allow-host"
            )
        if self._digest is None or scope["path"] in OPEN_PATHS or of_the_page(scope["path"]):
            return None
        kind, _, key = headers.get(b"authorization", b"").partition(b" ")
        # Digests are compared, in a time that does not depend on the key.
        fits = hmac.compare_digest(hashlib.sha256(key.strip()).digest(), self._digest)
        if fits and kind.lower() == b"bearer":
            return None
        message, asked = "the key is missing or wrong; send Authorization: Bearer KEY", {"WWW-Authenticate": "Bearer"}
        return ApiError(401, message, code="invalid_api_key", headers=asked)


def _name(host: bytes) -> str:
    """The name in a header Host, without the port."""
    try:
        return urlsplit(f"//{host.decode('latin-1')}").hostname or ""
    except ValueError:
        return ""


class Counted:
    """Counts answers and takes their time."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Sequence[Route | Mount]) -> None:
        """
        Args:
            app: what is behind.
            metrics: where it is counted.
            routes: the paths that are told apart.
        """
        self._app, self._metrics, self._routes = app, metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and note what came of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        path = next((route.path for route in self._routes if route.matches(scope)[0] is not Match.NONE), "other")
        try:
            await self._app(scope, receive, noted)
        finally:
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.seconds.labels(path).observe(time.perf_counter() - begin)
