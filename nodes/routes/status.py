"""GET /paralleldit/groups, /status, /error, /trace and /logs: show what the worker groups do and did. Read-only.

A query `group=N` names the group, the first by default.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from ...worker.errors import RequestRefused, WorkerGroupError
from ...worker.host.client import WorkerGroup
from ...worker.launch.logs import log_path, tail
from ...worker.settings import SettingsError
from ..workers.group import GROUPS, device_count, device_type, list_groups, worker_group
from . import ROUTES

DEFAULT_LINES = 200
MAX_LINES = 5000
TRACE_HEADERS = {"Content-Disposition": 'attachment; filename="paralleldit-trace.json"'}


def group_of(request: web.Request) -> WorkerGroup:
    """Returns the group that the query names. Raises HTTPException if there is no such group, or for wrong settings."""
    number = request.query.get("group", "1")
    if number not in map(str, range(1, GROUPS + 1)):
        raise web.HTTPBadRequest(text=f"There is no worker group {number!r}; they are numbered from 1 to {GROUPS}.")
    try:
        return worker_group(int(number))
    except SettingsError as error:
        raise web.HTTPInternalServerError(text=str(error)) from error


@ROUTES.get("/paralleldit/groups")
async def groups(_request: web.Request) -> web.Response:
    """Returns all groups with their last runs, and the devices of an automatic plan. A page begins with this, and then
    gets events."""
    try:
        groups_by_number, device, devices = list_groups(), device_type(), device_count()
    except SettingsError as error:
        raise web.HTTPInternalServerError(text=str(error)) from error
    statuses = await asyncio.gather(*(asyncio.to_thread(group.status) for group in groups_by_number.values()))
    found = [
        {"group": number, "status": status, "runs": group.runs.to_json()}
        for (number, group), status in zip(groups_by_number.items(), statuses, strict=True)
    ]
    return web.json_response({"groups": found, "device": device, "devices": devices})


@ROUTES.get("/paralleldit/status")
async def status(request: web.Request) -> web.Response:
    """Returns the group's state, its process ids, and the loaded models."""
    return web.json_response(await asyncio.to_thread(group_of(request).status))


@ROUTES.get("/paralleldit/error")
async def relative_error(request: web.Request) -> web.Response:
    """Returns the relative error of one run's latents against an exact one's, as `error`; null if it is not known. The
    queries `run` and `exact` are their ids."""
    try:
        run, exact = (int(request.query.get(name, "")) for name in ("run", "exact"))
    except ValueError:
        return web.Response(status=400, text="Ask for ?run= and exact= with the ids of two runs.")
    return web.json_response({"error": group_of(request).runs.relative_error(run, exact)})


@ROUTES.get("/paralleldit/trace")
async def trace(request: web.Request) -> web.Response:
    """Returns every rank's last requests, steps and communication as a Perfetto file; 409 while a job runs."""
    try:
        body = await asyncio.to_thread(group_of(request).trace)
    except RequestRefused as error:
        return web.Response(status=409, text=str(error))
    except WorkerGroupError as error:
        return web.Response(status=503, text=str(error))
    return web.Response(body=body, content_type="application/json", headers=TRACE_HEADERS)


@ROUTES.get("/paralleldit/logs")
async def logs(request: web.Request) -> web.Response:
    """Returns the last `lines` lines of the log of `rank`, as text."""
    try:
        rank, lines = int(request.query.get("rank", 0)), int(request.query.get("lines", DEFAULT_LINES))
    except ValueError:
        rank, lines = -1, 0
    if rank < 0 or not 0 < lines <= MAX_LINES:
        return web.Response(status=400, text=f"Ask for ?rank=0 or higher, and for ?lines=1 to {MAX_LINES}.")
    group = group_of(request)
    text = await asyncio.to_thread(tail, log_path(group.folder, rank), lines)
    if not text and rank >= group.ranks:
        return web.Response(status=404, text=f"There is no log of rank {rank}; the ranks start with the first prompt.")
    return web.Response(text=text)
