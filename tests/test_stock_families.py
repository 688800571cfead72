"""Every family of the editor, in the file that ComfyUI's own loader takes, draws what that loader's MODEL draws."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.host import REPOSITORY, ComfyHost, PromptError
from tests.graphs import Graph, Link, latents, relative_error
from tests.stock_cases import CASES

TOLERANCE = 1e-4
# By case, layers by the names of the published files: some are several parameters of diffusers, or have them swapped.
HUNYUANVIDEO_LAYERS = ("double_blocks.0.img_attn_qkv", "double_blocks.0.txt_mlp.fc1", "single_blocks.1.linear1")
LAYERS = {
    "hunyuanvideo": HUNYUANVIDEO_LAYERS,
    "hunyuanvideo-i2v, saved by ComfyUI": HUNYUANVIDEO_LAYERS,
    "hunyuandit-1.2": ("blocks.0.attn1.Wqkv", "blocks.1.attn2.kv_proj", "final_layer.adaLN_modulation.1"),
    "cogvideox-1.0": ("blocks.0.q", "blocks.1.ff_proj"),
    "ltx-0.9": ("transformer_blocks.0.attn1.to_q", "patchify_proj"),
}
# A case, what else its positive text holds, and words of the refusal.
REFUSED = [
    ("ltx-0.9", {"keyframe_idxs": torch.zeros(1, 3, 4, 2)}, "guide frames"),
    ("ltx-0.9", {"concat_mask": torch.ones(1, 1, 3, 3, 5)}, "noise mask"),
    ("hunyuanvideo", {"attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0, 0]])}, "attention_mask"),
    ("hunyuanvideo", {"guiding_frame_index": torch.tensor(0)}, "guiding_frame_index"),
    ("hunyuandit-1.2", {"conditioning": torch.ones(1, 154, 1024)}, "shorten the prompt"),
    ("cogvideox-1.5-i2v", {"ofs": torch.full((1,), 3.0)}, "ofs"),
]


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path) -> None:
    """The models and texts of all cases, where the host looks for them."""
    command = [sys.executable, "-m", "tests.write_stock_models", str(comfyui), str(models / "models/diffusion_models")]
    run = subprocess.run([*command, *CASES], cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-4000:]
    for name, case in CASES.items():
        generator = torch.Generator().manual_seed(3)
        for which in ("positive", "negative"):
            save_file(case.texts(generator), models / "input" / f"{name} {which}.safetensors")


def prompt(name: str, model: Link, graph: Graph, positive: str = "positive") -> dict:
    """A KSampler with the model, and the case's texts and latents."""
    case = CASES[name]
    positive, negative = (
        graph.add("Test_LoadConditioning", name=f"{name} {which}.safetensors") for which in (positive, "negative")
    )
    latent = graph.add("Test_EmptyLatent", shape=" ".join(map(str, case.latent)))
    sampled = graph.add(
        "KSampler", model=model, positive=positive, negative=negative, latent_image=latent, seed=7, steps=3,
        cfg=case.cfg, sampler_name="euler", scheduler="simple", denoise=1.0,
    )  # fmt: skip
    graph.add("SaveLatent", samples=sampled, filename_prefix="test")
    return graph.prompt


@pytest.fixture(scope="module")
def stock(host: ComfyHost, files: None):
    """By case, the latents that ComfyUI's own model code samples."""

    def sample(name: str) -> torch.Tensor:
        graph = Graph()
        model = graph.add("UNETLoader", unet_name=f"{name}.safetensors", weight_dtype="default")
        return latents(host, prompt(name, model, graph))

    return cache(sample)


def parallel(name: str, graph: Graph, loop_mode: bool = True, **plan: int) -> Link:
    plan = graph.add("ParallelDiT_Plan", mode="manual", **plan)
    loader = {"model_name": f"{name}.safetensors", "dtype": "fp32", "loop_mode": loop_mode, "plan": plan}
    return graph.add("ParallelDiT_LoadDiffusionModel", **loader)


@pytest.mark.parametrize(("plan", "loop_mode"), [({"cfg": 1}, True), ({"ulysses": 2}, False)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_family_draws_what_the_stock_loader_draws(
    name: str, plan: dict[str, int], loop_mode: bool, host: ComfyHost, stock
) -> None:
    graph = Graph()
    model = parallel(name, graph, loop_mode, **plan)
    assert relative_error(latents(host, prompt(name, model, graph)), stock(name)) <= TOLERANCE


def write_lora(name: str, models: Path) -> str:
    """A LoRA for the case's layers, by their published names."""
    published = "hunyuanvideo" if name.startswith("hunyuanvideo") else name
    weights = load_file(models / "models/diffusion_models" / f"{published}.safetensors")
    generator, tensors = torch.Generator().manual_seed(5), {}
    for layer in LAYERS[name]:
        rows, columns = weights[f"{layer}.weight"].shape
        tensors[f"diffusion_model.{layer}.lora_B.weight"] = torch.randn(rows, 4, generator=generator) / 2
        tensors[f"diffusion_model.{layer}.lora_A.weight"] = torch.randn(4, columns, generator=generator) / columns**0.5
    save_file(tensors, models / "models/loras" / f"{name}.safetensors")
    return f"{name}.safetensors"


@pytest.mark.parametrize("name", LAYERS)
def test_a_lora_by_original_names_draws_what_it_draws_with_the_stock_loader(
    name: str, host: ComfyHost, stock, files: None, models: Path
) -> None:
    lora = write_lora(name, models)

    def adapted(graph: Graph, model: Link) -> torch.Tensor:
        model = graph.add("LoraLoaderModelOnly", model=model, lora_name=lora, strength_model=0.8)
        return latents(host, prompt(name, model, graph))

    graph = Graph()
    right = adapted(graph, graph.add("UNETLoader", unet_name=f"{name}.safetensors", weight_dtype="default"))
    assert relative_error(right, stock(name)) > 0.01, "the LoRA changes nothing"
    graph = Graph()
    assert relative_error(adapted(graph, parallel(name, graph, ulysses=2)), right) <= TOLERANCE


@pytest.mark.parametrize(("name", "tensors", "words"), REFUSED, ids=[f"{name}, {words}" for name, _, words in REFUSED])
def test_conditioning_that_the_workers_cannot_honour_is_refused_by_name(
    name: str, tensors: dict[str, torch.Tensor], words: str, host: ComfyHost, files: None, models: Path
) -> None:
    text = load_file(models / "input" / f"{name} positive.safetensors")
    save_file({**text, **tensors}, models / "input" / f"{name} {words}.safetensors")
    graph = Graph()
    with pytest.raises(PromptError, match=words):
        host.run(prompt(name, parallel(name, graph, cfg=1), graph, words))


def test_a_cogvideox_with_a_table_of_positions_is_left_to_the_stock_loader(
    host: ComfyHost, files: None, models: Path
) -> None:
    folder, name = models / "models/diffusion_models", "cogvideox-1.0"
    table = {"patch_embed.pos_embedding": torch.zeros(1, 230, 128)}
    save_file({**load_file(folder / f"{name}.safetensors"), **table}, folder / "positions.safetensors")
    graph = Graph()
    with pytest.raises(PromptError, match="table of positions"):
        host.run(prompt(name, parallel("positions", graph, cfg=1), graph))
