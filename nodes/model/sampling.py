"""The state of one sampling, and the messages on the node."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

import comfy.model_management
import torch
from comfy_execution.utils import get_executing_context
from server import PromptServer

check_interrupt = comfy.model_management.throw_exception_if_processing_interrupted
Callback = Callable[[int, torch.Tensor, torch.Tensor, int], None]  # of a sampler: step, denoised, latents, steps


class Sampling:
    """One sampling. Objects that nodes run inside of the model live in the ranks for as long as it lasts."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self.said: set[str] = set()

    def say_once(self, text: str) -> None:
        """Says a text, once in this sampling."""
        if text not in self.said:
            self.said.add(text)
            warn(text)


def warn(text: str) -> None:
    """Says a text in the log, and on the node that runs."""
    logging.warning("[ParallelDiT] %s", text)
    show_on_node(text)


def show_on_node(text: str) -> None:
    """Shows a text on the node that runs, if there is a page."""
    context, server = get_executing_context(), getattr(PromptServer, "instance", None)
    if context and server:
        server.send_progress_text(text, context.node_id)
