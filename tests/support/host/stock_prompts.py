"""The cases of `stock_cases` for a host: their files, and prompts that sample from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from demo.host import ComfyHost
from tests.support.files.write_stock_models import ALL
from tests.support.host.graphs import TINY_MODELS, Graph, Patch, load, write_packs
from tests.support.programs import run_program

STEPS = 3


def write_cases(comfyui: Path, base: Path, names: Iterable[str]) -> None:
    """Writes models and texts where a host with this base folder looks for them."""
    folder = base / "models" / "diffusion_models"
    for path in (folder, base / "input"):
        path.mkdir(parents=True, exist_ok=True)
    run_program(comfyui, "tests.support.files.write_stock_models", folder, *names)
    for name in names:
        generator = torch.Generator().manual_seed(3)
        for which in ("positive", "negative"):
            save_file(ALL[name].texts(generator), base / "input" / f"{name} {which}.safetensors")


def host_with_cases(
    comfyui: Path, base: Path, names: Iterable[str], env: Mapping[str, str] | None = TINY_MODELS, **options: Any
) -> ComfyHost:
    """A host of its own, to be entered, that has the models and texts. options: of ComfyHost."""
    write_cases(comfyui, base, names)
    return ComfyHost(comfyui, base, extra_args=write_packs(base), env=env, **options)


def prompt(
    name: str,
    plan: Mapping[str, int] | None = None,
    *,
    model: str | None = None,
    dtype: str = "default",
    group: int = 1,
    positive: str = "positive",
    negative: str = "negative",
    cfg: float | None = None,
    steps: int = STEPS,
    patch: Patch | None = None,
    scheduler: str = "",
    sigmas: Sequence[float] = (),
    size: Sequence[int] = (),
) -> dict:
    """A KSampler on a case, with Parallelize Model behind the loader under a plan, an automatic one with {}, or without
    one as stock.

    model: another than the case's file. dtype: of its weights. group: of workers. positive, negative: other texts. cfg,
    size: another scale, and of another latent, than the case's. patch: puts nodes behind the model. scheduler: of a
    Parallel Sampler instead. sigmas: for Euler, by a Sampler Custom instead.
    """
    case, graph = ALL[name], Graph()
    model = model or f"{name}.safetensors"
    if plan is None:
        loaded = graph.add("UNETLoader", unet_name=model, weight_dtype=dtype)
    else:
        loaded = load(graph, model, plan or None, group, dtype)
    texts = [graph.add("Test_LoadConditioning", name=f"{name} {which}.safetensors") for which in (positive, negative)]
    latent = graph.add("Test_EmptyLatent", shape=" ".join(map(str, size or case.latent)))
    common = {
        "model": patch(graph, loaded) if patch else loaded, "positive": texts[0], "negative": texts[1],
        "latent_image": latent, "cfg": cfg or case.cfg,
    }  # fmt: skip
    of_steps = {"seed": 7, "steps": steps, "denoise": 1.0}
    if sigmas:
        euler = graph.add("KSamplerSelect", sampler_name="euler")
        listed = graph.add("ManualSigmas", sigmas=", ".join(f"{sigma:.9f}" for sigma in sigmas))
        sampled = graph.add("SamplerCustom", add_noise=True, noise_seed=7, sampler=euler, sigmas=listed, **common)
    elif scheduler:
        sampled = graph.add("ParallelDiT_Sampler", scheduler=scheduler, **of_steps, **common)
    else:
        sampled = graph.add("KSampler", sampler_name="euler", scheduler="simple", **of_steps, **common)
    if "|" in case.latent:
        sampled = graph.add("LTXVSeparateAVLatent", av_latent=sampled)
    graph.add("SaveLatent", samples=sampled, filename_prefix="test")
    return graph.prompt
