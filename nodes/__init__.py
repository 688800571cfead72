"""The nodes in ComfyUI's menu. They turn ComfyUI's objects into requests to the worker group.

They import comfy.*, `worker.host`, `worker.wire`, and the engine modules that describe a request: plans, specs,
scheduler names, the layout of weights in files. They never import what runs a request: torch.distributed or diffusers.
"""

from pathlib import Path

import folder_paths
from comfy_api.latest import ComfyExtension, io

from ..worker.wire.private_folder import keep_compiled_code
from .class_label import DiTClassLabel
from .inside.origins import keep_files_of_networks
from .load_checkpoint import LoadCheckpointParallel
from .load_dit import LoadDiT
from .load_model import LoadDiffusionModelParallel
from .parallel_plan import ParallelPlanNode
from .parallel_sampler import ParallelSampler
from .parallel_vae import ParallelVAEDecode, ParallelVAEEncode
from .parallelize import ParallelizeModel
from .routes.control import add_control_routes
from .routes.plan import add_plan_route
from .routes.settings import add_settings_routes
from .routes.status import add_status_routes
from .workers.ahead import start_with_comfyui


class ParallelDiTExtension(ComfyExtension):
    async def on_load(self) -> None:
        add_status_routes()
        add_control_routes()
        add_plan_route()
        add_settings_routes()
        keep_files_of_networks()
        keep_compiled_code(Path(folder_paths.get_user_directory()) / "paralleldit-compiled")
        start_with_comfyui()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [
            ParallelizeModel,
            LoadDiffusionModelParallel,
            LoadCheckpointParallel,
            LoadDiT,
            ParallelPlanNode,
            ParallelSampler,
            ParallelVAEDecode,
            ParallelVAEEncode,
            DiTClassLabel,
        ]


async def comfy_entrypoint() -> ParallelDiTExtension:
    """ComfyUI calls this when it loads the pack."""
    return ParallelDiTExtension()
