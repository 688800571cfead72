"""`python -m tests.support.files.counted_steps COMFYUI`:
counts a step of a tiny HiDream-O1 by the nodes' code, without and with a reference image, as JSON. Beside what is
counted, each has the tokens that a step computes anew ("fresh"), those whose keys it finds ("kept"), and of how many
prompts the model has such keys in ComfyUI's process ("left").
"""

from __future__ import annotations

import importlib
import json
import sys

import torch

from tests.support.cases.host.joint import CASES
from tests.support.host.mounted import mount

SIDES = (96, 160)
TMS = 151673  # the token of the timestep, which ends a text


def main(comfyui: str) -> None:
    mount(comfyui)
    costs = importlib.import_module("pack.nodes.costs.forward")
    conditioning = importlib.import_module("comfy.ldm.hidream_o1.conditioning")
    model, noise = CASES["hidream-o1"].build().to("meta"), torch.zeros(1, 3, *SIDES)
    ids, found = torch.tensor([[*range(11, 20), TMS]]), []
    for images in (None, [torch.rand(1, 64, 96, 3)]):
        given = conditioning.build_extra_conds(ids, noise, images)
        counted = costs.count_call_forward(model, (noise, torch.tensor([500.0])), given, 1, 0.0)
        found.append(
            {
                **{name: getattr(counted.blocks, name) for name in ("linear", "attention")},
                **{name: getattr(counted, name) for name in ("activation", "kv")},
                "fresh": given["position_ids"].shape[-1] - given["ar_len"],
                "kept": given["ar_len"],
                "left": len(model._kv_cache_entries),
            }
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
