"""Whether the rows of `nodes/inside/pack_facts.py` hold for node packs as they are now.

python -m tests.benchmarks.inside.packs COMFYUI PACKS

PACKS is a folder of clones, such as ComfyUI's custom_nodes. Each row's node runs on a tiny model as stock, and on two
ranks that share tokens, and that share the rows of a batch if the row allows it. It prints the relative error, and what
the node says if the plan was replaced, as it is if a function's text is not the one that was read, or why it ran as
stock.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.support.census.program import Census
from tests.support.census.rows import Row, equal, habit
from tests.support.host.graphs import TINY_MODELS
from tests.support.host.stock_prompts import write_cases
from tests.support.ranks.leaving import end

Patched = Callable[[Any, Any, Any], Any]  # takes the pack's module, the census and a model
KJ_MODELS, KJ_LTXV = "nodes.model_optimization_nodes", "nodes.ltxv_nodes"
VIDEO_WITH_SOUND: Any = ((1, 128, 3, 5, 7), (1, 8, 11, 16))


def perturb(module: Any, _census: Any, model: Any) -> Any:
    return module.PerturbedAttention().patch(model, unet_block_list="d0,m0,u0")[0]


def smooth(module: Any, _census: Any, model: Any) -> Any:
    return module.SmoothedEnergyGuidanceAdvanced().patch(model, blur_sigma=1.0)[0]


def adapt(module: Any, _census: Any, model: Any) -> Any:
    """An IP-Adapter with random weights in each block of a UNet that attends to the text."""
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    unet, patched, layers = model.model.diffusion_model, model.clone(), {}
    places = {("input", place): block for place, block in enumerate(unet.input_blocks)}
    places |= {("output", place): block for place, block in enumerate(unet.output_blocks)}
    places[("middle", 0)] = unet.middle_block
    attends = {place: part for place, block in places.items() for part in block if hasattr(part, "transformer_blocks")}
    for number, part in enumerate(attends.values()):
        query = part.transformer_blocks[0].attn2.to_q
        for name in ("to_k_ip", "to_v_ip"):
            layers[f"{2 * number + 1}.{name}.weight"] = random(query.out_features, 24)
    projection = {"proj.weight": random(96, 32), "proj.bias": random(96)}
    projection |= {"norm.weight": torch.ones(24), "norm.bias": torch.zeros(24)}
    adapter = module.IPAdapter(
        {"image_proj": projection, "ip_adapter": layers}, cross_attention_dim=24, output_cross_attention_dim=24,
        clip_embeddings_dim=32, clip_extra_context_tokens=4,
    )  # fmt: skip
    given = {
        "ipadapter": adapter, "weight": 1.0, "cond": random(1, 4, 24), "cond_alt": None, "uncond": random(1, 4, 24),
        "weight_type": "linear", "mask": None, "sigma_start": 1e9, "sigma_end": 0.0, "unfold_batch": False,
        "embeds_scaling": "V only",
    }  # fmt: skip
    for number, place in enumerate(attends):
        module.set_model_patch_replace(patched, {**given, "module_key": str(2 * number + 1)}, place)
    return patched


def guide(module: Any, census: Any, model: Any) -> Any:
    return module.WanVideoNAG().patch(model, census.conditioning("wan", "negative"), 11.0, 0.25, 2.5)[0]


def chunk_wan(module: Any, _census: Any, model: Any) -> Any:
    return module.WanChunkFeedForward.execute(model, 2, 8).result[0]


def chunk_ltxv(module: Any, _census: Any, model: Any) -> Any:
    return module.LTXVChunkFeedForward.execute(model, 2, 8).result[0]


def guide_ltx2(module: Any, census: Any, model: Any) -> Any:
    texts = dict.fromkeys(("nag_cond_video", "nag_cond_audio"), census.conditioning("ltx-2", "negative"))
    return module.LTX2_NAG.execute(model, 11.0, 0.25, 2.5, **texts).result[0]


# By the node of a row: the file that has the node, what it does, and the model.
NODES: Mapping[str, tuple[str, Patched, Row]] = {
    "PerturbedAttention": ("pag_nodes", perturb, equal("unet")),
    "SmoothedEnergyGuidanceAdvanced": ("pag_nodes", smooth, equal("unet")),
    "IPAdapter": ("IPAdapterPlus", adapt, equal("unet")),
    "WanVideoNAG": (KJ_MODELS, guide, replace(equal("wan"), cfg=1.0)),
    "WanChunkFeedForward": (KJ_MODELS, chunk_wan, equal("wan")),
    "LTXVChunkFeedForward": (KJ_LTXV, chunk_ltxv, equal("ltx")),
    "LTX2_NAG": (KJ_LTXV, guide_ltx2, replace(equal("ltx-2"), latent=VIDEO_WITH_SOUND, cfg=1.0)),
    "layerdiffuse": ("lib_layerdiffusion.attention_sharing", lambda _module, _census, model: model, equal("unet")),
}


def load(pack: Path, name: str) -> Any:
    """A module of a pack, without the pack's own."""
    package = f"packs_{pack.name.replace('-', '_')}"
    if package not in sys.modules:
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = [str(pack)]
    return importlib.import_module(f"{package}.{name}")


def measure(census: Census, row: Row, pack: Path, name: str, patched: Patched) -> dict[str, Any]:
    def does(census: Census, row: Row, model: Any) -> list[torch.Tensor]:
        return [census.sample(row, patched(load(pack, name), census, model))]

    return census.outcome(name, habit(row, does))


def main(comfyui: str, packs: str) -> None:
    if not TINY_MODELS.items() <= os.environ.items():  # which a process reads when it starts
        command = [sys.executable, "-m", "tests.benchmarks.inside.packs", comfyui, packs]
        os.execve(sys.executable, command, {**os.environ, **TINY_MODELS})
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        write_cases(Path(comfyui), base, {row.model for _, _, row in NODES.values()})
        shutil.copytree(packs, base / "custom_nodes")
        shutil.copytree(Path(__file__).parents[2] / "support" / "habit_pack", base / "custom_nodes" / "habit_pack")
        census = Census(comfyui, folder)
        facts: Any = importlib.import_module("pack.nodes.inside.pack_facts")
        try:
            for place, read in facts.READ.items():
                name, patched, row = NODES[read.facts.node]
                file = place.partition(":")[0]
                for pack in sorted(each.parent for each in base.glob(f"custom_nodes/*/{file.partition('/')[0]}")):
                    if not (pack / file).exists():
                        continue
                    batch = {"plan": {"dp": 2}, "latent": (2, *census.latent(row)["samples"].shape[1:])}
                    for asked in (row, replace(row, **batch)) if read.facts.rows else (row,):
                        found = measure(census, asked, pack, name, patched)
                        error = found.get("error", found.get("raised"))
                        said = [*found["replaced"], *found.get("why", ())]
                        print(f"{read.facts.node}, {asked.plan}: {error}", *said, sep="\n  ", flush=True)
        finally:
            census.group.stop()
    end()


if __name__ == "__main__":
    main(*sys.argv[1:])
