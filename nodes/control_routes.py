"""POST /paralleldit/restart and /paralleldit/stop: what changes a worker group. For pages of this ComfyUI alone."""

import asyncio
from urllib.parse import urlsplit

from aiohttp import web
from server import PromptServer

from .status_route import group_of


def add_control_routes() -> None:
    """Registers the routes with ComfyUI's server. A query `group=N` names the group, the first by default."""

    @PromptServer.instance.routes.post("/paralleldit/restart")
    async def restart(request: web.Request) -> web.Response:
        refuse_foreign(request)
        await asyncio.to_thread(group_of(request).restart)
        return web.json_response({"state": "stopped"})

    @PromptServer.instance.routes.post("/paralleldit/stop")
    async def stop(request: web.Request) -> web.Response:
        refuse_foreign(request)
        await asyncio.to_thread(group_of(request).stop)
        return web.json_response({"state": "stopped"})


def refuse_foreign(request: web.Request) -> None:
    """Raises HTTPForbidden for a request that a page of another site makes: a browser says where it comes from."""
    origin = request.headers.get("Origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("Host")
    if foreign or request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise web.HTTPForbidden(text="Only pages of this ComfyUI may change its worker groups.")
