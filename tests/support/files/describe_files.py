"""`files.describe_files COMFYUI FILE...`: prints as JSON why each file is refused, by its name; nothing of others."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from tests.support.host.mounted import mount


def main(comfyui: str, *files: str) -> None:
    mount(comfyui)
    host_file = importlib.import_module("pack.nodes.model.host_file")
    found = {}
    for file in map(Path, files):
        try:
            host_file.describe_host_file(file)
        except host_file.ModelFileError as error:
            found[file.name] = str(error)
    print(json.dumps(found))
