"""What the page of ComfyUI would show on a node that runs of a plan in place of the one that was asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

NODE = "5"
REPLACED = "This sampling runs under "  # begins what the node says if another plan runs than was asked for


@contextmanager
def as_node() -> Iterator[list[str]]:
    """Yields these texts, of what is shown on the node while it is entered. There is no server."""
    server: Any = importlib.import_module("server").PromptServer
    shown: list[str] = []

    def show(text: str, node: str) -> None:
        if node == NODE and text.startswith(REPLACED):
            shown.append(text)

    server.instance = SimpleNamespace(send_progress_text=show)
    try:
        with importlib.import_module("comfy_execution.utils").CurrentNodeContext("census", NODE):
            yield shown
    finally:
        del server.instance
