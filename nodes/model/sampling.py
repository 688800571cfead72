"""What concerns a sampling in ComfyUI: its interrupt, its callback, and messages on the node."""

from __future__ import annotations

import logging
from collections.abc import Callable

import comfy.model_management
import torch
from comfy_execution.utils import get_executing_context
from server import PromptServer

from ...parallel_backend.errors import Explained
from ...worker.settings import REFUSE
from ..workers.group import worker_group

check_interrupt = comfy.model_management.throw_exception_if_processing_interrupted
Callback = Callable[[int, torch.Tensor, torch.Tensor, int], None]  # of a sampler: step, denoised, latents, steps


def warn(text: str) -> None:
    """Says a text in the log, and on the node that runs."""
    logging.warning("[ParallelDiT] %s", text)
    show_on_node(text)


def show_on_node(text: str) -> None:
    """Shows a text on the node that runs, if there is a page."""
    context, server = get_executing_context(), getattr(PromptServer, "instance", None)
    if context and server:
        server.send_progress_text(text, context.node_id)


def explain_stock(error: Explained, group: int, begin: str = "") -> None:
    """Says on the node and in the log that a model runs as stock. Raises the error if the settings ask for one. begin:
    goes before the error's text."""
    if worker_group(group).settings.when_not_parallel == REFUSE:
        raise error
    warn(f"{begin} {error.explanation.brief}".strip())
