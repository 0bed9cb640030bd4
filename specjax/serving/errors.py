"""Errors as OpenAI's API tells them, and what of an error a client may learn."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse

from checkpoints import CheckpointError
from specjax.errors import SpecjaxError

LONGEST_MESSAGE = 1000
"""Characters of a message, at most: it may quote what the client sent."""

KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
"""Names of errors by their status; others are "invalid_request_error" below 500, and "server_error" from there on."""


class ApiError(Exception):
    """An answer that is an error.

    Attributes:
        status: the status of HTTP.
        message: what was wrong, what was got, how to mend it.
        param: the field of the request that was wrong, if it was one.
        code: a short name for programs.
        headers: more headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The answer's JSON, in OpenAI's form."""
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        message = self.message if len(self.message) <= LONGEST_MESSAGE else self.message[:LONGEST_MESSAGE] + " ..."
        message = message.encode(errors="replace").decode()  # half of a surrogate pair is no JSON
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The whole answer, with its status and headers."""
        return JSONResponse(self.body(), self.status, headers=dict(self.headers))


def refused(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The error of a request that cannot be done as it is."""
    return ApiError(400, message, param=param, code=code)


def invalid(error: ValidationError) -> ApiError:
    """What pydantic found wrong with a body: the first of it, and how much more there is."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    first = found[0]
    place = ".".join(map(str, first["loc"])) or None
    if first["type"] == "extra_forbidden":
        message = f"{place}: there is no such field, or this server does not know it; leave it out"
    elif first["type"] == "json_invalid":
        message, place = f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}", None
    else:
        message = f"{place}: {first['msg']}" if place else first["msg"]
    more = f" (and {len(found) - 1} more things are wrong)" if len(found) > 1 else ""
    return refused(message + more, param=place)


def answer_of(error: Exception, path: Path) -> ApiError:
    """The error that a client is told. What the client cannot mend is told to the log alone.

    Args:
        error: what happened.
        path: of the model's file, which no message to a client has.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return invalid(error)
    if isinstance(error, SpecjaxError | CheckpointError):
        return refused(str(error).replace(str(path), path.name))
    traceback.print_exception(error, file=sys.stderr)
    return ApiError(500, "the server has failed; its log says how", code="internal_error")
