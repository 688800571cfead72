"""POST /paralleldit/start, /restart, /stop, /park and /dismiss: what changes a worker group. For pages of this ComfyUI
alone."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web
from server import PromptServer

from ...worker.errors import RequestRefused, WorkerGroupError
from ...worker.host.client import WorkerGroup
from ..workers.group import device_count
from .status import group_of

PARK_SECONDS = 30.0  # for the job that runs to end
POLL_SECONDS = 0.05


def start(group: WorkerGroup) -> None:
    group.start(device_count(), lambda: None)


def restart(group: WorkerGroup) -> None:
    group.restart(device_count(), lambda: None)


def park(group: WorkerGroup) -> None:
    """Waits for the run that goes on, which has turns of its own for each forward where ComfyUI runs the loop."""
    until = time.monotonic() + PARK_SECONDS
    while group.runs.current and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    if group.runs.current or not group.park(patience=max(0.0, until - time.monotonic())):
        raise RequestRefused(
            "A job runs in the worker group, and has not ended.", "Interrupt it, or park the group when it is done."
        )


def add_control_routes() -> None:
    """Registers the routes with ComfyUI's server. A query `group=N` names the group, the first by default.

    Each answers when it is done, with the state that the group is in then; or with a sentence that says why it is not,
    409 where the group goes on as it was, 503 where it does not run.
    """
    changes = {
        "start": start,
        "restart": restart,
        "stop": WorkerGroup.stop,
        "park": park,
        "dismiss": WorkerGroup.dismiss,
    }
    for name, change in changes.items():
        PromptServer.instance.routes.post(f"/paralleldit/{name}")(handler(change))


def handler(change: Callable[[WorkerGroup], None]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        refuse_foreign(request)
        group = group_of(request)
        try:
            await asyncio.to_thread(change, group)
        except RequestRefused as error:
            return web.Response(status=409, text=str(error))
        except WorkerGroupError as error:
            return web.Response(status=503, text=str(error))
        return web.json_response({"state": (await asyncio.to_thread(group.status))["state"]})

    return handle


def refuse_foreign(request: web.Request) -> None:
    """Raises HTTPForbidden for a request that a page of another site makes: a browser says where it comes from."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is None:  # over plain http a browser says only where the page is from
        foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("Host")
    else:  # which no page can forge, and no proxy changes
        foreign = site not in ("none", "same-origin")
    if foreign:
        raise web.HTTPForbidden(text="Only pages of this ComfyUI may change its worker groups.")
