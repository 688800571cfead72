"""`python -m tests.support.host_time COMFYUI [DOUBLE SINGLE]`: what a rank's host does for a forward, beside the model.

ComfyUI's Flux of so many blocks, as narrow as it can be, so that what is left of a forward is the time in which a host
asks a device for its work. Its exchanges go in as many parts as a real picture's. It runs alone, and as rank 0 of two
whose messages torch's fake process group leaves out. Prints JSON: by plan, the milliseconds of a forward, those of them
within shared attention (the exchange), the Python functions that it calls and its operations, all beyond the model's
own.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from parallel_backend.groups.calls import Call
from parallel_backend.groups.timeline import Timeline
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.attention import ParallelAttention
from parallel_backend.seams.forward import NodeCode
from tests.support.cases.host.base import fill_weights, of_comfyui
from tests.support.cases.host.flux import FLUX
from tests.support.fakes.rank import one_of
from tests.support.host.mounted import import_comfyui

CPU = torch.device("cpu")
PLANS: dict[str, dict[str, int]] = {
    "one rank": {},
    "ulysses=2": {"ulysses": 2},
    "ring=2": {"ring": 2},
}
FLUX_BLOCKS = (19, 38)
HEADS, WIDTH, TEXT = 8, 128, 16
REPEATS = 9
BY_NODES = "ulysses=2, beside nodes' functions"  # which the mode of attention watches


def build(double: int, single: int) -> torch.nn.Module:
    narrow = {"vec_in_dim": 16, "context_in_dim": 32, "hidden_size": WIDTH, "num_heads": HEADS}
    depths = {"depth": double, "depth_single_blocks": single}
    return fill_weights(of_comfyui("comfy.ldm.flux.model.Flux", **{**FLUX, **narrow, **depths}))


def milliseconds(run: Callable[[], object]) -> float:
    """The least of some, after two that learn."""
    found = []
    for _ in range(REPEATS + 2):
        began = time.thread_time()
        run()
        found.append(time.thread_time() - began)
    return 1e3 * min(found[2:])


def calls(run: Callable[[], object]) -> int:
    """How many Python functions a run calls."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


class Operations(TorchDispatchMode):
    """Counts the operations that run while entered, but for exchanges, and for memory that nothing is computed in."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        found = func(*args, **(kwargs or {}))
        is_view = func.is_view
        if is_view and isinstance(found, torch.Tensor):  # or a copy: of `contiguous`, say
            is_view = found.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr()
        if not (is_view or func.namespace == "c10d" or "empty" in func.__name__):
            self.by_name[func.__name__] += 1
        return found


def exchange_of(run: Callable[[], object]) -> float:
    """The milliseconds of shared attention in a run."""
    attend, total = ParallelAttention.__call__, 0.0

    def timed(*args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal total
        began = time.thread_time()
        found = attend(*args, **kwargs)
        total += 1e3 * (time.thread_time() - began)
        return found

    with patch.object(ParallelAttention, "__call__", timed):
        run()
    return total


def measure(model: torch.nn.Module, degrees: dict[str, int], is_plain: bool, call: Call) -> dict[str, float]:
    """Of a forward under a plan, all that it takes."""
    with one_of(ParallelPlan.from_json(degrees), CPU, timeline=Timeline(CPU)) as mesh:
        parallel = ParallelModel(model, mesh, torch.float32)
        parallel.slot.code = NodeCode.NONE if is_plain else NodeCode.UNKNOWN

        if parallel.attention:
            parallel.attention.rows = 1  # as many parts as can be

        def run() -> None:
            parallel.run_calls([call])

        found: dict[str, float] = {"ms": milliseconds(run), "calls": calls(run), "exchange": exchange_of(run)}
        with Operations() as operations:
            run()
        found["operations"] = operations.by_name.total()
        parallel.remove()
        return found


def main(comfyui: str, *blocks: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    import_comfyui(comfyui)
    attention: Any = importlib.import_module("comfy.ldm.modules.attention")
    flux: Any = importlib.import_module("comfy.ldm.flux.math")
    flux.optimized_attention = attention.attention_pytorch  # as on GPUs
    model = build(*(map(int, blocks) if blocks else FLUX_BLOCKS))
    latents, timestep = torch.randn(1, 16, 8, 8), torch.rand(1)
    given: dict[str, Any] = {"context": torch.randn(1, TEXT, 32), "y": torch.randn(1, 16), "guidance": torch.rand(1)}
    given["transformer_options"] = {}

    def alone() -> None:
        with torch.inference_mode():
            model(latents, timestep, **given)

    with Operations() as operations:
        alone()
    own = {"ms": milliseconds(alone), "calls": calls(alone), "operations": operations.by_name.total()}
    found = {"the model's own": own}
    cases = [(name, plan, True) for name, plan in PLANS.items()]
    for name, degrees, is_plain in [*cases, (BY_NODES, PLANS["ulysses=2"], False)]:
        whole = measure(model, degrees, is_plain, Call((latents, timestep), given))
        found[name] = {what: value - own.get(what, 0) for what, value in whole.items()}
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
