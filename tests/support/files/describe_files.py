"""`files.describe_files COMFYUI FILE...`: tells why each file is refused, by its name; nothing of others."""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.support.host.mounted import mount


def main(comfyui: str, *files: str) -> dict[str, str]:
    mount(comfyui)
    host_file = importlib.import_module("pack.nodes.model.host_file")
    found = {}
    for file in map(Path, files):
        try:
            host_file.describe_host_file(file)
        except host_file.ModelFileError as error:
            found[file.name] = str(error)
    return found
