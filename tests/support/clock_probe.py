"""`clock_probe COMFYUI`: a forward of a few of Flux's blocks in pieces, by a clock.

Returns, by the number of pieces, what it takes on four cards (`tests/benchmarks/exchange/clock.py`).
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

from parallel_backend.costs.machine import Link
from tests.benchmarks.exchange.clock import LATENCY, META, PIECES, make_call, run
from tests.support.fakes.measure import build_comfyui
from tests.support.fakes.models import COMFYUI
from tests.support.host.mounted import import_comfyui
from tests.support.links.profiles import PROFILES

LINK = Link(PROFILES["PCIe 4.0 x16"].link, LATENCY)


def main(comfyui: str) -> dict[int, Any]:
    import_comfyui(comfyui)
    attention: Any = importlib.import_module("comfy.ldm.modules.attention")
    flux: Any = importlib.import_module("comfy.ldm.flux.math")
    flux.optimized_attention = attention.attention_pytorch  # as on GPUs
    few = replace(COMFYUI["flux-dev"], depths={"depth": 2, "depth_single_blocks": 4})
    model, call = build_comfyui(few, META), make_call(few)
    return {pieces: run(model, call, pieces, LINK)._asdict() for pieces in PIECES}
