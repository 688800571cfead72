"""Starts the ranks of a prompt's Parallelize Model nodes as soon as it is queued."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from server import PromptServer

from ...parallel_backend.device import CPU
from ...parallel_backend.errors import Explained
from ...worker.comfyui.source import HostSource
from ...worker.settings import WITH_SAMPLER
from ..inside.references import COMFYUI
from ..model.host_file import list_rank_arguments
from ..parallel_plan import fit_to_machine, parse_plan
from ..workers.group import device_count, device_type, settings, worker_group

PARALLELIZE = "ParallelDiT_Parallelize"
WAIT_SECONDS = 5.0  # for ComfyUI to accept the prompt
POLL_SECONDS = 0.05


def start_ahead(asked: dict[str, Any]) -> dict[str, Any]:
    """ComfyUI calls it with each prompt that it is sent. Starts the prompt's ranks in another thread, unless other
    prompts wait or run: these may need other ranks. Returns what it is given."""
    prompt, server = asked.get("prompt"), PromptServer.instance
    if isinstance(prompt, dict) and not server.prompt_queue.get_tasks_remaining():
        threading.Thread(target=start_ranks, args=(prompt,), name="paralleldit-queued", daemon=True).start()
    return asked


def start_ranks(prompt: dict[str, Any]) -> None:
    """Starts in each worker group without ranks the most that one of its nodes asks for, once ComfyUI has accepted the
    prompt. Running ranks stay, because the node may yet refuse its plan. It ignores errors, because the nodes report
    them."""
    until = time.monotonic() + WAIT_SECONDS
    while not PromptServer.instance.prompt_queue.get_tasks_remaining():
        if time.monotonic() > until:
            return
        time.sleep(POLL_SECONDS)
    try:
        ranks: dict[int, int] = {}
        for own in (node["inputs"] for node in prompt.values() if node["class_type"] == PARALLELIZE):
            asked = parse_plan(own["mode"], own)
            count, group = fit_to_machine(asked).plan.world_size if asked else device_count(), own.get("group", 1)
            ranks[group] = max(count, ranks.get(group, 0))
        for group, count in ranks.items() if settings().start != WITH_SAMPLER else ():
            arguments = list_rank_arguments(count > 1, device_type() == CPU)
            source = HostSource(str(COMFYUI), arguments, file="", model_class="", dtype="", cast="")
            if not (workers := worker_group(group)).is_running:
                workers.start_ahead(count, source.to_json())
    except (Explained, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        logging.debug("[ParallelDiT] %s", error)
