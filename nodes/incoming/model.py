"""A MODEL that any node has made: the file that its weights are from, and what nodes have put on it."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import comfy.model_management
import comfy.model_patcher
import comfy.sd
import torch
from comfy.patcher_extension import merge_nested_dicts
from comfy_api.torch_helpers.torch_compile import COMPILE_KEY

from ...parallel_backend.errors import ModelFileError
from ...worker.comfyui.model import Weights, dtype_of, write_detected
from ...worker.comfyui.patches import PREFIX
from ...worker.inside.changes import FUNCTIONS, METHODS
from ..errors import Refused
from ..model.call_batching import KEY, batches_calls
from ..model.deferred_weight import DeferredParameter
from ..model.host_file import PICKLE_SUFFIXES, HostFile, describe_host_file, has_dynamic_vram
from ..model.local_weights import WRITTEN
from ..model.remote_patcher import RemoteModelPatcher, stock_patcher
from ..weights_file import find_written, form_of, keep_file, kept_files, take_all_pages
from .differences import find_differences
from .moved import Moved

Patcher = comfy.model_patcher.ModelPatcher
COMFYUI_PATCHERS = {comfy.model_patcher.ModelPatcher, comfy.model_patcher.CoreModelPatcher}  # its classes of patchers
# Classes of packs' patchers that differ from these only in how weights are kept here.
OF_PACKS = ("GGUFModelPatcher",)
# Arguments of ComfyUI's loaders that say how a model is read. Those in PLACES only say where it is kept.
DTYPES, FAST = ("dtype", "weight_dtype"), "fp8_optimizations"
PLACES = ("load_device", "offload_device")
CALCULATION, OPTIONS, COPIES = "sampler_calc_cond_batch_function", "transformer_options", "multigpu"
# A patcher's attributes that belong to its model, or to how ComfyUI has loaded it. All others are what nodes ask for.
OF_MODEL = {
    *("model", "size", "load_device", "offload_device", "parent", "cached_patcher_init", "clone_base_uuid"),
    *("backup", "backup_buffers", "object_patches_backup", "pinned", "weight_inplace_update", "force_cast_weights"),
    *("is_injected", "hook_patches_backup", "hook_backup", "cached_hook_patches", "current_hooks"),
    *("is_multigpu_base_clone", "non_dynamic_delegate_model"),
    *("patch_on_device", "mmap_released", "named_modules_to_munmap"),  # ComfyUI-GGUF's
}
OWN_LOADERS = "Use one of ComfyUI's own loaders."
BEFORE = "Put Parallelize Model before the node that does this."


def describe_in_memory(model: Patcher, name: str) -> HostFile:
    """Puts the weights of a stock MODEL into memory that the ranks map, and returns the model that is in them. name: of
    the model. Raises ModelFileError, and Refused if ranks cannot make the same model of them."""
    own, config = model.model, model.model.model_config
    try:
        detected = write_detected(config)
    except LookupError as error:
        raise Refused(f"Its model is a {error}, which ComfyUI's own detection does not know.") from error
    comfy.model_management.unload_model_and_clones(model)  # takes back what patches have put into the module
    path = keep_file(own, list_weights(own), name)
    dtype = None if config.quant_config is not None else own.get_dtype()
    try:
        return check_same(model, describe_host_file(path, dtype, bool(config.optimizations.get("fp8")), detected))
    except (ModelFileError, Refused):
        del kept_files[own]
        raise


def list_weights(model: Any) -> Weights:
    """Returns the weights of ComfyUI's model by their names in a file, as its module has them."""
    module = model.diffusion_model
    found = {name: each for name, each in module.state_dict(keep_vars=True).items() if not each.is_meta}
    own = dict(module.named_parameters())
    if any(map(form_of, own.values())):  # ComfyUI-GGUF's layers tell nothing of their weights otherwise
        return {**found, **own}
    return model.state_dict_for_saving(found)


def check_class(model: Patcher) -> None:
    """Raises Refused for a MODEL that ranks know nothing of."""
    if not isinstance(model, RemoteModelPatcher) and type(model) not in COMFYUI_PATCHERS:
        if type(model).__name__ not in OF_PACKS:
            raise Refused(f"Its MODEL is a {type(model).__name__}, which only the pack knows that made it.")
    if COPIES in model.additional_models:
        raise Refused(
            "MultiGPU CFG Split has put copies of the model on other devices.",
            "Remove that node: cfg 2 shares the work in the same way.",
        )


def check_same(model: Patcher, file: HostFile) -> HostFile:
    """Returns a file that has the model of a MODEL. Raises Refused if nodes have changed the model."""
    if found := list(list_node_changes(model, file)):
        raise Refused(
            f"A node before this one has changed the model itself, not its MODEL alone ({', '.join(found[:3])}).",
            BEFORE,
        )
    return file


def find_file(model: Patcher) -> tuple[Path, torch.dtype | None, bool, str]:
    """Returns the file that a MODEL names, and how its weights are read, for `describe_host_file`. Raises Refused if it
    names none that ranks can read."""
    if isinstance(model, RemoteModelPatcher) and model.remote_module is None:
        raise Refused("A node before this one has replaced the model's module.", BEFORE)
    if not model.cached_patcher_init:
        raise Refused("The node that loads it does not say from which file.", OWN_LOADERS)
    load, given, *_ = model.cached_patcher_init
    if load is stock_patcher:
        source = given[0]
        return Path(source.file), dtype_of(source.dtype), source.fast_fp8, source.detected
    if load not in (comfy.sd.load_diffusion_model, comfy.sd.load_checkpoint_guess_config):
        raise Refused(f"It is loaded by {load.__name__}, which the ranks do not know.", OWN_LOADERS)
    path, arguments = given[0], inspect.signature(load).bind(*given).arguments
    options = {name: value for name, value in arguments.get("model_options", {}).items() if value is not None}
    if Path(path).suffix.lower() in PICKLE_SUFFIXES:
        raise Refused(
            f"{Path(path).name} is a pickle checkpoint. Loading one can run any code, so the ranks do not.",
            "Use the model's safetensors file, or convert it.",
        )
    if unknown := options.keys() - {*DTYPES, FAST, *PLACES}:
        raise Refused(f"It was loaded with {', '.join(sorted(unknown))}, which the ranks do not know.")
    dtype = next((options[name] for name in DTYPES if name in options), None)
    return Path(path), dtype, bool(options.get(FAST)), ""


def list_node_changes(model: Patcher, file: HostFile) -> Iterator[str]:
    """Yields what nodes have changed of the model behind a MODEL, beside the MODEL. Changes of classes and functions
    are every model's."""
    replaced = {*model.object_patches_backup, *model.backup}
    if not isinstance(model, RemoteModelPatcher):
        yield from find_differences(model.model, file.model, replaced)
    elif remote := model.remote_module:
        if remote.weights.is_changed:
            yield WRITTEN
        own = {name.removeprefix(PREFIX) for name in replaced}
        changes = remote.guard.changes(own, remote.stock.is_active)
        yield from (each.name for each in changes if each.kind not in (METHODS, FUNCTIONS))


def take_file_pages(model: Patcher, new: RemoteModelPatcher) -> None:
    """Compares the weights of a stock MODEL with its file's, and gives it the file's pages in place of a copy in RAM.
    new: the ranks' MODEL of the same file. Raises Refused if nodes have written over weights."""
    remote = new.remote_module
    if isinstance(model, RemoteModelPatcher) or remote is None:  # weights in the ranks notice it themselves
        return
    patched = {name.removeprefix(PREFIX): each.weight for name, each in model.backup.items()}
    own, stored = dict(weights_of(model.model.diffusion_model)), dict(weights_of(remote.weights.map_file()))
    if name := next(find_written({**own, **patched}, stored), ""):
        raise Refused(f"A node before this one has written over the model's weights ({name}).", BEFORE)
    if not model.pinned and not has_dynamic_vram():  # dynamic VRAM maps the file itself
        take_all_pages((own[name], stored[name]) for name in own.keys() & stored.keys() - patched)
    remote.weights.drop()


def weights_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def take_changes(model: Patcher, new: RemoteModelPatcher, load: Callable[[Patcher], Patcher]) -> None:
    """Puts on a MODEL all that nodes have put on another MODEL of the same file: changes of weights, functions,
    options and others. load: makes the ranks' MODEL of a second stock MODEL, which was merged into the first.

    Raises Refused for what cannot be moved."""
    wanted = {name: value for name, value in vars(model.clone()).items() if name not in OF_MODEL}
    wanted["patches"] = name_merged(wanted["patches"], model, load)
    for kind, by_key in wanted["wrappers"].items():
        wanted["wrappers"][kind] = {key: each for key, each in by_key.items() if key not in (KEY, COMPILE_KEY)}
    options = wanted["model_options"]
    if batches_calls(options.get(CALCULATION)):  # of ranks under another plan
        del options[CALCULATION]
    moved = Moved(pair_parts(model, new.model), new, model.model, wanted).move(wanted)
    for table in ("wrappers", "callbacks"):
        moved[table] = merge_nested_dicts(vars(new)[table], moved[table])
    options = moved.pop("model_options")
    inner = {**new.model_options[OPTIONS], **options[OPTIONS]}
    new.model_options = {**new.model_options, **options, OPTIONS: inner}
    vars(new).update(moved)


def pair_parts(model: Patcher, other: torch.nn.Module) -> dict[int, Any]:
    """Returns a model's parts and weights, by the ids of those in the same place of the model behind a MODEL. While
    ComfyUI has the first one loaded, some places hold what nodes want there. That is no part of the model."""
    theirs, found = dict(list_parts(other)), {}
    replaced = {**model.object_patches_backup, **{name: each.weight for name, each in model.backup.items()}}
    for path, each in list_parts(model.model):
        if path in theirs and not any(path == name or path.startswith(f"{name}.") for name in replaced):
            found[id(each)] = theirs[path]
    for name, original in replaced.items():
        below = list_parts(original) if isinstance(original, torch.nn.Module) else [("", original)]
        for path, each in below:
            if (place := f"{name}.{path}".rstrip(".")) in theirs:
                found[id(each)] = theirs[place]
    return found


def list_parts(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    yield from module.named_modules()
    yield from weights_of(module)


def name_merged(
    patches: Mapping[Any, list[tuple]], model: Patcher, load: Callable[[Patcher], Patcher]
) -> dict[Any, list[tuple]]:
    """Returns changes of weights in which weights of other stock models are named, so that the ranks read them,
    too."""
    owners, key_patches = cache(find_owners), cache(lambda owner: load(owner).get_key_patches())

    def name(change: tuple) -> tuple:
        strength, value, *rest = change
        if not isinstance(value, list):
            return change
        (weight, convert), *more = value
        if not isinstance(weight, DeferredParameter) and (found := owners().get(id(weight))):
            owner, key = found
            weight = key_patches(owner).get(key, [(weight, convert)])[0][0]
        return (strength, [(weight, convert), *map(name, more)], *rest)

    return {key: [name(change) for change in changes] for key, changes in patches.items()}


def find_owners() -> dict[int, tuple[Patcher, str]]:
    """Returns the MODEL and the name of each weight that is now in this process, by its id. ComfyUI keeps no list."""
    found: dict[int, tuple[Patcher, str]] = {}
    for patcher in [each for each in gc.get_objects() if type(each) in COMFYUI_PATCHERS]:
        weights = dict(patcher.model.named_parameters())
        weights |= {name: each.weight for name, each in patcher.backup.items()}
        found |= {id(weight): (patcher, name) for name, weight in weights.items()}
    return found
