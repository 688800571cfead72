"""`cuda.step_ranks FOLDER`:
counts on labelled tensors what a step of stock asks of its GPU, and what ComfyUI's process and rank 0 ask of theirs for
a forward's whole way. One rank.

Saves by size, and by process (stock, comfyui, rank): see `Tally`, and the messages that it sends. Beside these: "waits
at", with their places; "error", the greatest difference from stock's result.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

# Inference tensors cannot be labelled ones. What is imported from here on is decorated with this.
torch.inference_mode = lambda mode=True: torch.no_grad(mode) if callable(mode) else torch.no_grad()

from parallel_backend.groups.calls import Call  # noqa: E402
from parallel_backend.groups.mesh import build_mesh  # noqa: E402
from parallel_backend.parallel_model import ParallelModel, moved  # noqa: E402
from parallel_backend.plan import ParallelPlan  # noqa: E402
from tests.support.cases.host import CASES  # noqa: E402
from tests.support.labelled.tally import Tally  # noqa: E402
from tests.support.labelled.tensors import GPU, off_gpu, on_gpu  # noqa: E402
from tests.support.labelled.watch import Watch  # noqa: E402
from tests.support.labelled.whole_way import WholeWay  # noqa: E402
from tests.support.ranks.host_ranks import calls_of  # noqa: E402
from worker.wire import job_channel  # noqa: E402

WARM = 2  # steps before, which make room and send conditions


class Size(NamedTuple):
    """A tiny model of a class, with patches so large that big latents are few tokens. row: of the equality table.
    config: in place of a part of the row's. latents: their shape."""

    row: str
    config: dict[str, Any]
    latents: tuple[int, ...]


UNET = {
    "num_res_blocks": [1, 1, 1], "channel_mult": [1, 1, 1], "transformer_depth": [0, 0, 1],
    "transformer_depth_output": [0, 0, 0, 0, 1, 1], "transformer_depth_middle": 1,
}  # fmt: skip
SIZES = {
    "Flux, 1024×1024": Size("flux-dev", {"patch_size": 8}, (1, 16, 128, 128)),
    "SDXL, 1024×1024": Size("sdxl-odd", UNET, (1, 4, 128, 128)),
    "Wan, 480×832, 81 frames": Size("wan-t2v", {"patch_size": (1, 8, 8)}, (1, 16, 21, 60, 104)),
}


def count(way: WholeWay, size: Size, watch: Watch) -> dict[str, Any]:
    """Counts one step, after some others."""
    with off_gpu():
        case = replace(CASES[size.row], config={**CASES[size.row].config, **size.config})
        own, model = case.build(), case.build()
        ((_, kwargs),) = calls_of(case, 1)
        latents = torch.randn(size.latents, generator=torch.Generator().manual_seed(1))
        conditions = {name: value[:1] for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
    stock, (latents, conditions, sigmas) = own.to(GPU), moved((latents, conditions, torch.linspace(1, 0, 21)), GPU)
    mesh = build_mesh(ParallelPlan(), GPU, timeline=way.timeline)
    module = ParallelModel(model.to(GPU), mesh, torch.float32)
    tally, sent, answer = Tally(), job_channel.send_pieces, way.answer_one

    def given() -> Call:
        """A step's arguments, new as ComfyUI makes them."""
        own = {name: value.clone() for name, value in conditions.items()}
        options = {"sample_sigmas": sigmas, "sigmas": sigmas[:1].clone()}
        return Call((latents.clone(), sigmas[:1].clone()), {**own, "transformer_options": options})

    def note(connection: Any, frame: Any, *more: Any) -> None:
        tally.count("messages")
        sent(connection, frame, *more)

    def answer_one() -> None:
        with tally.working("rank"):
            answer()

    watch.observer, watch.knows_pinned = tally, True
    with patch.object(job_channel, "send_pieces", note), patch.object(way, "answer_one", answer_one):
        for _ in range(WARM):
            way.call(watch, module, [given()])
        tally.forget()
        for_stock, for_ranks = given(), given()
        with tally.working("stock"):
            right = stock(*for_stock.args, **for_stock.kwargs)
        with tally.working("comfyui"):
            ((found,),) = way.call(watch, module, [for_ranks]) or ()
    watch.observer = None
    return {"error": float((found - right).abs().max()), **tally.of, "waits at": tally.waits}


def on_ranks(folder: str) -> dict[str, dict]:
    with on_gpu(counts_memory=False) as watch:
        way = WholeWay(Path(folder))
        return {name: count(way, size, watch) for name, size in SIZES.items()}
