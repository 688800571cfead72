"""The node `Load Checkpoint (Parallel)`. MODEL runs on the worker group; CLIP and VAE are ComfyUI's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import comfy.sd
import folder_paths
from comfy_api.latest import io

from .load_model import common_inputs, explain_stock, load_listed
from .model.host_file import HostFile, NoDenoiser
from .model.model_files import explain_not_listed, list_checkpoints
from .parallel_plan import AskedPlan


class LoadCheckpointParallel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ParallelDiT_LoadCheckpoint",
            display_name="Load Checkpoint (Parallel)",
            category="ParallelDiT",
            description="Loads a checkpoint: its diffusion model into the worker group, the rest as the stock loader "
            "does.",
            search_aliases=["multi gpu", "load diffusion", "load checkpoint", "ckpt", "xdit"],
            inputs=[
                io.Combo.Input(
                    "model_name",
                    display_name="ckpt_name",
                    options=list(list_checkpoints()),
                    tooltip="A safetensors file in models/checkpoints. Pickle files (ckpt, pt, bin) are not offered: "
                    "loading one can run any code. GGUF files have no CLIP and no VAE: use Load Diffusion Model "
                    "(Parallel).",
                ),
                *common_inputs(),
            ],
            outputs=[
                io.Model.Output(tooltip="For stock samplers, guiders and LoRA loaders, and Parallel Sampler."),
                io.Clip.Output(tooltip="The checkpoint's text encoder, in ComfyUI's own process."),
                io.Vae.Output(tooltip="The checkpoint's VAE, in ComfyUI's own process."),
                io.ClipVision.Output(tooltip="The checkpoint's image encoder, if it has one. SVD and Hunyuan3D do."),
            ],
        )

    @classmethod
    def validate_inputs(cls, model_name: str) -> bool | str:
        return True if model_name in list_checkpoints() else str(explain_not_listed(model_name, checkpoint=True))

    @classmethod
    async def execute(cls, model_name: str, dtype: str, plan: AskedPlan | None = None, group: int = 1) -> io.NodeOutput:
        """This is asynchronous, like the other loader, so that ComfyUI runs it first."""
        listed = list_checkpoints()
        try:
            model, file = load_listed(listed, model_name, dtype, plan, group, checkpoint=True)
        except NoDenoiser as error:
            explain_stock(error, group)
            return io.NodeOutput(*load_whole(listed[model_name]))
        return io.NodeOutput(model, *load_rest(file))


def load_whole(path: Path, **given: Any) -> tuple[Any, ...]:
    """Returns the MODEL, CLIP, VAE and CLIP vision that the stock Load Checkpoint reads from a file."""
    given |= {"output_clipvision": True, "embedding_directory": folder_paths.get_folder_paths("embeddings")}
    return comfy.sd.load_checkpoint_guess_config(str(path), **given)[:4]


def load_rest(file: HostFile) -> tuple[Any, ...]:
    """Loads a checkpoint's CLIP, VAE and CLIP vision with ComfyUI's own loader, as the stock nodes do.

    That loader would read a file with only a diffusion model whole. For such a file this returns what the loader would
    return: a VAE that raises an error when it is used.
    """
    if not file.has_more:
        return None, comfy.sd.VAE(sd={}), None
    return load_whole(file.path, output_model=False)[1:]
