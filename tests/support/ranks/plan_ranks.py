"""`plan_ranks`:
what the engine really gives each rank, by plan, for a model of toy blocks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from parallel_backend.groups.mesh import build_mesh
from parallel_backend.groups.mesh_layout import stages_of
from parallel_backend.hooks import Hooks
from parallel_backend.models.spec import BlockList
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.attention import ParallelAttention
from parallel_backend.seams.exchange.heads import head_parts
from parallel_backend.seams.exchange.ulysses import scatter_heads
from parallel_backend.seams.forward import ForwardSlot
from parallel_backend.seams.kernels.backends import NATIVE
from parallel_backend.seams.layout import TokenLayout
from parallel_backend.seams.pipeline.stages import keep_stage

HEADS, BLOCKS, TOKENS = 6, (4, 3), 24
BLOCK_BYTES = [300, 300, 300, 300, 100, 100, 100]  # so that stages differ in how many they have
PLANS = (
    {"dp": 2, "cfg": 2, "ulysses": 2},
    {"cfg": 2, "ring": 2, "ulysses": 2},
    {"pipefusion": 2, "ring": 2, "ulysses": 2, "patches": 3},
    {"pipefusion": 4, "ulysses": 2},
    {"ring": 2, "ulysses": 4},
    {"cfg": 2, "pipefusion": 2, "ring": 2, "patches": 2, "speeds": [3, 1, 3, 1, 1, 2, 1, 2]},
    {"pipefusion": 4, "ring": 2, "patches": 1, "speeds": [2, 1, 4, 2, 2, 1, 2, 1]},
    {},  # each rank by itself
    {"ring": 2, "ulysses": 2},  # the first ranks, while the others are idle
)
LISTS = tuple(BlockList(path, tokens={"x": "x"}, returns="x") for path in ("first", "second"))


class Block(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def toy() -> torch.nn.Module:
    model = torch.nn.Module()
    for blocks, count in zip(LISTS, BLOCKS, strict=True):
        model.add_module(blocks.path, torch.nn.ModuleList([Block() for _ in range(count)]))
    return model


def held(plan: ParallelPlan) -> dict:
    """This rank's places, blocks, tokens, and the heads that it gets of each Ulysses rank's tokens."""
    mesh = build_mesh(plan, torch.device("cpu"))
    if dist.get_rank() >= plan.world_size > 1:
        dist.barrier()
        return {"coordinates": {name: axis.index for name, axis in mesh.axes.items()}}
    own = stages_of(plan, BLOCK_BYTES)[mesh["pipefusion"].index]
    blocks = keep_stage(toy(), LISTS, own, Hooks())
    assert len(blocks) == len(own)
    layout = TokenLayout("x", mesh["sequence"], ForwardSlot(plan.patch_count))
    layout.forward.image_tokens = TOKENS
    tokens = layout.cut(torch.arange(TOKENS), ("x",), 0)
    heads_BHLD = torch.arange(HEADS).view(1, -1, 1, 1).expand(1, -1, len(tokens), 1)
    if plan.ulysses > 1:
        attention = ParallelAttention(mesh, layout, NATIVE)
        (part,) = head_parts(tuple(mesh["ulysses"].sizes(heads_BHLD.shape[1])), 1, 1)
        lengths = (len(tokens),) * plan.ulysses
        (heads_BHLD,) = scatter_heads(attention.ulysses, lengths, [heads_BHLD], (part.queries,))()
    result = {
        "coordinates": {name: axis.index for name, axis in mesh.axes.items()},
        "blocks": list(own),
        "tokens": tokens.tolist(),
        "heads": heads_BHLD.unique().tolist(),
    }
    dist.barrier()
    mesh.close()
    return result


def on_ranks() -> list[dict]:
    return [held(ParallelPlan.from_json(plan)) for plan in PLANS]
