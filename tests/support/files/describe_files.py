"""`files.describe_files COMFYUI FILE...`:
prints what the loader finds in each file's header, as JSON.

By the file's name, the class that runs it, and whether it has a spec; or the words of a refusal.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from tests.support.host.mounted import mount


def main(comfyui: str, *files: str) -> None:
    mount(comfyui)
    host_file = importlib.import_module("pack.nodes.model.host_file")
    specs = importlib.import_module("pack.parallel_backend.models")
    found = {}
    for file in files:
        try:
            described = host_file.describe_host_file(Path(file))
        except host_file.ModelFileError as error:
            found[Path(file).name] = str(error)
            continue
        has_spec = specs.spec_of(type(described.module)) is not None
        found[Path(file).name] = {"class": described.found.model_class, "spec": has_spec}
    print(json.dumps(found))
