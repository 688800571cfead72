"""Finds model files and folders in ComfyUI's folders."""

from __future__ import annotations

from pathlib import Path

import folder_paths

from ...parallel_backend.errors import Explanation, ModelFileError
from ...worker.comfyui.dit.folder import is_dit, read_config

DEMO_NAME = "demo: coloured shapes (64×64)"
DEMO_FOLDER = Path(__file__).resolve().parents[2] / "demo" / "shapes-dit"
GGUF_FOLDERS = "unet_gguf"  # ComfyUI-GGUF's name for its folders, if it is installed
PICKLE_SUFFIXES = (".ckpt", ".pt", ".pt2", ".bin", ".pth", ".pkl")


def list_models() -> dict[str, Path]:
    """Returns the models of Load DiT, name to path: folders of class-conditional DiTs, and the demo model."""
    found = {name: path for name, path in list_folders().items() if is_dit(path)}
    return {**found, DEMO_NAME: DEMO_FOLDER} if DEMO_FOLDER.is_dir() else found


def list_folders() -> dict[str, Path]:
    """Returns the diffusers folders in ComfyUI's model folders, name to path."""
    roots = [*folder_paths.get_folder_paths("diffusion_models"), *folder_paths.get_folder_paths("diffusers")]
    found: dict[str, Path] = {}
    for root in roots:
        for index in sorted([*Path(root).glob("*/model_index.json"), *Path(root).glob("*/config.json")]):
            found.setdefault(index.parent.name, index.parent)
    return found


def explain_not_listed(name: str) -> Explanation:
    """Says why Load DiT does not offer a name."""
    if (folder := list_folders().get(name)) is None:
        return Explanation(
            f"There is no class-conditional DiT {name!r} in ComfyUI's diffusers or diffusion_models folders.",
            "Put it there, or press R to refresh and choose another.",
        )
    try:
        kind = read_config(folder).get("_class_name")
    except ModelFileError as error:
        return error.explanation
    return Explanation(
        f"The folder {name!r} is no class-conditional DiT: its config names the class {kind!r}.",
        "A diffusers folder of another class runs in scripts (docs/scripts.md)."
        " Here, use a single file and its own loader.",
    )
