"""A node pack of the tests' own: it sends pages the events of worker groups that are not there.

POST /test/told {"events": [[name, event], …], "seconds": 0.125}: one after the other, over and over, until it is asked
anew; without seconds once, all at once.
"""

from __future__ import annotations

import asyncio
import itertools

from aiohttp import web
from server import PromptServer

NODE_CLASS_MAPPINGS: dict[str, type] = {}
telling: list[asyncio.Task] = []


async def tell(events: list, seconds: float) -> None:
    for name, event in itertools.cycle(events):
        await PromptServer.instance.send(name, event)
        await asyncio.sleep(seconds)


@PromptServer.instance.routes.post("/test/told")
async def told(request: web.Request) -> web.Response:
    asked = await request.json()
    while telling:
        telling.pop().cancel()
    if seconds := asked.get("seconds"):
        telling.append(asyncio.create_task(tell(asked["events"], seconds)))
    else:
        for name, event in asked["events"]:
            await PromptServer.instance.send(name, event)
    return web.json_response({})
