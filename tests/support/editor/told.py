"""A node pack of the tests' own: it sends pages the events of worker groups that are not there.

POST /test/told {"events": [[name, event], …]}: one after the other.
"""

from __future__ import annotations

from aiohttp import web
from server import PromptServer

NODE_CLASS_MAPPINGS = {}


@PromptServer.instance.routes.post("/test/told")
async def told(request: web.Request) -> web.Response:
    for name, event in (await request.json())["events"]:
        await PromptServer.instance.send(name, event)
    return web.json_response({})
