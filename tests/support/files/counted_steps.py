"""`python -m tests.support.files.counted_steps COMFYUI`:
counts steps by the nodes' code, as JSON. HiDream-O1, tiny, is counted without and with a reference image. Beside what
is counted, each has the tokens that a step computes anew ("fresh"), those whose keys it finds ("kept"), and of how many
prompts the model has such keys in ComfyUI's process ("left"). MiniMax H3, tiny, is counted with what ComfyUI gives it
of a text.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import torch

from tests.support.cases.host.audio import CASES as AUDIO
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

    def counted(model: torch.nn.Module, args: tuple, given: dict[str, Any]) -> dict[str, float]:
        cost = costs.count_call_forward(model, args, given, 1, 0.0)
        return {
            **{name: getattr(cost.blocks, name) for name in ("linear", "attention")},
            **{name: getattr(cost, name) for name in ("activation", "kv")},
        }

    for images in (None, [torch.rand(1, 64, 96, 3)]):
        given = conditioning.build_extra_conds(ids, noise, images)
        found.append(
            {
                **counted(model, (noise, torch.tensor([500.0])), given),
                "fresh": given["position_ids"].shape[-1] - given["ar_len"],
                "kept": given["ar_len"],
                "left": len(model._kv_cache_entries),
            }
        )
    (latents, timestep), given = AUDIO["minimax-h3"].inputs()
    tokens = given["context"].shape[1]
    sizes = (tokens, 3, 10, 14, 9)  # of the text, the video and the sound
    layout = importlib.import_module("comfy.ldm.minimax.model").PackedLayout(*sizes)
    payload = {"layout": layout, "text_token_tags": torch.ones(1, tokens, dtype=torch.int64)}
    model, given = AUDIO["minimax-h3"].build().to("meta"), given | {"minimax_payload": payload}
    found.append({**counted(model, (latents, timestep), given), "tokens": layout.seq_len})
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
