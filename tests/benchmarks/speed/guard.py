"""What it costs to compare a model's module with what it was, which is done at every call.

COMFYUI_PATH=… python -m tests.benchmarks.speed.guard

The model is Flux.1 of its published size, with 57 blocks, without weights.
"""

from __future__ import annotations

import importlib
import os
import statistics
import time

from tests.support.host.mounted import mount

FLUX = {
    **{"in_channels": 16, "out_channels": 16, "vec_in_dim": 768, "context_in_dim": 4096, "hidden_size": 3072},
    **{"mlp_ratio": 4.0, "num_heads": 24, "depth": 19, "depth_single_blocks": 38, "axes_dim": [16, 56, 56]},
    **{"theta": 10000, "patch_size": 2, "qkv_bias": True, "guidance_embed": True, "txt_ids_dims": []},
}
CALLS = 200


def main() -> None:
    mount(os.environ["COMFYUI_PATH"])
    guard = importlib.import_module("pack.nodes.inside.module_guard")
    flux = importlib.import_module("comfy.ldm.flux.model").Flux
    operations = importlib.import_module("comfy.ops").manual_cast
    module = flux(**FLUX, dtype=None, device="meta", operations=operations, image_model="flux")
    watch, seconds = guard.ModuleGuard(module, ["forward"]), []
    for _ in range(CALLS):
        began = time.perf_counter()
        assert not watch.changes()
        seconds.append(time.perf_counter() - began)
    print(f"{len(list(module.modules()))} modules: {statistics.median(seconds) * 1e3:.2f} ms a comparison")


if __name__ == "__main__":
    main()
