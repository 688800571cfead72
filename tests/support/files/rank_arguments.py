"""`files.rank_arguments COMFYUI FILE ARGUMENT...`:
tells the arguments that the ranks give ComfyUI's code for a file, where ComfyUI itself has these: on a GPU, and on the
CPU.
"""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

from parallel_backend.plan import ParallelPlan
from tests.support.host.mounted import mount


def main(comfyui: str, file: str, *arguments: str) -> list[Any]:
    mount(comfyui, *arguments)
    importlib.reload(importlib.import_module("comfy.cli_args"))  # where ComfyUI was imported with other arguments
    logging.disable(logging.CRITICAL)
    described = importlib.import_module("pack.nodes.model.host_file").describe_host_file(Path(file))
    return [described.source(ParallelPlan(), on_cpu).arguments for on_cpu in (False, True)]
