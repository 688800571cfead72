"""What a user drags: nodes that turn ComfyUI's objects into requests to the worker group.

Imports comfy.*, `worker.host`, `worker.wire`, and of the engine what describes a request: plans, specs, names of
schedulers, where weights lie in files. Never what runs one: no torch.distributed, no diffusers.
"""

from comfy_api.latest import ComfyExtension, io

from .class_label import DiTClassLabel
from .load_checkpoint import LoadCheckpointParallel
from .load_model import LoadDiffusionModelParallel
from .parallel_plan import ParallelPlanNode
from .parallel_sampler import ParallelSampler
from .parallel_vae import ParallelVAEDecode, ParallelVAEEncode
from .routes.control import add_control_routes
from .routes.plan import add_plan_route
from .routes.status import add_status_routes
from .workers.ahead import start_with_comfyui


class ParallelDiTExtension(ComfyExtension):
    async def on_load(self) -> None:
        add_status_routes()
        add_control_routes()
        add_plan_route()
        start_with_comfyui()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [
            LoadDiffusionModelParallel,
            LoadCheckpointParallel,
            ParallelPlanNode,
            ParallelSampler,
            ParallelVAEDecode,
            ParallelVAEEncode,
            DiTClassLabel,
        ]


async def comfy_entrypoint() -> ParallelDiTExtension:
    """Called by ComfyUI when it loads the pack."""
    return ParallelDiTExtension()
