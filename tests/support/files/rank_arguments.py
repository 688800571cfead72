"""`files.rank_arguments COMFYUI FILE ARGUMENT...`:
prints the arguments that the ranks give ComfyUI's code for a file, where ComfyUI itself has these: on a GPU, and on the
CPU, as JSON.
"""

from __future__ import annotations

import importlib
import json
import logging
from pathlib import Path

from parallel_backend.plan import ParallelPlan
from tests.support.host.mounted import mount


def main(comfyui: str, file: str, *arguments: str) -> None:
    mount(comfyui, *arguments)
    importlib.reload(importlib.import_module("comfy.cli_args"))  # where ComfyUI was imported with other arguments
    logging.disable(logging.CRITICAL)
    described = importlib.import_module("pack.nodes.model.host_file").describe_host_file(Path(file))
    print(json.dumps([described.source(ParallelPlan(), on_cpu).arguments for on_cpu in (False, True)]))
