"""The page at `/`: files of the package `page`, sent with headers that let the browser run nothing else."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parent / "page"
FILES_PATH = "/page"

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",  # text never becomes markup, not even by a mistake in the page
}
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a new version of the server has a new page
}


class _Files(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        if path.endswith(".js"):  # some systems have another type in their tables, and browsers refuse modules of it
            response.headers["Content-Type"] = "text/javascript; charset=utf-8"
        return response


def page_routes() -> list[Route | Mount]:
    """The page and its files. They hold nothing of the model and need no key; what the page asks for does."""
    files = _Files(directory=FOLDER)

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    return [Route("/", index, methods=["GET"]), Mount(FILES_PATH, files)]


def of_the_page(path: str) -> bool:
    """Whether a path is the page's or one of its files'."""
    return path == "/" or path.startswith(FILES_PATH + "/")
