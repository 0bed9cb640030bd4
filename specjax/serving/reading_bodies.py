"""Bodies of requests, read within limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from specjax.serving.errors import ApiError
from specjax.serving.forms import Form
from specjax.serving.limits import Limits

AForm = TypeVar("AForm", bound=Form)
Value = TypeVar("Value")

CLIENT_GONE = 499
"""The status that the log has for a client that left; nobody gets it."""


async def read_form(request: Request, form: type[AForm], limits: Limits) -> AForm:
    """The body of a request as a form.

    Raises:
        ApiError: it is no JSON, too long, or takes too long to come.
        pydantic.ValidationError: it is something else than the form wants.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "the body must be JSON: send the header Content-Type: application/json")
    return form.model_validate_json(await _read(request, limits))


async def _read(request: Request, limits: Limits) -> bytes:
    long = ApiError(413, f"the body is longer than {limits.body_bytes} bytes; send less")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limits.body_bytes:
        raise long
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > limits.body_bytes:
                    raise long
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {limits.body_seconds:g} seconds") from None
    except ClientDisconnect:
        raise ApiError(CLIENT_GONE, "the client is gone") from None
    return bytes(body)


async def unless_gone(request: Request, work: Awaitable[Value]) -> Value:
    """Wait for the work, and break it off if the client leaves.

    Raises:
        ApiError: the client is gone.
    """

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(CLIENT_GONE, "the client is gone")
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
