"""`library.library_ranks FOLDER CASES`: pipelines made parallel, as a script does it.

Returns what each rank was told of the calls that are to be refused, and of families that failed; of rank 0 also the
images, by case name, and on two ranks every family's prediction.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import diffusers
import torch
import torch.distributed as dist

from parallel_backend import ParallelPlan, library, load_transformer, parallelize
from parallel_backend.errors import RequestError
from parallel_backend.groups.mesh import Mesh, build_mesh
from tests.support.cases.families import FAMILIES, UNEVEN, Family
from tests.support.cases.library_cases import (
    CALLS,
    COSMOS_1,
    SD_UNET,
    SDXL_UNET,
    SEED,
    dit,
    flux,
    save_dit,
    sd3,
    sd3_with_encoders,
    seeded,
    shape_name,
    stable_diffusion,
    unet,
    unet_inputs,
)
from tests.support.cases.own_loop_cases import SMALL


def sampled(case: dict) -> torch.Tensor:
    """The images of a case, which all ranks hold alike."""
    call = CALLS[case["call"]]
    pipeline = call.pipeline()
    torch.manual_seed(SEED + dist.get_rank())
    parallelize(pipeline, ParallelPlan.from_json(case["plan"]), vae=case["vae"])
    generator = seeded() if case["seeded"] else None
    images = call.run(pipeline, case["batch"], generator)
    if case["twice"]:
        images = call.run(pipeline, case["batch"], seeded())
    first = images.clone()
    dist.broadcast(first, 0)
    if not torch.equal(first, images):
        raise SystemExit(f"Rank {dist.get_rank()} has other images than rank 0 in {case['name']}.")
    return images


def forward(family: Family, shape: str, plan: ParallelPlan, build: Callable[..., Mesh] = build_mesh) -> torch.Tensor:
    """A family's model, called as its pipeline does. build: of the plan's groups."""
    pipeline = SimpleNamespace(transformer=family.build())
    with patch.object(library, "build_mesh", build):
        parallelize(pipeline, plan)
    with torch.inference_mode():
        inputs = family.inputs(*family.shapes[shape])
        return family.reference(pipeline.transformer, *inputs)


def parallel(build: Callable, vae: bool = False, **plan: int | str) -> diffusers.DiffusionPipeline:
    pipeline = build()
    parallelize(pipeline, ParallelPlan(**plan), vae)
    return pipeline


def compiled() -> diffusers.DiffusionPipeline:
    pipeline = dit()
    pipeline.transformer.compile()
    return pipeline


def with_a_block_compiled_later() -> None:
    pipeline = parallel(dit, ulysses=2)
    pipeline.transformer.transformer_blocks[1].compile()
    CALLS["DiT"].run(pipeline, 1, seeded())


def with_a_block_compiled_whose_tokens_are_whole() -> None:
    pipeline = parallel(dit, dp=2)
    pipeline.transformer.transformer_blocks[1].compile(backend="eager")
    CALLS["DiT"].run(pipeline, 2, seeded())


def with_a_model_for_another_plan() -> None:
    pipeline: Any = dit()
    with TemporaryDirectory() as folder:
        loaded = load_transformer(save_dit(Path(folder)), ParallelPlan(ulysses=2), torch.device("cpu"))
        pipeline.transformer = loaded.model
        parallelize(pipeline, ParallelPlan(cfg=2))


def with_skipped_layers() -> None:
    pipeline = parallel(sd3, ulysses=2)
    arguments = {**CALLS["SD3"].arguments(1), "skip_guidance_layers": [0], "skip_layer_guidance_start": -1.0}
    pipeline(**arguments, num_inference_steps=2)


def with_ip_adapter() -> None:
    pipeline = parallel(flux, dp=2)
    adapter = {"ip_adapter_image_embeds": [torch.randn(1, 1, 1, 32)]}
    pipeline(**CALLS["Flux"].arguments(1), joint_attention_kwargs=adapter, num_inference_steps=1)


def unet_of_a_folder(folder: Path) -> torch.Tensor:
    """What a UNet predicts of which `load_transformer` has read this rank's part."""
    if dist.get_rank() == 0:
        unet(**SDXL_UNET).save_pretrained(folder / "unet")
    dist.barrier()
    plan = ParallelPlan(ulysses=2)
    pipeline = SimpleNamespace(unet=load_transformer(folder, plan, torch.device("cpu"), name="unet").model)
    parallelize(pipeline, plan)
    with torch.no_grad():
        return pipeline.unet(**unet_inputs(2)).sample


def with_unknown_layers() -> None:
    kinds = {"down_block_types": ("AttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D")}
    parallel(lambda: SimpleNamespace(unet=unet(**{**SD_UNET, **kinds})), ulysses=2)


def with_residuals() -> None:
    model = parallel(stable_diffusion, ulysses=2).unet
    text = torch.zeros(1, 6, 32)
    model(torch.zeros(1, 4, 8, 8), 5, text, mid_block_additional_residual=torch.zeros(1, 16, 2, 2))


REFUSALS: dict[str, Callable[[], object]] = {
    "another world size": lambda: parallel(dit, ulysses=2, ring=2),
    "another world size, loading": lambda: load_transformer("nowhere", ParallelPlan(), torch.device("cpu")),
    "no folder": lambda: load_transformer("nowhere", ParallelPlan(pipefusion=2), torch.device("cpu")),
    "heads": lambda: parallel(
        lambda: SimpleNamespace(transformer=FAMILIES["dit"].of_config(num_attention_heads=1).build()), ulysses=2
    ),
    "no transformer": lambda: parallel(lambda: diffusers.DDPMPipeline(None, None), ulysses=2),
    "unknown transformer": lambda: parallel(lambda: SimpleNamespace(transformer=torch.nn.Linear(1, 1)), ulysses=2),
    "twice": lambda: parallelize(parallel(dit, ulysses=2), ParallelPlan(ulysses=2)),
    "prompts of its own": lambda: CALLS["DiT"].run(parallel(dit, dp=2), 1 + dist.get_rank(), seeded()),
    "words of its own": lambda: parallel(sd3_with_encoders, dp=2)(
        ["a cat", f"a {'dog' if dist.get_rank() else 'boat'}"], **SMALL
    ),
    "noise of its own": lambda: CALLS["Flux"].run(
        parallel(flux, ulysses=2), 2, torch.Generator().manual_seed(dist.get_rank())
    ),
    "an unknown layer of a UNet": with_unknown_layers,
    "fetched weights of a UNet": lambda: parallel(stable_diffusion, ulysses=2, weights="shared"),
    "a UNet in stages": lambda: parallel(stable_diffusion, pipefusion=2),
    "ControlNet of a UNet": with_residuals,
    "images elsewhere": lambda: parallelize(dit(), ParallelPlan(dp=2), images="last"),
    "compiled": lambda: parallel(compiled, ulysses=2),
    "a block compiled later": with_a_block_compiled_later,
    "a block compiled whose tokens are whole": with_a_block_compiled_whose_tokens_are_whole,
    "cast": lambda: parallel(dit, ulysses=2, weights="host").to(torch.float16),
    "a model for another plan": with_a_model_for_another_plan,
    "no VAE": lambda: parallel(flux, vae=True, ulysses=2),
    "skipped layers": with_skipped_layers,
    "IP-Adapter": with_ip_adapter,
}


def refusal(call: Callable[[], object]) -> str:
    """What the caller is told."""
    try:
        call()
    except RequestError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def on_ranks(folder: str, cases: list[dict]) -> tuple[dict[str, dict[str, str]], dict[str, torch.Tensor]]:
    """Cases are JSON objects of name, call, plan, batch, seeded, twice, vae; the refusals are all of two ranks."""
    results = {case["name"]: sampled(case) for case in cases}
    told: dict[str, dict[str, str]] = {"failed": {}, "refused": {}}
    world, once = dist.get_world_size(), functools.cache(build_mesh)  # as all families have one plan
    for name in FAMILIES if world == 2 else ():
        try:
            results[name] = forward(FAMILIES[name], shape_name(name), ParallelPlan(dp=2), once)
        except Exception:  # all ranks fail alike, and the others' cases go on
            told["failed"][name] = traceback.format_exc()
    if world == 2:
        results["Cosmos 1"] = forward(COSMOS_1, UNEVEN, ParallelPlan(ulysses=2))
        results["UNet of a folder"] = unet_of_a_folder(Path(folder))
        told["refused"] = {name: refusal(call) for name, call in REFUSALS.items()}
    return told, {} if dist.get_rank() else results
