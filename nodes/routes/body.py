"""Reads what pages send."""

from __future__ import annotations

from aiohttp import web

MAX_BYTES = 1 << 16


async def read_body(request: web.Request, what: str) -> bytes:
    """Returns the body of a request. Raises HTTPRequestEntityTooLarge. what: begins its sentence."""
    body = b""
    async for chunk in request.content.iter_chunked(MAX_BYTES):
        body += chunk
        if len(body) > MAX_BYTES:
            raise web.HTTPRequestEntityTooLarge(MAX_BYTES, len(body), text=f"{what} has at most {MAX_BYTES} bytes.")
    return body
