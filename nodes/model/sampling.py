"""What concerns a sampling in ComfyUI: its interrupt, its callback, and messages on the node."""

from __future__ import annotations

import logging
from collections.abc import Callable

import comfy.model_management
import torch
from comfy_execution.utils import get_executing_context
from server import PromptServer

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
