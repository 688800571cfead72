"""The nodes in ComfyUI's menu. They turn ComfyUI's objects into requests to the worker group.

They import comfy.*, `worker.host`, `worker.wire`, and the engine modules that describe a request: plans, specs,
scheduler names, the layout of weights in files. They never import what runs a request: torch.distributed or diffusers.
"""

from pathlib import Path
from typing import Any

import folder_paths
from comfy_api.latest import ComfyAPI, ComfyExtension, io
from server import PromptServer

from ..worker.wire.private_folder import keep_compiled_code
from .class_label import DiTClassLabel
from .load_dit import LoadDiT
from .parallel_sampler import ParallelSampler
from .parallelize import ParallelizeModel
from .parallelize_vae import ParallelizeVAE
from .routes import ROUTES, control, plan, settings, status  # noqa: F401 (each adds its routes)
from .routes.queued import start_ahead
from .workers.ahead import start_with_comfyui

# Nodes that are gone, in saved workflows: what takes their place, which of their inputs its inputs are, and outputs.
REPLACED = {
    "ParallelDiT_LoadDiffusionModel": ("UNETLoader", {"unet_name": "model_name", "weight_dtype": "dtype"}, 1),
    "ParallelDiT_LoadCheckpoint": ("CheckpointLoaderSimple", {"ckpt_name": "model_name"}, 3),
    "ParallelDiT_Plan": ("ParallelDiT_Parallelize", {}, 0),
    "ParallelDiT_VAEDecode": ("VAEDecode", {"samples": "samples", "vae": "vae"}, 1),
    "ParallelDiT_VAEEncode": ("VAEEncode", {"pixels": "pixels", "vae": "vae"}, 1),
}
WIDGETS = ["model_name", "dtype", "group"]  # of the loaders that are gone


class ParallelDiTExtension(ComfyExtension):
    async def on_load(self) -> None:
        for route in list[Any](ROUTES):
            PromptServer.instance.routes.route(route.method, route.path)(route.handler)
        PromptServer.instance.add_on_prompt_handler(start_ahead)
        keep_compiled_code(Path(folder_paths.get_user_directory()) / "paralleldit-compiled")
        start_with_comfyui()
        for old, (new, inputs, outputs) in REPLACED.items():
            names: list[Any] = [{"new_id": name, "old_id": before} for name, before in inputs.items()]
            same: list[Any] = [{"new_idx": slot, "old_idx": slot} for slot in range(outputs)]
            await ComfyAPI().node_replacement.register(io.NodeReplace(new, old, WIDGETS, names, same))

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [
            ParallelizeModel,
            ParallelizeVAE,
            LoadDiT,
            ParallelSampler,
            DiTClassLabel,
        ]


async def comfy_entrypoint() -> ParallelDiTExtension:
    """ComfyUI calls this when it loads the pack."""
    return ParallelDiTExtension()
