"""How networks beside the model, ControlNets and VAEs came from a file, so that the ranks can load them, too."""

from __future__ import annotations

import functools
import importlib
import json
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import comfy.controlnet
import comfy.model_patcher
import comfy.sd
import folder_paths
import torch

from ...worker.inside.encoder import Origin
from ...worker.inside.loaded import OF_CONTROLNET, PATCHER, STAGE, find_files
from ...worker.wire.file_marks import mark_files
from ...worker.wire.tensors import UnsendableError

NONE: Mapping[str, Any] = {}
COMFYUIS_NODES = "nodes"  # ComfyUI's module, not this package
LOADER, METHOD = "ModelPatchLoader", "load_model_patch"
MARK = "paralleldit_mark"  # attribute of a network: the mark of its files
SHARED = "paralleldit"  # attribute of a VAE that ranks share
LOADED_BY = "paralleldit_loaded_by"  # attribute of the patcher of a ControlNet's network: what loads it


def keep_files_of_networks() -> None:
    """Has ComfyUI's loaders of networks note how to load one again. Its other loaders of patchers note this, too."""
    loader = importlib.import_module(COMFYUIS_NODES).NODE_CLASS_MAPPINGS.get(LOADER)
    for owner, name, load in ((comfy.controlnet, "load_controlnet", load_controlnet), (loader, METHOD, load_patch)):
        whole = getattr(owner, name, None)
        if isinstance(whole, types.FunctionType) and not hasattr(whole, "__wrapped__"):
            setattr(owner, name, wrap(whole, load))


def wrap(whole: Callable[..., Any], load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(whole)
    def loading(*args: Any, **kwargs: Any) -> Any:
        return load(whole, *args, **kwargs)

    return loading


def load_controlnet(whole: Any, ckpt_path: str, model: Any = None, model_options: Mapping[str, Any] = NONE) -> Any:
    found = whole(ckpt_path, model, {**model_options})
    patcher = getattr(found, OF_CONTROLNET, None)
    if patcher is not None and model is None:
        setattr(patcher, LOADED_BY, (whole, (ckpt_path, None, {**model_options})))
        mark_network(patcher, (ckpt_path,))
    return found


def load_patch(whole: Any, self: Any, name: str) -> tuple[comfy.model_patcher.ModelPatcher]:
    (patcher,) = whole(self, name)
    patcher.cached_patcher_init = patcher.cached_patcher_init or (types.MethodType(whole, self), (name,), 0)
    mark_network(patcher, (name,))
    return (patcher,)


def origin_of_network(patcher: comfy.model_patcher.ModelPatcher) -> Origin | None:
    """Returns None if nothing says how it was loaded. Raises UnsendableError for a network that the ranks cannot load
    as it is here."""
    check_unchanged(patcher)
    return origin_of_patcher(patcher, patcher.cached_patcher_init) if patcher.cached_patcher_init else None


def origin_of_controlnet(control: comfy.controlnet.ControlNet) -> Origin:
    """Raises UnsendableError likewise."""
    patcher = getattr(control, OF_CONTROLNET)
    return origin_of_patcher(patcher, getattr(patcher, LOADED_BY, None))


def origin_of_patcher(patcher: comfy.model_patcher.ModelPatcher, found: Sequence[Any] | None) -> Origin:
    """found: what loads it, with which arguments, and its place in what is returned."""
    if not found:
        raise UnsendableError("The loader of a network does not say which file it is from.")
    check_unchanged(patcher)
    load, args, *index = found
    try:
        json.dumps(args)
    except TypeError as error:
        raise UnsendableError(f"A network was loaded with what cannot be sent: {error}.") from error
    names = tuple(each for each in args if isinstance(each, str))
    found_by = {"args": list(args), "folders": folders_of(names), "mark": mark_network(patcher, names)}
    return Origin(load, {**found_by, "index": index[0] if index else None})


def check_unchanged(patcher: comfy.model_patcher.ModelPatcher) -> None:
    if patcher.patches or patcher.object_patches or patcher.hook_patches:
        raise UnsendableError("A network was changed after it was loaded.")


def mark_network(patcher: comfy.model_patcher.ModelPatcher, names: tuple[str, ...]) -> str:
    """Returns the mark of a network's files, as it was when this was first called. names: among its loader's arguments.
    Raises UnsendableError for a file that is gone."""
    network: torch.nn.Module = patcher.model
    kept: dict[str, Any] = vars(network)
    if MARK not in kept:
        try:
            kept[MARK] = mark_files(find_files(names, folders_of(names)))
        except OSError as error:
            raise UnsendableError(f"A network's file cannot be read: {error}.") from error
    return kept[MARK]


def origin_of_vae(vae: comfy.sd.VAE) -> Origin:
    """Raises UnsendableError likewise."""
    attributes = {name: value for name, value in vars(vae).items() if name not in (PATCHER, STAGE, SHARED)}
    cls = comfy.sd.VAE if SHARED in vars(vae) else type(vae)
    origin = origin_of_patcher(vae.patcher, vae.patcher.cached_patcher_init)
    return origin._replace(attributes=attributes, cls=cls)


@functools.cache  # each call of the model describes its networks
def folders_of(names: tuple[str, ...]) -> dict[str, list[str]]:
    """Returns where ComfyUI finds the files of these names, by kind."""
    kinds = (
        kind for kind in folder_paths.folder_names_and_paths for each in names if folder_paths.get_full_path(kind, each)
    )
    return {kind: folder_paths.get_folder_paths(kind) for kind in sorted(set(kinds))}


ORIGINS: Mapping[type, Callable[[Any], Origin | None]] = {
    comfy.model_patcher.ModelPatcher: origin_of_network,
    comfy.sd.VAE: origin_of_vae,
    comfy.controlnet.ControlNet: origin_of_controlnet,
}
