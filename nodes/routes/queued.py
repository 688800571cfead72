"""Starts the ranks of a prompt's Parallelize Model nodes, and reads their files ahead, as soon as it is queued."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from server import PromptServer

from ...parallel_backend.costs.forward import Work
from ...parallel_backend.device import CPU
from ...parallel_backend.errors import Explained
from ...worker.host.client import WorkerGroup
from ..model.host_file import WEIGHT_DTYPES, describe_host_file
from ..parallel_plan import choose_plan, parse_plan, resolve_plan
from ..workers.ahead import prepare_model
from ..workers.group import GROUPS, check_installed, device_type, worker_group
from .loaded_file import find_loaded

PARALLELIZE = "ParallelDiT_Parallelize"
MODEL = "MODEL"
COMFYUIS_NODES = "nodes"  # ComfyUI's module, not this package
WAIT_SECONDS = 5.0  # for ComfyUI to accept the prompt
POLL_SECONDS = 0.05


def add_prompt_handler() -> None:
    """Has ComfyUI call `start_ahead` with each prompt that it is sent."""
    PromptServer.instance.add_on_prompt_handler(start_ahead)


def start_ahead(asked: dict[str, Any]) -> dict[str, Any]:
    """Prepares a prompt's models in another thread, unless other prompts wait or run: these may need other ranks.
    Returns what it is given."""
    prompt, server = asked.get("prompt"), PromptServer.instance
    if isinstance(prompt, dict) and not server.prompt_queue.get_tasks_remaining():
        threading.Thread(target=prepare_models, args=(prompt,), name="paralleldit-queued", daemon=True).start()
    return asked


def prepare_models(prompt: dict[str, Any]) -> None:
    """Prepares the first model of each worker group that another node takes, once ComfyUI has accepted the prompt. It
    ignores errors, because the nodes report them."""
    until = time.monotonic() + WAIT_SECONDS
    while not PromptServer.instance.prompt_queue.get_tasks_remaining():
        if time.monotonic() > until:
            return
        time.sleep(POLL_SECONDS)
    try:
        lines = {key: [*walk_up(prompt, key)] for key, node in prompt.items() if node["class_type"] == PARALLELIZE}
        taken = {origin for node in prompt.values() for origin, _ in list_links(node)}
        meant = taken - {key for line in lines.values() for key in line[1:]}  # of two in a row, the last one counts
        groups = {*range(1, GROUPS + 1)}
        for key in lines.keys() & meant:
            own, maker = prompt[key]["inputs"], prompt[lines[key][-1]]["inputs"]
            if (group := own.get("group", 1)) in groups:
                groups.remove(group)
                prepare(own, maker, worker_group(group))
    except (Explained, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        logging.debug("[ParallelDiT] %s", error)


def prepare(own: Mapping[str, Any], maker: Mapping[str, Any], group: WorkerGroup) -> None:
    """Prepares one model, if its file is known. own, maker: the inputs of the node, and of the node that makes the
    model."""
    names = {name: value for name, value in maker.items() if isinstance(value, str)}
    if path := find_loaded(names):
        check_installed()
        file = describe_host_file(path, *WEIGHT_DTYPES.get(names.get("weight_dtype", ""), (None, False)))
        asked = parse_plan(own["mode"], {name: own[name] for name in own if name not in ("model", "mode", "group")})
        if asked:
            plan = resolve_plan(asked, file.module, file.sizes).plan
        else:
            plan = choose_plan(Work(), file.costs()).plan
        source = file.source(plan, device_type() == CPU)
        prepare_model(group, plan.world_size, source.to_json(), source.files)


def walk_up(prompt: Mapping[str, Any], key: str) -> Iterator[str]:
    """Yields the keys of a node and of those before it on the MODEL line. Of several MODELs it follows the first."""
    seen = set()
    while key and key not in seen:
        seen.add(key)
        yield key
        key = next((origin for origin, slot in list_links(prompt[key]) if gives_model(prompt.get(origin), slot)), "")


def list_links(node: Mapping[str, Any]) -> list[list[Any]]:
    """Lists what a node's inputs are linked to: the key of a node, and the number of its output."""
    return [value for value in node["inputs"].values() if isinstance(value, list) and len(value) == 2]


def gives_model(node: Mapping[str, Any] | None, slot: int) -> bool:
    """Whether an output of a node is a MODEL."""
    known = importlib.import_module(COMFYUIS_NODES).NODE_CLASS_MAPPINGS
    made = known[node["class_type"]].RETURN_TYPES if node else ()
    return slot < len(made) and made[slot] == MODEL
