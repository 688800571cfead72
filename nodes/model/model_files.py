"""Finds diffusion models in ComfyUI's model folders, and describes them from configs and headers alone."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import folder_paths
import torch
from safetensors import SafetensorError, safe_open

from ...parallel_backend.errors import Explanation, ModelFileError
from ...parallel_backend.weights.folder import model_class, read_json
from ...worker.comfyui.dit.folder import is_dit, read_config
from ...worker.comfyui.model import PIPELINE
from ...worker.comfyui.source import weight_files

DEMO_NAME = "demo: coloured shapes (64×64)"
DEMO_FOLDER = Path(__file__).resolve().parents[2] / "demo" / "shapes-dit"
MOST_TENSORS = 1 << 16  # of a file; the largest models have some thousands
GGUF_FOLDERS = "unet_gguf"  # ComfyUI-GGUF's name for its folders, if it is installed
REQUIRED_KEYS = ("_class_name", "in_channels")
FOLDERS = ("diffusion_models", "checkpoints")
SAFETENSORS = (".safetensors", ".sft")
PICKLE_SUFFIXES = (".ckpt", ".pt", ".pt2", ".bin", ".pth", ".pkl")
TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


@dataclass(frozen=True)
class DiffusersFolder:
    """A model in a diffusers folder.

    transformer: the folder of its weights.
    config: its config.json with the class's present name, and the class of its pipeline.
    pipeline: model_index.json, if there is one.
    scheduler: scheduler_config.json, if there is one.
    """

    transformer: Path
    config: dict[str, Any]
    pipeline: dict[str, Any] = field(default_factory=dict)
    scheduler: dict[str, Any] = field(default_factory=dict)

    @property
    def class_names(self) -> dict[int, str]:
        """The class names of a class-conditional model, by number."""
        return {int(number): name for number, name in self.pipeline.get("id2label", {}).items()}


def list_models() -> dict[str, Path]:
    """Returns the loader's models, name to path: safetensors and GGUF files, diffusers folders, and the demo model. If
    two have the same name, the one in diffusion_models wins."""
    models: dict[str, Path] = {}
    for kind in FOLDERS:
        for name, path in list_safetensors(kind).items():
            models.setdefault(name, path)
    models.update({name: path for name, path in list_gguf_files().items() if name not in models})
    demo = {DEMO_NAME: DEMO_FOLDER} if DEMO_FOLDER.is_dir() else {}
    return {**list_folders(), **models, **demo}


def list_dits() -> dict[str, Path]:
    """Returns the class-conditional DiTs, name to path: diffusers folders, and the demo model."""
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


def explain_no_dit(name: str) -> Explanation:
    """Says why Load DiT does not offer a name."""
    if (folder := list_folders().get(name)) is None:
        return Explanation(
            f"There is no class-conditional DiT {name!r} in ComfyUI's diffusers or diffusion_models folders.",
            "Put its diffusers folder there, or press R to refresh and choose another.",
        )
    try:
        kind = read_config(folder).get("_class_name")
    except ModelFileError as error:
        return error.explanation
    return Explanation(
        f"The folder {name!r} is no class-conditional DiT: its config names the class {kind!r}.",
        "For a diffusers folder of another class, get the model as a single file and use ComfyUI's own loader, or run "
        "it by a script (docs/scripts.md).",
    )


def list_checkpoints() -> dict[str, Path]:
    """Returns the checkpoint loader's models, name to path."""
    return list_safetensors("checkpoints")


def list_safetensors(kind: str) -> dict[str, Path]:
    """Returns name to path in the folders of this kind."""
    names = [name for name in folder_paths.get_filename_list(kind) if name.lower().endswith(SAFETENSORS)]
    paths = {name: folder_paths.get_full_path(kind, name) for name in names}  # None for a link to nowhere
    return {name: Path(path) for name, path in paths.items() if path}


def list_gguf_files() -> dict[str, Path]:
    """Returns the GGUF files in the diffusion model folders. ComfyUI does not list them itself."""
    kinds = [kind for kind in ("diffusion_models", GGUF_FOLDERS) if kind in folder_paths.folder_names_and_paths]
    found: dict[str, Path] = {}
    for root in (root for kind in kinds for root in folder_paths.get_folder_paths(kind)):
        names, _ = folder_paths.recursive_search(root, excluded_dir_names=[".git"])
        for name in folder_paths.filter_files_extensions(names, [".gguf"]):
            if (path := Path(root, name)).is_file():
                found.setdefault(name, path)
    return found


def list_kinds(name: str) -> list[str]:
    """Returns ComfyUI's folders that have a file of this name."""
    kinds = folder_paths.folder_names_and_paths if os.path.normpath(name) == name else ()
    return [kind for kind in kinds if folder_paths.get_full_path(kind, name)]


def is_nowhere(name: str) -> bool:
    """Whether a name is of a file that may be loaded, and that none of ComfyUI's folders has."""
    return not name.lower().endswith(PICKLE_SUFFIXES) and name not in list_models() and not list_kinds(name)


def explain_not_listed(name: str, checkpoint: bool = False) -> Explanation:
    """Says why a loader does not offer a name. checkpoint: whether it is the checkpoint loader."""
    if name.lower().endswith(PICKLE_SUFFIXES):
        return Explanation(
            f"{name!r} is a pickle checkpoint. Loading one can run any code, so it is refused.",
            "Use the model's safetensors file, or convert it.",
        )
    kinds = list_kinds(name)
    if checkpoint:
        return explain_no_checkpoint(name, kinds)
    if kinds:
        return Explanation(
            f"{name!r} is in ComfyUI's {kinds[0]} folder, but this node cannot load it.",
            "Choose one from the list: safetensors and GGUF files in models/diffusion_models, safetensors files in "
            "models/checkpoints, or a diffusers folder.",
        )
    return Explanation(
        f"There is no model {name!r} in ComfyUI's diffusion_models, checkpoints or diffusers folders.",
        "Put it there, or press R to refresh and choose another.",
    )


def explain_no_checkpoint(name: str, kinds: list[str]) -> Explanation:
    """Says why the checkpoint loader does not offer a name. kinds: ComfyUI's folders that have it."""
    cause = f"There is no model {name!r} in ComfyUI's checkpoints folder."
    if kinds:
        cause = f"{name!r} is in ComfyUI's {kinds[0]} folder, but this node cannot load it."
    if name in list_models():
        return Explanation(
            cause, "Use Load Diffusion Model (Parallel) for it, or choose a safetensors file of models/checkpoints."
        )
    if kinds:
        return Explanation(cause, "Choose a safetensors file of models/checkpoints.")
    return Explanation(cause, "Put it there, or press R to refresh and choose another.")


def describe_folder(folder: Path) -> DiffusersFolder:
    """Reads a diffusers folder, of a pipeline or of a transformer alone. Raises ModelFileError if it is broken."""
    transformer = folder / "transformer" if (folder / "model_index.json").exists() else folder
    config = read_json(transformer / "config.json")
    for key in REQUIRED_KEYS:
        if key not in config:
            raise ModelFileError(f"{transformer / 'config.json'} has no {key!r}.", "Download the model again.")
    files = weight_files(transformer)
    if not files:
        raise no_safetensors_error(transformer, model_class(config))
    most = sum(len(read_header(path)[0]) for path in files)
    for key, value in config.items():  # each layer has tensors; a module of a million would never be made
        if key.endswith(("layers", "blocks")) and isinstance(value, int) and value > most:
            raise ModelFileError(
                f"The config of {transformer} names {key}={value}, but its files have only {most} tensors.",
                "Download the model again.",
            )
    pipeline = read_json(folder / "model_index.json") if transformer != folder else {}
    return DiffusersFolder(
        transformer,
        {**config, "_class_name": model_class(config), PIPELINE: pipeline.get("_class_name", "")},
        pipeline,
        scheduler=read_json(path) if (path := folder / "scheduler" / "scheduler_config.json").exists() else {},
    )


def no_safetensors_error(folder: Path, class_name: str) -> ModelFileError:
    """Returns the error for a folder without safetensors. The remedy depends on whether there are pickled weights."""
    if not any(path.suffix in PICKLE_SUFFIXES for path in folder.iterdir()):
        return ModelFileError(f"{folder} holds no safetensors file.", "Download the model again.")
    return ModelFileError(
        f"{folder} has pickled weights and no safetensors file. Loading a pickle can run any code, so it is refused.",
        f'Download the safetensors files, or convert a model that you trust: python -c "from diffusers import '
        f'{class_name} as M; f={str(folder)!r}; M.from_pretrained(f, use_safetensors=False).save_pretrained(f)"',
    )


def read_header(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Reads a safetensors file's tensors as meta tensors, and the rest of its header. It reads no weights. A dtype that
    no model computes in becomes uint8. Raises ModelFileError if the file is truncated, missing, or not safetensors."""
    try:
        with safe_open(str(path), framework="pt") as file:
            if len(names := file.keys()) > MOST_TENSORS:
                raise ModelFileError(
                    f"{path.name} names {len(names)} tensors, which is more than any model has.", "Choose another file."
                )
            slices = {name: file.get_slice(name) for name in names}
            header = {
                name: torch.empty(
                    piece.get_shape(), dtype=TORCH_DTYPES.get(piece.get_dtype(), torch.uint8), device="meta"
                )
                for name, piece in slices.items()
            }
            return header, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ModelFileError(
            f"{path.name} is not a whole safetensors file ({error}); it was cut short or damaged.", "Download it again."
        ) from error
