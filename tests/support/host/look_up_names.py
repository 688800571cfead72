"""`host.look_up_names COMFYUI BASE NAME...`:
what Load DiT makes of names that a workflow gives.

By name: what the node's check says of it (true, or words), the path that it means, and what executing it raises.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

from tests.support.host.mounted import mount


def main(comfyui: str, base: str, names: str) -> dict[str, Any]:
    mount(comfyui, "--base-directory", base)
    loader = importlib.import_module("pack.nodes.load_dit").LoadDiT
    files = importlib.import_module("pack.nodes.model.model_files")

    def raised(call: object, *arguments: object) -> str:
        try:
            call(*arguments)
        except Exception as error:  # told apart by the test
            return f"{type(error).__name__}: {error}"
        return ""

    return {
        name: {
            "valid": loader.validate_inputs(name),
            "path": str(files.list_models().get(name, "")),
            "load": raised(loader.execute, name),
        }
        for name in json.loads(names)
    }
