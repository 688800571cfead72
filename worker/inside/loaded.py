"""Loads in a rank what a node has loaded beside the model: networks that run inside of it, ControlNets, and VAEs. The
rank takes the same file and the same code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..wire.file_marks import check_mark
from .code_files import CodeFiles

PATCHER, STAGE = "patcher", "first_stage_model"  # attributes of ComfyUI's VAE that need its file
NONE: Mapping[str, Any] = {}
OF_CONTROLNET = "control_model_wrapped"  # attribute of ComfyUI's ControlNet: its network's patcher


class LoadedFiles:
    """What was loaded from files, kept until a run does without it."""

    def __init__(self, files: CodeFiles) -> None:
        self.files = files
        self.kept: dict[str, Any] = {}
        self.used: set[str] = set()  # of `kept`, in this run

    def start_run(self) -> None:
        """Drops what the last run did not use."""
        self.kept = {key: self.kept[key] for key in self.used}
        self.used = set()

    def free_device(self) -> None:
        """Moves all weights to host memory until their next use."""
        for loaded in self.kept.values():
            patcher_of(loaded).detach()

    def load(
        self,
        code: dict[str, Any],
        name: str,
        args: Sequence[Any],
        index: int | None = None,
        folders: Mapping[str, Sequence[str]] = NONE,
        mark: str = "",
    ) -> Any:
        """Returns ComfyUI's patcher of a network, or its ControlNet. code, name: of the function that loads it. args:
        its plain arguments. index: of the object in what it returns; None if it returns the object. folders: for file
        names among the arguments, by kind, where ComfyUI looks for such files. mark: of these files, see `mark_files`.
        Raises ValueError, ModelFileError for a file that was overwritten, and what the code raises."""
        key = json.dumps([code, name, args, index, folders, mark])
        self.used.add(key)
        if key not in self.kept:
            load = self.files.find_function(code, name)
            use_folders(folders)
            check_files(args, folders, mark)
            loaded = load(*args)
            self.kept[key] = loaded if index is None else loaded[index]
        return self.kept[key]

    def lazy_class(self, cls: type, made: Mapping[str, Any]) -> type:
        """Returns ComfyUI's class of VAEs, which loads its network when somebody asks for it."""

        def load(vae: Any, name: str) -> Any:
            if name not in (PATCHER, STAGE):
                raise AttributeError(name)
            patcher = self.load(**made)
            vars(vae).update({PATCHER: patcher, STAGE: patcher.model})
            return vars(vae)[name]

        return type(cls.__name__, (cls,), {"__getattr__": load})


def patcher_of(loaded: Any) -> Any:
    """Returns the patcher of what `LoadedFiles.load` returned."""
    return getattr(loaded, OF_CONTROLNET, loaded)


def check_files(args: Sequence[Any], kinds: Iterable[str], mark: str) -> None:
    """Raises ModelFileError if the files among a loader's arguments are others than when they were marked."""
    if mark:
        check_mark(" ".join(each for each in args if isinstance(each, str)), find_files(args, kinds), mark)


def find_files(args: Sequence[Any], kinds: Iterable[str]) -> list[str]:
    """Returns the files among a loader's arguments. kinds: where ComfyUI looks for their names."""
    import folder_paths

    names = [each for each in args if isinstance(each, str)]
    found = [name for name in names if os.path.isabs(name) and not os.path.isdir(name)]
    found += [path for kind in kinds for name in names if (path := folder_paths.get_full_path(kind, name))]
    return sorted(set(found))


def use_folders(folders: Mapping[str, Sequence[str]]) -> None:
    """Lets ComfyUI's code find files where ComfyUI's process finds them."""
    for kind, paths in folders.items():
        import folder_paths

        _, suffixes = folder_paths.folder_names_and_paths.get(kind, ([], folder_paths.supported_pt_extensions))
        folder_paths.folder_names_and_paths[kind] = (list(paths), suffixes)
