"""Finds the file that a loader reads, by the values of its widgets. It needs no table of loaders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import folder_paths

from ..load_dit import list_models

DIFFUSION_MODELS, CHECKPOINTS = "diffusion_models", "checkpoints"
GGUF_FOLDERS = "unet_gguf"  # ComfyUI-GGUF's name for its folders, if it is installed


def folder_of(widget: str) -> str:
    """Returns ComfyUI's folder for the files of a widget, as its name has it in ComfyUI and in packs."""
    return CHECKPOINTS if "ckpt" in widget or "checkpoint" in widget else DIFFUSION_MODELS


def find_loaded(files: Mapping[str, str]) -> Path | None:
    """Returns the first of a loader's files that is in one of ComfyUI's folders of models, or is one of Load DiT's
    folders. Returns None if there is none. files: their names, by widget."""
    for widget, name in files.items():
        for kind in dict.fromkeys((folder_of(widget), DIFFUSION_MODELS, CHECKPOINTS, GGUF_FOLDERS)):
            if path := folder_paths.get_full_path(kind, name):
                return Path(path)
        if path := list_models().get(name):
            return path
    return None


def list_missing(files: Mapping[str, str]) -> list[dict[str, str]]:
    """Returns the first of a loader's files that none of ComfyUI's folders has, with the folder in models/ where it
    belongs; in a list, which is empty if there is none."""
    kinds = folder_paths.folder_names_and_paths
    return [
        {"model": name, "folder": folder_of(widget)}
        for widget, name in files.items()
        if not any(folder_paths.get_full_path(kind, name) for kind in kinds)
    ][:1]
