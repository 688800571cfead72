"""POST /paralleldit/start, /restart, /stop, /park, /dismiss and /remove: change a worker group. A query `group=N` names
it, the first by default. Only pages of this ComfyUI may call them.

Each route answers when it is done, with the group's new state. If it fails, it answers with a sentence that says why:
with 409 if the group goes on as it was, with 503 if it does not run.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from urllib.parse import urlsplit

import comfy.cli_args
from aiohttp import web
from server import is_loopback

from ...worker.errors import RequestRefused, WorkerGroupError
from ...worker.host.client import WorkerGroup
from ...worker.settings import SettingsError
from ..workers.group import device_count, reload_settings, remove_group
from . import ROUTES
from .status import group_of

LOCALHOST, PORT = "localhost", re.compile(r":\d+$")
PARK_SECONDS = 30.0  # to wait for the running job
POLL_SECONDS = 0.05


def restart(group: WorkerGroup) -> None:
    """Restarts the group with what the settings file has now."""
    reload_settings()
    group.restart(device_count())


def park(group: WorkerGroup) -> None:
    """Parks the group after its present run ends. If ComfyUI runs the loop, a run has a turn for each forward."""
    until = time.monotonic() + PARK_SECONDS
    while group.runs.current and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    if group.runs.current or not group.park(patience=max(0.0, until - time.monotonic())):
        raise RequestRefused("The worker group is running a job.", "Interrupt it, or park the group when it is done.")


CHANGES: dict[str, Callable[[WorkerGroup], None]] = {
    "start": lambda group: group.start(device_count()),
    "restart": restart,
    "stop": WorkerGroup.stop,
    "park": park,
    "dismiss": WorkerGroup.dismiss,
    "remove": remove_group,
}


def make_handler(change: Callable[[WorkerGroup], None]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        refuse_foreign(request)
        group = group_of(request)
        try:
            await asyncio.to_thread(change, group)
        except (RequestRefused, SettingsError) as error:
            return web.Response(status=409, text=str(error))
        except WorkerGroupError as error:
            return web.Response(status=503, text=str(error))
        return web.json_response({"state": (await asyncio.to_thread(group.status))["state"]})

    return handle


for name, change in CHANGES.items():
    ROUTES.post(f"/paralleldit/{name}")(make_handler(change))


def refuse_foreign(request: web.Request) -> None:
    """Raises HTTPForbidden for a request from a page of another site. Browsers say where a request comes from.

    While ComfyUI listens on the loopback only, its pages have an IP address or localhost as their host. Another name
    may be a foreign page's, whose owner lets the name stand for 127.0.0.1 (DNS rebinding).
    """
    is_reached_from_here_alone = all(map(is_loopback, map(str.strip, comfy.cli_args.args.listen.split(","))))
    if is_reached_from_here_alone and not is_local(request.headers.get("Host", "")):
        raise web.HTTPForbidden(
            text="ComfyUI listens for this machine only, and this page has another name. Open it as localhost."
        )
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is None:  # over plain http, a browser only sends the page's origin
        foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("Host")
    else:  # no page can forge this header, and no proxy changes it
        foreign = site not in ("none", "same-origin")
    if foreign:
        raise web.HTTPForbidden(text="Only pages of this ComfyUI may change its workers and settings.")


def is_local(host: str) -> bool:
    """Whether a header Host has an IP address or localhost, which nobody can let stand for another machine."""
    name = PORT.sub("", host)
    try:
        return bool(ip_address(name.strip("[]")))
    except ValueError:
        return name == LOCALHOST or name.endswith(f".{LOCALHOST}")
