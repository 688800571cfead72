"""The editor's words for the nodes, as `locales/*/nodeDefs.json` has them.

`COMFYUI_PATH=... python -m tests.support.host.node_defs` writes the English ones: those of the nodes' schemas.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demo.host import PACK_NAME, REPOSITORY, ComfyHost

LOCALES = REPOSITORY / "locales"
FILE = "nodeDefs.json"


def own_nodes(object_info: Mapping[str, dict[str, Any]], pack: str = PACK_NAME) -> dict[str, dict[str, Any]]:
    """The nodes of the pack in that folder, among those that the host describes."""
    return {name: node for name, node in object_info.items() if node["python_module"] == f"custom_nodes.{pack}"}


def inputs_of(node: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A node's inputs with their options, by name."""
    return {
        name: options[0] if options else {}
        for kind in ("required", "optional")
        for name, (_type, *options) in node["input"].get(kind, {}).items()
    }


def node_defs(nodes: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What `nodeDefs.json` says of nodes in the words of their schemas."""
    return {name: node_def(nodes[name]) for name in sorted(nodes)}


def node_def(node: Mapping[str, Any]) -> dict[str, Any]:
    outputs = zip(node["output_name"], node["output_tooltips"] or [None] * len(node["output_name"]), strict=True)
    return {
        "display_name": node["display_name"],
        "description": node["description"],
        "inputs": {
            name: words(options.get("display_name") or name, options.get("tooltip"))
            for name, options in inputs_of(node).items()
        },
        "outputs": {str(place): words(*output) for place, output in enumerate(outputs)},
    }


def words(name: str, tooltip: str | None) -> dict[str, str]:
    return {"name": name, "tooltip": tooltip} if tooltip else {"name": name}


def read(language: str, file: str = FILE) -> dict[str, Any]:
    """A file of the pack's words."""
    return json.loads((LOCALES / language / file).read_text(encoding="utf-8"))


def main() -> None:
    with tempfile.TemporaryDirectory() as base, ComfyHost(Path(os.environ["COMFYUI_PATH"]), Path(base)) as host:
        text = json.dumps(node_defs(own_nodes(host.object_info())), indent=2, ensure_ascii=False)
    (LOCALES / "en" / FILE).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
