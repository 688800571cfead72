"""A node pack of the tests' own: it sends pages the events of worker groups that are not there, and has a node that
waits for those that are.

POST /test/told {"events": [[name, event], …]}: one after the other.
"""

from __future__ import annotations

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


@PromptServer.instance.routes.post("/test/told")
async def told(request: web.Request) -> web.Response:
    for name, event in (await request.json())["events"]:
        await PromptServer.instance.send(name, event)
    return web.json_response({})
