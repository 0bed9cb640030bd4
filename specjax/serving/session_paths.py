"""The paths /sessions: sessions are made, listed, saved, restored, forked, shortened and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import uuid4

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specjax.serving.errors import refused
from specjax.serving.forms import Form
from specjax.serving.reading_bodies import read_form
from specjax.serving.service import Service

AForm = TypeVar("AForm", bound=Form)


class NameForm(Form):
    """The name of a session that is made."""

    id: str | None = None


class RewindForm(Form):
    """How far to go back: to so many tokens, or by so many."""

    length: int | None = Field(None, ge=0)
    tokens: int | None = Field(None, ge=0)


class SessionPaths:
    """Answers what is asked of sessions; each method is the handler of a path."""

    def __init__(self, service: Service) -> None:
        """
        Args:
            service: whose sessions they are.
        """
        self._service, self._sessions = service, service.sessions

    def routes(self) -> list[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        """Method, path and handler of each."""
        return [
            ("GET", "sessions", self.list),
            ("POST", "sessions", self.create),
            ("GET", "sessions/{id}", self.get),
            ("DELETE", "sessions/{id}", self.delete),
            ("POST", "sessions/{id}/save", self.save),
            ("POST", "sessions/{id}/restore", self.restore),
            ("POST", "sessions/{id}/fork", self.fork),
            ("POST", "sessions/{id}/rewind", self.rewind),
        ]

    async def list(self, request: Request) -> Response:
        """All sessions, in memory or saved."""
        data = await asyncio.to_thread(self._sessions.names)
        return JSONResponse({"object": "list", "data": data})

    async def create(self, request: Request) -> Response:
        """A session without tokens, under the name that is given or a new one."""
        form = await self._form(request, NameForm)
        name = uuid4().hex if form.id is None else form.id
        await asyncio.to_thread(self._sessions.create, name)
        return await self._told(name, status=201)

    async def get(self, request: Request) -> Response:
        """One session with its text."""
        name = request.path_params["id"]
        session = await asyncio.to_thread(self._sessions.get, name)
        return await self._told(name, text=session.text)

    async def delete(self, request: Request) -> Response:
        """Forget a session, its file too."""
        await asyncio.to_thread(self._sessions.delete, request.path_params["id"])
        return JSONResponse({"id": request.path_params["id"], "deleted": True})

    async def save(self, request: Request) -> Response:
        """Write a session to its file."""
        size = await asyncio.to_thread(self._sessions.save, request.path_params["id"])
        return await self._told(request.path_params["id"], file_bytes=size)

    async def restore(self, request: Request) -> Response:
        """Read a session from its file again."""
        await asyncio.to_thread(self._sessions.restore, request.path_params["id"])
        return await self._told(request.path_params["id"])

    async def fork(self, request: Request) -> Response:
        """The same session under another name."""
        form = await self._form(request, NameForm)
        name = uuid4().hex if form.id is None else form.id
        await asyncio.to_thread(self._sessions.fork, request.path_params["id"], name)
        return await self._told(name, status=201)

    async def rewind(self, request: Request) -> Response:
        """Take back the end of a session."""
        form, name = await self._form(request, RewindForm), request.path_params["id"]
        if (form.length is None) == (form.tokens is None):
            raise refused("give length, the tokens to keep, or tokens, those to take back", param="length")
        length = form.length
        if length is None:
            session = await asyncio.to_thread(self._sessions.get, name)
            length = len(session.conversation) - (form.tokens or 0)
        await asyncio.to_thread(self._sessions.rewind, name, length)
        return await self._told(name)

    async def _form(self, request: Request, form: type[AForm]) -> AForm:
        return await read_form(request, form, self._service.settings.limits)

    async def _told(self, name: str, *, status: int = 200, **more: Any) -> Response:
        told = await asyncio.to_thread(self._sessions.describe, name)
        return JSONResponse({**told, **more}, status)
