"""`torchrun -m tests.support.ranks.cuda.labelled_ranks CASES OUT`:
runs models on ranks whose tensors say that they are on a GPU, and saves by case the relative error against the CPU, how
often the host would have waited in a forward after the first, inside of blocks and elsewhere, and which kernels ran.

CASES: a file of JSON, of [shelf, name, plan, dtype]; shelf: "diffusers" for FAMILIES, "comfyui" for its classes, "vae".
Under plans with stages, diffusers' are sampled and compared with the same on the CPU; counted is what more steps add.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import diffusers
import torch
import torch.distributed as dist

# Inference tensors cannot be labelled ones. What is imported from here on is decorated with this.
torch.inference_mode = torch.no_grad

from parallel_backend.groups.mesh import build_mesh, world_axis  # noqa: E402
from parallel_backend.models.comfyui import named_spec  # noqa: E402
from parallel_backend.models.comfyui.checks import modules_at  # noqa: E402
from parallel_backend.module import ParallelModule  # noqa: E402
from parallel_backend.plan import ParallelPlan  # noqa: E402
from parallel_backend.sampling.denoiser import Denoiser  # noqa: E402
from parallel_backend.sampling.stepper import Stepper  # noqa: E402
from parallel_backend.transformer import ParallelTransformer  # noqa: E402
from parallel_backend.vae import ParallelVAE  # noqa: E402
from parallel_backend.weights.loading import ModelSource  # noqa: E402
from tests.support.cases.families import FAMILIES, SQUARE, UNEVEN  # noqa: E402
from tests.support.cases.host import CASES  # noqa: E402
from tests.support.cases.references import relative_error  # noqa: E402
from tests.support.cases.vae_cases import CASES as VAES  # noqa: E402
from tests.support.labelled.counting import counted  # noqa: E402
from tests.support.labelled.tensors import GPU, Watch, on_gpu  # noqa: E402
from tests.support.ranks.host_ranks import calls_of, flat  # noqa: E402
from tests.support.ranks.leaving import leave  # noqa: E402

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CPU = torch.device("cpu")
STEPS = 4
# What rank 0 has after the second time, and what is right.
Results = tuple[torch.Tensor | None, torch.Tensor | None]


def of_diffusers(name: str, plan: ParallelPlan, dtype: str, folder: Path, watch: Watch) -> Results:
    family, rank = FAMILIES[name], dist.get_rank()
    file = folder / name / "diffusion_pytorch_model.safetensors"
    if rank == 0 and not file.exists():
        family.save(folder / name)
    dist.barrier()
    source = ModelSource(family.model_class, family.config, (str(file),), dtype)
    if plan.pipefusion * plan.patch_count > 1:
        return sampled(family, source, plan, watch)
    inputs = family.inputs(*family.shapes[UNEVEN])
    model = ParallelTransformer.load(source, build_mesh(plan, GPU))
    result = counted(watch, model.stage.blocks, lambda: model(*inputs))
    with torch.no_grad():
        return result, family.reference(family.build(), *inputs)


def sampled(family: Any, source: ModelSource, plan: ParallelPlan, watch: Watch) -> Results:
    """By the loop, on rank 0, where the latents come back to. What is counted is what more steps add."""
    latents, _, conditions = family.inputs(1, *family.shapes[SQUARE][1:])

    def run(model: ParallelTransformer, steps: int = STEPS) -> torch.Tensor | None:
        stepper = Stepper.prepare(diffusers.FlowMatchEulerDiscreteScheduler(), steps, device=model.mesh.device)
        return Denoiser(model).sample(latents, stepper, conditions, to_first=True)

    on_gpu, on_cpu = (
        ParallelTransformer.load(source, build_mesh(plan, device, link_groups=True)) for device in (GPU, CPU)
    )
    result = counted(watch, on_gpu.stage.blocks, lambda: run(on_gpu))
    before = watch.outside
    watch.outside = Counter()
    watch.begin()
    run(on_gpu, 2 * STEPS)
    watch.end()
    watch.outside -= before
    return result, run(on_cpu)


def of_comfyui(name: str, plan: ParallelPlan, dtype: str, _folder: Path, watch: Watch) -> Results:
    case = CASES[name]
    spec, model = named_spec(case.model_class), case.build()
    blocks = [block for row in spec.blocks for block in modules_at(model, row.path)] if spec else []
    # Some models take their residuals out of the lists that they are given.
    plain, *given = (calls_of(case, 1) for _ in range(3))
    with torch.no_grad():
        right = flat(model(*plain[0].args, **plain[0].kwargs))
    module = ParallelModule(model.to(GPU), build_mesh(plan, GPU), DTYPES[dtype])
    result = counted(watch, blocks, lambda: module(given.pop()))
    return (result and flat(result[0])), right


def of_vae(name: str, _plan: ParallelPlan, _dtype: str, _folder: Path, watch: Watch) -> Results:
    """A decode, by bands of rows where there are several ranks."""
    case = VAES[name]
    vae = ParallelVAE(case.build().to(GPU), world_axis(GPU))
    result = counted(watch, [vae.vae.decoder], lambda: vae.decode(case.latents()))
    with torch.no_grad():
        return result, case.build().decode(case.latents()).sample


SHELVES = {"diffusers": of_diffusers, "comfyui": of_comfyui, "vae": of_vae}


def main(cases: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for shelf, name, degrees, dtype in json.loads(Path(cases).read_text()):
        told: dict[str, Any] = {}
        with on_gpu() as watch:
            try:
                result, right = SHELVES[shelf](name, ParallelPlan(**degrees), dtype, Path(out).parent, watch)
                if result is not None and right is not None:
                    told["error"] = relative_error(result.cpu().float(), right)
                told |= {"inside": watch.inside, "outside": watch.outside, "kernels": sorted(watch.kernels)}
            except Exception:  # whatever it is fails that case's test; the others still run
                told["failed"] = "\n".join(traceback.format_exc().splitlines()[-12:])
        found[json.dumps([shelf, name, degrees, dtype])] = told
    Path(f"{out}.{dist.get_rank()}").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
