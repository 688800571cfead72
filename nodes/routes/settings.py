"""GET and POST /paralleldit/settings: show the settings, and change those that a page may set.

Only pages of this ComfyUI may call POST.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from aiohttp import web

from ...parallel_backend.device import Card
from ...worker.settings import (
    CHOICES,
    NOT_FROM_A_PAGE,
    Settings,
    SettingsError,
    convert_value,
    read_object,
    variable_of,
)
from ...worker.wire.json_object import parse_object
from ..workers.group import all_cards, change_settings, count_cores, list_outdated, settings, settings_file, split_cards
from . import MAX_BODY, ROUTES
from .control import refuse_foreign

REFUSED, CONFLICT = 403, 409
NAMES = {each.name for each in fields(Settings)}


@ROUTES.get("/paralleldit/settings")
async def show(_request: web.Request) -> web.Response:
    """Answers with `describe`."""
    try:
        return web.json_response(await asyncio.to_thread(describe))
    except SettingsError as error:
        return web.Response(status=500, text=str(error))


@ROUTES.post("/paralleldit/settings")
async def change(request: web.Request) -> web.Response:
    """Takes new values by name, null for the default, and answers with `describe`. Changes all of them or none: then it
    answers with a sentence that says why."""
    refuse_foreign(request)
    try:
        changes = parse_object(await request.clone(client_max_size=MAX_BODY).read())
    except ValueError as error:
        return web.Response(status=400, text=f"This is not a change of settings: {error}.")
    try:
        values = {
            name: None if value is None and name in NAMES else convert_value(name, value, "The dialog")
            for name, value in changes.items()
        }
        if why := explain_refusal(values):
            status, text = why
            return web.Response(status=status, text=text)
        await asyncio.to_thread(change_settings, values)
        return web.json_response(await asyncio.to_thread(describe))
    except SettingsError as error:
        return web.Response(status=400, text=str(error))


def explain_refusal(changes: Mapping[str, Any]) -> tuple[int, str] | None:
    """Says why a page may not set one of these settings, with a status; None if it may."""
    most, asked = count_cores(), changes.get("cpu_ranks")
    if asked is not None and asked > most:  # a plan for them could use up the machine's memory
        return REFUSED, (
            f"A page may set cpu_ranks to at most {most}, the cores of this machine. Set more in {settings_file()}, or "
            f"by {variable_of('cpu_ranks')}."
        )
    for name in changes:
        if name in NOT_FROM_A_PAGE:
            return REFUSED, f"A page may not set {name}. Set it in {settings_file()}, or by {variable_of(name)}."
        if os.environ.get(variable_of(name)):
            return CONFLICT, f"The environment variable {variable_of(name)} sets {name}, and wins over the settings."
    return None


def describe() -> dict[str, Any]:
    """Returns the settings and this machine's GPUs. Raises SettingsError for settings that cannot be read.

    settings: each with its name, value, default, allowed choices if there are such, where it comes from (default, file
    or variable), the name of its variable, and whether a page may set it.
    cards: each GPU of the ranks' kind, with its number, name, and whether automatic plans use it.
    outdated: the numbers of the worker groups that run with older settings.
    """
    found, written = settings(), read_object(settings_file())
    set_by_variable = {name for name in NAMES if os.environ.get(variable_of(name))}
    return {
        "settings": [
            {
                "name": each.name,
                "value": getattr(found, each.name),
                "default": each.default,
                "choices": CHOICES.get(each.name),
                "source": "variable" if each.name in set_by_variable else "file" if each.name in written else "default",
                "variable": variable_of(each.name),
                "is_open": each.name not in (*NOT_FROM_A_PAGE, *set_by_variable),
            }
            for each in fields(Settings)
        ],
        "cards": describe_cards(),
        "outdated": list_outdated(),
    }


def describe_cards() -> list[dict[str, Any]]:
    found, used = list[Card](), list[Card]()
    # The settings device and gpus may name what is not there, and a page may want to change that.
    with contextlib.suppress(SettingsError):
        found = all_cards()
        used = split_cards()[0]
    return [{"index": card.index, "words": str(card), "is_used": card in used} for card in found]
