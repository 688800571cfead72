"""Tiny networks beside the model: what nodes run inside of it, and VAEs."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.support.cases.host.base import fill_weights
from tests.support.census.controlnets import CONTROLNETS
from tests.support.census.rows import Row
from tests.support.host.stock_prompts import ALL


class GivenNetworks:
    """Values of rows, by their kinds."""

    base: Path

    def run(self, name: str, /, **inputs: Any) -> tuple:
        raise NotImplementedError

    def module(self, module: str, name: str, like: str, **config: Any) -> torch.nn.Module:
        raise NotImplementedError

    def a_model_patch(self, _row: Row, _model: Any) -> Any:
        """A network that nodes have run inside of the model."""
        network = torch.nn.Module()
        network.cond_in_channels = 3
        network.additional_in_dim = 0
        network.process_input_latent_image = lambda latent: latent
        network.project_modules = torch.nn.ModuleList()
        network.forward = lambda encoded: torch.ones(1, 4, 64).to(encoded)
        network.control_block = lambda image, _encoded, _block: 0.1 * image
        return self.patcher(network)

    def a_diffsynth(self, _row: Row, _model: Any) -> Any:
        return self.a_network("QwenImageBlockWiseControlNet", num_layers=3, dim=64)

    def a_fun(self, _row: Row, _model: Any) -> Any:
        sizes = {"dim": 320, "n_heads": 5, "n_kv_heads": 5, "multiple_of": 32, "ffn_dim_multiplier": 1.0}
        return self.a_network("ZImage_Control", "comfy.ldm.lumina.controlnet", n_control_layers=3, **sizes)

    def a_siglip(self, _row: Row, _model: Any) -> Any:
        sizes = {"siglip_token_nums": 5, "style_token_nums": 3, "siglip_token_dims": 8, "hidden_size": 64}
        return self.a_network("SigLIPMultiFeatProjModel", **sizes)

    def a_network(self, name: str, module: str = "comfy_extras.nodes_model_patch", **config: Any) -> Any:
        """A network of ComfyUI's that nodes have run inside of the model, from a file."""
        file = self.base / "models" / "model_patches" / f"{name}.safetensors"
        if not file.exists():
            operations = importlib.import_module("comfy.ops").disable_weight_init
            network = getattr(importlib.import_module(module), name)(**config, operations=operations)
            save(network, file, {"class": f"{module}.{name}", "config": json.dumps(config)})
        return self.run("NetworkLoader", file=str(file))[0]

    def a_image_vae(self, _row: Row, _model: Any) -> Any:
        return self.a_tiny_vae("taesd", "TAESD", 16)

    def a_video_vae(self, _row: Row, _model: Any) -> Any:
        return self.a_tiny_vae("taehv", "TAEHV", 16)

    def a_tiny_vae(self, module: str, name: str, channels: int) -> Any:
        """One of ComfyUI's small VAEs, from a file."""
        file = self.base / "models" / "vae" / f"{name}.safetensors"
        if not file.exists():
            network = getattr(importlib.import_module(f"comfy.taesd.{module}"), name)(latent_channels=channels)
            save(network, file)
        return self.run("VAELoader", vae_name=file.name)[0]

    def a_uni3c(self, _row: Row, _model: Any) -> Any:
        """One that ComfyUI's own node loads."""
        file = self.base / "models" / "model_patches" / "uni3c.safetensors"
        if not file.exists():
            uni3c: Any = importlib.import_module("comfy.ldm.wan.uni3c").WanUni3CControlnet
            operations = importlib.import_module("comfy.ops").disable_weight_init
            network = uni3c(
                in_channels=36, conv_out_dim=8, dim=128, ffn_dim=8, num_layers=1, time_embed_dim=48, out_proj_dim=48,
                add_channels=7, mid_channels=8, operations=operations,
            )  # fmt: skip
            save(network, file)
        return self.run("ModelPatchLoader", name=file.name)[0]

    def a_lllite(self, _row: Row, _model: Any) -> Any:
        file = self.base / "models" / "model_patches" / "lllite.safetensors"
        if not file.exists():
            lllite: Any = importlib.import_module("comfy.ldm.anima.lllite")
            operations = importlib.import_module("comfy.ops").disable_weight_init
            network = torch.nn.Module()
            network.lllite_conditioning1 = lllite.AnimaLLLiteConditioning(3, 16, 8, 1, (1, 2), operations=operations)
            for name in ("self_attn_q_proj", "self_attn_v_proj", "cross_attn_q_proj", "mlp_layer1"):
                network.add_module(
                    f"lllite_dit_blocks_1_{name}", lllite.AnimaLLLiteModule(64, 8, 8, operations=operations)
                )
            save(network, file, {"lllite.aspp_dilations": "1,2"})
        return self.run("ModelPatchLoader", name=file.name)[0]

    def a_multitalk(self, _row: Row, _model: Any) -> Any:
        """Its attention has 40 heads."""
        sizes = {"in_dim": 80, "intermediate_dim": 8, "out_dim": 24, "context_tokens": 2, "num_layers": 4}
        return self.a_network("MultiTalkModelPatch", **sizes)

    def a_spoken(self, _row: Row, _model: Any) -> Any:
        return {"encoded_audio_all_layers": [torch.zeros(1, 50, 768)] * 13}

    def a_two_speakers(self, row: Row, model: Any) -> Any:
        """A second one, who is in the right half of the picture."""
        mask = torch.zeros(1, 64, 96)
        mask[..., 48:] = 1
        audio = [torch.ones(1, 50, 768)] * 13
        return {"mode": "two_speakers", "audio_encoder_output_2": {"encoded_audio_all_layers": audio},
                "mask_1": 1 - mask, "mask_2": mask}  # fmt: skip

    def a_controlnet(self, kind: str, row: Row, model: Any) -> Any:
        """One of ComfyUI's, as large as the row's model. kind: of CONTROLNETS, from a file; or "no file"."""
        if kind == "no file":
            network = self.module(*CONTROLNETS["flux"][:2], row.model, latent_input=True)
            return importlib.import_module("comfy.controlnet").ControlNet(
                network,
                latent_format=model.get_model_object("latent_format"),
                compression_ratio=1,
                load_device=torch.device("cpu"),
                extra_conds=["y", "guidance"],
            )
        module, name, config, is_alike = CONTROLNETS[kind]
        file = self.base / "models" / "controlnet" / f"{kind}.safetensors"
        if not file.exists():
            like, more = ALL[row.model], {}
            if like.detected_as:
                tiny = json.dumps({"class": like.detected_as, "config": {**like.config, **config}}, default=str)
                more["tiny"] = torch.tensor(list(tiny.encode()), dtype=torch.uint8)
            save(self.module(module, name, row.model if is_alike else "", **config), file, **more)
        return self.run("ControlNetLoader", control_net_name=file.name)[0]

    def apply_controlnets(self, row: Row, model: Any, kinds: Iterable[str]) -> tuple[Any, Any]:
        """The row's texts with ControlNets of these kinds, one after the other, that start after some steps."""
        positive, negative = (self.conditioning(row.model, name) for name in ("positive", "negative"))
        for kind in kinds:
            positive, negative = self.run(
                "ControlNetApplyAdvanced", positive=positive, negative=negative,
                control_net=self.a_controlnet(kind, row, model), image=self.a_image(row, model), strength=0.7,
                start_percent=0.3, end_percent=1.0, vae=self.a_vae(row, model),
            )  # fmt: skip
        return positive, negative

    def patcher(self, network: torch.nn.Module) -> Any:
        cpu = torch.device("cpu")
        return importlib.import_module("comfy.model_patcher").ModelPatcher(network, cpu, cpu)


def save(network: torch.nn.Module, file: Path, metadata: Mapping[str, str] | None = None, **more: torch.Tensor) -> None:
    fill_weights(network)
    file.parent.mkdir(parents=True, exist_ok=True)
    weights = {name.replace("key_norm.weight", "key_norm.scale"): each for name, each in network.state_dict().items()}
    save_file({**weights, **more}, file, metadata and dict(metadata))
