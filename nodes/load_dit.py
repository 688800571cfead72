"""The node `Load DiT`. It loads a class-conditional DiT, which no stock loader reads, as a stock MODEL."""

from __future__ import annotations

from pathlib import Path

import folder_paths
from comfy_api.latest import io

from ..parallel_backend.errors import Explanation, ModelFileError
from ..worker.comfyui.dit.folder import is_dit, read_config
from .errors import Refused
from .model.host_file import describe_host_file
from .model.remote_patcher import stock_patcher

DEMO_NAME = "demo: coloured shapes (64×64)"
DEMO_FOLDER = Path(__file__).resolve().parents[1] / "demo" / "shapes-dit"


class LoadDiT(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ParallelDiT_LoadDiT",
            display_name="Load DiT",
            category="ParallelDiT",
            description="Loads a class-conditional DiT, such as DiT-XL/2 or the demo model. ComfyUI's own loaders do "
            "not know it. With Parallelize Model behind it, all GPUs share its work.",
            search_aliases=["ParallelDiT", "demo model", "DiT-XL", "imagenet class", "class-conditional"],
            inputs=[
                io.Combo.Input(
                    "model_name",
                    options=list(list_models()),
                    tooltip="The demo model, or the diffusers folder of a class-conditional DiT in models/diffusers or "
                    "models/diffusion_models.",
                )
            ],
            outputs=[io.Model.Output(tooltip="For Parallelize Model, DiT Class Label, and stock samplers.")],
        )

    @classmethod
    def validate_inputs(cls, model_name: str) -> bool | str:
        return True if model_name in list_models() else str(explain_not_listed(model_name))

    @classmethod
    def execute(cls, model_name: str) -> io.NodeOutput:
        if (folder := list_models().get(model_name)) is None:
            raise Refused(*explain_not_listed(model_name))
        return io.NodeOutput(stock_patcher(describe_host_file(folder).source))


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
