"""A node pack of the tests' own: it sends pages the events of worker groups that are not there, and has a node that
waits for those that are.

POST /test/told {"events": [[name, event], …], "seconds": 0.125}: one after the other, over and over, until it is asked
anew; without seconds once, all at once.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import urllib.request

from aiohttp import web
from server import PromptServer


class WaitForRanks:
    """Goes on once the ranks of a group start or run. Raises TimeoutError if they do not."""

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "wait"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "group": ("INT", {})}}

    def wait(self, model, group):
        url = f"http://127.0.0.1:{PromptServer.instance.port}/paralleldit/status?group={group}"
        for _ in range(300):
            with urllib.request.urlopen(url) as answer:
                if json.load(answer)["state"] in ("starting", "ready"):
                    return (model,)
            time.sleep(0.1)
        raise TimeoutError(f"No ranks of group {group} start.")


NODE_CLASS_MAPPINGS = {"Test_WaitForRanks": WaitForRanks}
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
