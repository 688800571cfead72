"""GET /paralleldit/status: what the worker group is doing, as JSON. Read-only."""

import asyncio

from aiohttp import web
from server import PromptServer

from ..worker.client import WorkerGroupError
from .group import worker_group


def add_status_route() -> None:
    """Registers the route with ComfyUI's server."""

    @PromptServer.instance.routes.get("/paralleldit/status")
    async def status(_request: web.Request) -> web.Response:
        try:
            return web.json_response(await asyncio.to_thread(worker_group().status))
        except WorkerGroupError as error:
            return web.json_response({"state": "failed", "reason": str(error)})
