"""The node `Load DiT`. It loads a class-conditional DiT, which no stock loader reads, as a stock MODEL."""

from __future__ import annotations

from comfy_api.latest import io

from .errors import Refused
from .model.host_file import describe_host_file
from .model.model_files import explain_not_listed, list_models
from .model.remote_patcher import stock_patcher


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
