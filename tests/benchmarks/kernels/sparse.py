"""What sparse attention leaves out, and how far it moves the latents of a whole sampling: a table of docs/exactness.md.

python -m tests.benchmarks.kernels.sparse [--write]

A tiny Wan of diffusers' class with random weights samples on one rank, by Euler's method, under each pattern and with
several first dense steps. `attention` is the time of one self-attention on this CPU, of 2 heads of 64, as a part of the
dense one's; the median of five, taken in turns.
"""

from __future__ import annotations

import time
from statistics import median

import diffusers
import torch
import torch.distributed as dist
import torch.nn.functional as F

from parallel_backend.groups.mesh import Axis, build_mesh
from parallel_backend.plan import OFF, SPARSE, ParallelPlan
from parallel_backend.seams.forward import Forward, ForwardSlot
from parallel_backend.seams.kernels.sparse import SparsePattern, SparsePatterns
from parallel_backend.seams.layout import TokenLayout
from parallel_backend.video import WIDTHS, Video, tile_pairs
from tests.support.cases.families import wan
from tests.support.cases.references import relative_error
from tests.support.family_model import Denoiser, FamilyModel
from tests.support.pages import show_table

STEPS, SYNC_STEPS = 20, (1, 5, 10)
FRAMES, HEIGHT, WIDTH = 21, 16, 24  # latent; 96 tokens a frame
FAMILY = wan(rope_max_seq_len=32)
LARGE, TIMED = Video(21, 1560), Video(21, 384)
CPU = torch.device("cpu")
ROUNDS = 5


def sample(plan: ParallelPlan) -> torch.Tensor:
    """The latents of a whole sampling."""
    latents, _, conditions = FAMILY.inputs(1, FRAMES, HEIGHT, WIDTH)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(STEPS)
    mesh = build_mesh(plan, torch.device("cpu"))
    found = Denoiser(FamilyModel(FAMILY.build(), mesh)).sample(latents, scheduler, conditions)
    mesh.close()
    assert found is not None
    return found


def pattern(sparse: str) -> SparsePattern:
    layout = TokenLayout("img", Axis(None, 1, 0), ForwardSlot())
    with layout.slot.enter(Forward([0], video=TIMED)):
        layout.learn(("img",), TIMED.frames * TIMED.tokens)
        found = SparsePatterns(sparse, layout).find(("img",), ("img",), range(1), torch.device("cpu"))
    assert found
    return found


@torch.inference_mode()
def time_attention() -> dict[str, float]:
    """By pattern, the time as a part of the dense attention's."""
    given = torch.randn(3, 1, 2, TIMED.frames * TIMED.tokens, 64)
    patterns = {sparse: pattern(sparse) for sparse in SPARSE if sparse != OFF}
    seconds: dict[str, list[float]] = {sparse: [] for sparse in SPARSE}
    for _ in range(ROUNDS + 1):
        for sparse, taken in seconds.items():
            start = time.perf_counter()
            if sparse == OFF:
                F.scaled_dot_product_attention(*given)
            else:
                patterns[sparse].attend(*given, None)
            taken.append(time.perf_counter() - start)
    return {sparse: median(taken[1:]) / median(seconds[OFF][1:]) for sparse, taken in seconds.items()}


def table() -> str:
    exact, parts = sample(ParallelPlan()), time_attention()
    heads = [f"error, {steps} of {STEPS} dense" for steps in SYNC_STEPS]
    sizes = f"pairs, {LARGE.tokens:,} | pairs, {TIMED.tokens}"
    lines = [f"| `sparse` | {sizes} | attention | {' | '.join(heads)} |", "|---|---|---|---|" + "---|" * len(heads)]
    for sparse in SPARSE[1:]:
        pairs = [float(tile_pairs(each, WIDTHS[sparse], CPU).float().mean()) for each in (LARGE, TIMED)]
        errors = [relative_error(sample(ParallelPlan(sparse=sparse, sync_steps=steps)), exact) for steps in SYNC_STEPS]
        parts_of_pairs, shown = [f"{part:.0%}" for part in pairs], [f"{error:.2%}" for error in errors]
        cells = [f"`{sparse}`", *parts_of_pairs, f"{parts[sparse]:.0%}", *shown]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rows = table()
    dist.destroy_process_group()
    show_table("sparse", rows)


if __name__ == "__main__":
    main()
