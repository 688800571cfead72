"""`sparse_ranks OUT PLAN …`:
runs steps of video models under plans with sparse attention, and saves the predictions that rank 0 gets, and those of
the plain class with and without the pattern as a mask.

ComfyUI, which COMFYUI_PATH names, is imported by `host_ranks`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import diffusers
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file

from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import Mesh, build_mesh
from parallel_backend.models import ModelSpec, known_spec, spec_named
from parallel_backend.parallel_model import ModelConditions, ParallelModel
from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling.denoiser import Pass, denoise
from parallel_backend.sampling.stepper import Stepper
from tests.support.cases.families import FAMILIES
from tests.support.cases.host import CASES
from tests.support.cases.host_oracle import attending
from tests.support.fakes.sparse_pattern import pattern, with_text
from tests.support.family_model import FamilyModel
from tests.support.ranks import host_ranks  # noqa: F401 (imports ComfyUI)

FRAMES, HEIGHT, WIDTH = 9, 10, 14  # 35 tokens a frame, which tiles do not divide
TOKENS = HEIGHT * WIDTH // 4
TIMESTEPS = (0.9, 0.6, 0.3)  # of the model's range; the first step is dense
# By row, ComfyUI's class, and whether text is before or after the picture.
HOST_ROWS = {"wan-t2v": "none", "hunyuanvideo": "after", "cogvideox": "before"}

Step = Callable[[float], torch.Tensor | None]


def masked(model: torch.nn.Module, spec: ModelSpec, sparse: str, run: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What the plain class gives if its blocks' self-attention has the pattern as a mask."""
    image = pattern(FRAMES, TOKENS, sparse)

    def attend(_owner: Any, streams: str, plain: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        others = k.shape[2] - len(image)
        assert q.shape == k.shape and not args and kwargs.get("attn_mask") is None, "It is not plain self-attention."
        names = streams.split("+")
        mask = with_text(image, *((others, 0) if names[-1] == spec.image else (0, others)))
        return plain(q, k, v, **{**kwargs, "attn_mask": mask})

    with attending(model, spec, attend):
        inner = F.scaled_dot_product_attention

        def by_name(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:  # as diffusers calls it
            return inner(query, key, value, *args, **kwargs)

        with patch.object(F, "scaled_dot_product_attention", by_name):
            return run()


def host_steps(
    row: str, mesh: Mesh | None, is_masked: bool = False, said: list[str] | None = None
) -> tuple[torch.nn.Module, ModelSpec, Step]:
    """A row's model, its spec, and what runs a step of it: plain without a mesh. is_masked: whether the model masks its
    attention. said: gets why a step was dense."""
    case = CASES[row]
    spec, model = spec_named(case.model_class), case.build()
    assert spec
    (latents, timestep, *rest), kwargs = case.inputs()
    latents = torch.randn(2, latents.shape[1], FRAMES, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(3))
    kwargs.setdefault("transformer_options", {})
    if not is_masked:
        kwargs.pop("attention_mask", None)
    module = ParallelModel(model, mesh, torch.float32) if mesh else None

    def step(part: float) -> torch.Tensor | None:
        args = (latents, timestep * part, *rest)
        if module is None:
            return model(*args, **kwargs)
        found = module.run_calls([Call(args, kwargs)])
        if said is not None:
            said.append(module.pipeline.why)
        return found and found[0]

    return model, spec, step


def library_steps(name: str, mesh: Mesh | None) -> tuple[torch.nn.Module, ModelSpec, Step]:
    """The same of diffusers' class."""
    family = FAMILIES[name]
    model = family.build()
    latents, timesteps, conditions = family.inputs(2, FRAMES, HEIGHT, WIDTH)
    module = FamilyModel(model, mesh) if mesh else None

    def step(part: float) -> torch.Tensor | None:
        if module is None:
            return family.reference(model, latents, timesteps * part, conditions)
        return module(latents, timesteps * part, conditions)

    return model, known_spec(family.model_class), step


@torch.inference_mode()
def plain_results(
    key: str, sparse: str, model: torch.nn.Module, spec: ModelSpec, step: Step
) -> dict[str, torch.Tensor]:
    """What the plain class gives in each step, with and without the pattern."""
    results = {}
    for place, part in enumerate(TIMESTEPS):
        results[f"{key} {place} dense"] = step(part)
        results[f"{key} {place} sparse"] = masked(model, spec, sparse, partial(step, part))
    return {name: found.float().contiguous() for name, found in results.items()}


def words_of_loop(row: str, mesh: Mesh) -> str:
    """Why attention was dense in a loop of a model with a mask of its own."""
    (latents, *_), kwargs = CASES[row].inputs()
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(2)
    module = ParallelModel(CASES[row].build(), mesh, torch.float32)
    passes = [Pass((0,), ModelConditions({**kwargs, "transformer_options": {}}))]
    denoise(module, latents, Stepper(scheduler), passes, 1.0, timestep_scale=1.0)
    return module.pipeline.why


def masked_results(words: str) -> dict[str, torch.Tensor]:
    """What a model with a mask of its own gives in each step, what the plain class does, and how many words say why
    attention was dense: by step, and of a loop."""
    said: list[str] = []
    mesh, row = build_mesh(ParallelPlan.from_json(json.loads(words)), torch.device("cpu")), "hunyuanvideo"
    (_, _, step), (_, _, plain) = host_steps(row, mesh, True, said), host_steps(row, None, True)
    found = {f"masked {place}": step(part) for place, part in enumerate(TIMESTEPS)}
    said.append(words_of_loop(row, mesh))
    mesh.close()
    with torch.inference_mode():
        found |= {f"masked {place} dense": plain(part) for place, part in enumerate(TIMESTEPS)}
    found["masked said"] = torch.tensor([len(each.split()) for each in said])
    return {name: each.contiguous() for name, each in found.items() if each is not None}


def on_ranks(out_path: str, *plans: str) -> None:
    results: dict[str, torch.Tensor] = {}
    rows = {**dict.fromkeys(HOST_ROWS, host_steps), "diffusers wan-t2v": library_steps}
    for row, steps_of in rows.items():
        name = row.removeprefix("diffusers ")
        for words in plans:
            plan = ParallelPlan.from_json(json.loads(words))
            mesh = build_mesh(plan, torch.device("cpu"))
            _, _, step = steps_of(name, mesh)
            for place, part in enumerate(TIMESTEPS):
                if (found := step(part)) is not None:
                    results[f"{row} {words} {place}"] = found.float().contiguous()
            mesh.close()
            if dist.get_rank():
                continue
            results |= plain_results(f"{row} {words}", plan.sparse, *steps_of(name, None))
    results |= masked_results(plans[0])
    if dist.get_rank() == 0:
        save_file(results, out_path)
