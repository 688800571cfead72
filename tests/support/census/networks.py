"""Tiny networks beside the model: what nodes run inside of it, and VAEs."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.support.cases.host.base import fill_weights, of_comfyui
from tests.support.cases.host.networks import FUN, ONE_BLOCK, lllite_network
from tests.support.census.controlnets import ADAPTER, CONTROLNETS, LOCKED, NO_FILE, OF_A_PACK
from tests.support.census.loading import Loading
from tests.support.census.rows import Row
from tests.support.host.stock_prompts import ALL

# A T2I adapter for Stable Diffusion 1, whose loader takes this from the shapes.
OF_SD1 = {
    **{"channels": [32, 64, 128, 128], "nums_rb": 2, "cin": 3 * 8**2, "ksize": 1},
    **{"sk": True, "use_conv": False, "xl": False},
}


class GivenNetworks(Loading):
    """Values of rows, by their kinds."""

    def module(self, module: str, name: str, like: str, **config: Any) -> torch.nn.Module:
        """A network of ComfyUI's with random weights, as large as a model, if one is named."""
        return fill_weights(of_comfyui(f"{module}.{name}", **{**(ALL[like].config if like else {}), **config}))

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

    def a_fun(self, _row: Row, _model: Any) -> Any:
        return self.a_network("ZImage_Control", "comfy.ldm.lumina.controlnet", **FUN)

    def a_siglip(self, _row: Row, _model: Any) -> Any:
        sizes = {"siglip_token_nums": 5, "style_token_nums": 3, "siglip_token_dims": 8, "hidden_size": 64}
        return self.a_network("SigLIPMultiFeatProjModel", **sizes)

    def a_network(self, name: str, module: str = "comfy_extras.nodes_model_patch", **config: Any) -> Any:
        """A network of ComfyUI's that nodes have run inside of the model, from a file."""
        said = {"class": f"{module}.{name}", "config": json.dumps(config)}
        file = self.saved_once(name, lambda: of_comfyui(f"{module}.{name}", **config), metadata=said)
        return self.run("NetworkLoader", file=str(file))[0]

    def saved_once(
        self, name: str, make: Callable[[], torch.nn.Module], folder: str = "model_patches", **given: Any
    ) -> Path:
        """The file of a network, written if it is not there yet. given: to `save`."""
        file = self.base / "models" / folder / f"{name}.safetensors"
        if not file.exists():
            save(make(), file, **given)
        return file

    def a_tiny_vae(self, module: str, name: str, channels: int) -> Any:
        """One of ComfyUI's small VAEs, from a file."""
        made = getattr(importlib.import_module(f"comfy.taesd.{module}"), name)
        file = self.saved_once(name, lambda: made(latent_channels=channels), "vae")
        return self.run("VAELoader", vae_name=file.name)[0]

    def a_uni3c(self, _row: Row, _model: Any) -> Any:
        """One that ComfyUI's own node loads."""
        config = {**ONE_BLOCK, "num_layers": 1}
        file = self.saved_once("uni3c", lambda: of_comfyui("comfy.ldm.wan.uni3c.WanUni3CControlnet", **config))
        return self.run("ModelPatchLoader", name=file.name)[0]

    def a_lllite(self, _row: Row, _model: Any) -> Any:
        layers = ("self_attn_q_proj", "self_attn_v_proj", "cross_attn_q_proj", "mlp_layer1")
        network, said = (lambda: lllite_network(64, layers, (1, 2))), {"lllite.aspp_dilations": "1,2"}
        file = self.saved_once("lllite", network, metadata=said)
        return self.run("ModelPatchLoader", name=file.name)[0]

    def a_two_speakers(self, row: Row, model: Any) -> Any:
        """A second one, who is in the right half of the picture."""
        mask = torch.zeros(1, 64, 96)
        mask[..., 48:] = 1
        audio = [torch.ones(1, 50, 768)] * 13
        return {"mode": "two_speakers", "audio_encoder_output_2": {"encoded_audio_all_layers": audio},
                "mask_1": 1 - mask, "mask_2": mask}  # fmt: skip

    def a_controlnet(self, kind: str, row: Row, model: Any) -> Any:
        """One of ComfyUI's, as large as the row's model. kind: of CONTROLNETS, from a file; or NO_FILE,
        OF_A_PACK, LOCKED, or ADAPTER."""
        if kind in (NO_FILE, OF_A_PACK, LOCKED):
            control = importlib.import_module("comfy.controlnet").ControlNet
            network = self.module(*CONTROLNETS["flux"][:2], row.model, latent_input=True)
            made = of_a_pack(control) if kind == OF_A_PACK else control
            if kind == LOCKED:
                network.middle_of_a_step = threading.Lock()
            return made(
                network,
                latent_format=model.get_model_object("latent_format"),
                compression_ratio=1,
                load_device=torch.device("cpu"),
                extra_conds=["y", "guidance"],
            )
        if kind == ADAPTER:
            adapter = importlib.import_module("comfy.t2i_adapter.adapter").Adapter
            network = partial(adapter, **OF_SD1)
            file = self.saved_once(kind, network, "controlnet")
            return self.run("ControlNetLoader", control_net_name=file.name)[0]
        module, name, config, is_alike = CONTROLNETS[kind]
        like, more = ALL[row.model], {}
        if like.detected_as:
            tiny = json.dumps({"class": like.detected_as, "config": {**like.config, **config}}, default=str)
            more["tiny"] = torch.tensor(list(tiny.encode()), dtype=torch.uint8)
        network = lambda: self.module(module, name, row.model if is_alike else "", **config)  # noqa: E731
        file = self.saved_once(kind, network, "controlnet", **more)
        return self.run("ControlNetLoader", control_net_name=file.name)[0]

    def apply_controlnets(self, row: Row, model: Any, kinds: Iterable[str], start: float = 0.3) -> tuple[Any, Any]:
        """The row's texts with ControlNets of these kinds, one after the other. start: after a part of the steps."""
        positive, negative = (self.conditioning(row.model, name) for name in ("positive", "negative"))
        for kind in kinds:
            positive, negative = self.run(
                "ControlNetApplyAdvanced", positive=positive, negative=negative,
                control_net=self.a_controlnet(kind, row, model), image=self.a_image(row, model),
                strength=0.7, start_percent=start, end_percent=1.0, vae=self.a_vae(row, model),
            )  # fmt: skip
        return positive, negative

    def patcher(self, network: torch.nn.Module) -> Any:
        cpu = torch.device("cpu")
        return importlib.import_module("comfy.model_patcher").ModelPatcher(network, cpu, cpu)


def of_a_pack(control: Any) -> Any:
    """A class of ControlNets that a pack derives from ComfyUI's."""

    def copy(own: Any) -> Any:
        copied = control.copy(own)
        copied.__class__ = type(own)
        return copied

    return type("PackControlNet", (control,), {"copy": copy})


def save(network: torch.nn.Module, file: Path, metadata: Mapping[str, str] | None = None, **more: torch.Tensor) -> None:
    fill_weights(network)
    file.parent.mkdir(parents=True, exist_ok=True)
    weights = {name.replace("key_norm.weight", "key_norm.scale"): each for name, each in network.state_dict().items()}
    save_file({**weights, **more}, file, metadata and dict(metadata))
