"""`python -m tests.support.files.describe_files COMFYUI FILE...`:
prints what the loader finds in each file's header, as JSON.

By the file's name, an object of ModelSource, or the words of a refusal.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

from demo.host import REPOSITORY


def main(comfyui: str, *files: str) -> None:
    sys.path.insert(0, comfyui)
    sys.argv = [sys.argv[0], "--cpu"]
    options = importlib.import_module("comfy.options")
    options.enable_args_parsing()
    for name, folder in {"pack": REPOSITORY, "pack.nodes": REPOSITORY / "nodes"}.items():
        sys.modules[name] = ModuleType(name)  # the pack, without the nodes, which need a server
        sys.modules[name].__path__ = [str(folder)]
    single_file = importlib.import_module("pack.nodes.model.single_file")
    found = {}
    for file in files:
        try:
            source = single_file.describe_file(Path(file)).source("fp32")
        except single_file.ModelFileError as error:
            found[Path(file).name] = str(error)
            continue
        found[Path(file).name] = source.to_json()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
