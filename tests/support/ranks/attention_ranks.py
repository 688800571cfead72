"""`attention_ranks`:
masked attention over shared tokens, every plan of this world size."""

from __future__ import annotations

import torch
import torch.distributed as dist

from parallel_backend.groups.mesh import Mesh, build_mesh
from parallel_backend.plan import INT4, ParallelPlan
from parallel_backend.seams.attention import ParallelAttention
from parallel_backend.seams.exchange.differences import Differences
from parallel_backend.seams.forward import Forward, ForwardSlot, StaleCache
from parallel_backend.seams.kernels.backends import backend_named
from parallel_backend.seams.layout import TokenLayout
from tests.support.cases.attention_cases import CASES, LENGTHS, MASKS, PATCHES, STEPS, STREAMS, Case, mask, qkv
from tests.support.fakes.sage import install_fake
from tests.support.fakes.tally import Tally


def take(layout: TokenLayout, whole_BHSD: torch.Tensor) -> torch.Tensor:
    """This rank's tokens of the streams joined."""
    return layout.drop_padding(layout.cut(whole_BHSD, STREAMS, 2), STREAMS, 2)


def results_of(name: str, case: Case, patches: int, mesh: Mesh) -> dict[str, torch.Tensor]:
    slot = ForwardSlot(patches)
    layout = TokenLayout("hidden_states", mesh["sequence"], slot)
    attention = ParallelAttention(mesh, layout, backend_named(case.kernel))
    attention.rows, attention.parts = 1, case.parts
    rank = range(mesh["sequence"].index, mesh["sequence"].index + 1)
    results = {}
    for mask_name in MASKS:
        # A whole pass fills the cache; the patches that follow have the same keys, so nothing is stale.
        cache = StaleCache() if patches > 1 else None
        runs = [list(range(patches)), *([index] for index in range(patches) if patches > 1)]
        for run in runs:
            key = f"{name} {mask_name} {patches} {run}"
            with slot.enter(Forward(run, cache)):
                layout.forward.image_tokens = LENGTHS[layout.image]
                for stream, length in LENGTHS.items():
                    layout.learn((stream,), length)
                parts = (take(layout, tensor) for tensor in qkv(case))
                given = {"attn_mask": mask(mask_name, case), "enable_gqa": True}
                results[key] = attention("module", STREAMS, *parts, **given)
                results[f"{key} positions"] = layout.token_order(STREAMS, rank, False, mesh.device)
    return results


def results_by_step(name: str, case: Case, mesh: Mesh) -> dict[str, torch.Tensor]:
    """The results of forwards that keep what arrived in those before, the bytes sent, and the bytes kept at last."""
    slot = ForwardSlot(1)
    layout = TokenLayout("hidden_states", mesh["sequence"], slot)
    attention = ParallelAttention(mesh, layout, backend_named(case.kernel))
    attention.rows, attention.parts = 1, case.parts
    kept, results = Differences(), {}
    for step in range(STEPS):
        with slot.enter(Forward([0], differences=kept)):
            for stream, length in LENGTHS.items():
                layout.learn((stream,), length)
            parts = (take(layout, tensor) for tensor in qkv(case, step))
            with Tally(of_cpu=True) as tally:
                results[f"{name} step {step}"] = attention("module", STREAMS, *parts, enable_gqa=True)
        results[f"{name} step {step} sent"] = torch.tensor(sum(tally.sent.values()))
    results[f"{name} kept"] = torch.tensor(sum(each.nbytes for each in kept.arrived.values()))
    return results


def on_ranks() -> tuple[None, dict[str, torch.Tensor]]:
    """The results of each rank's own tokens, with their positions, by plan and mask."""
    install_fake()
    results = {}
    for name, case in CASES[dist.get_world_size()].items():
        mesh = build_mesh(ParallelPlan.from_json(case.plan), torch.device("cpu"))
        for patches in (1, PATCHES):
            results |= results_of(name, case, patches, mesh)
        if case.plan.get("exchange_dtype") == INT4:
            results |= results_by_step(name, case, mesh)
        mesh.close()
    return None, results
