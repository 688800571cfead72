"""`kernel_pack.choices COMFYUI FOLDER`:
tells which kernel each override beside this file chooses, and why a rank with a pretended device cannot use a
kernel, or what it computes with it. FOLDER becomes a folder of custom nodes.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from parallel_backend.errors import RequestError
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.kernels import backends
from tests.support.host.mounted import mount
from worker.rank.model.attention_kernels import KERNELS, choose_kernel

PLACES = {"overrides": "any_pack", "model_optimization_nodes": "ComfyUI-KJNodes/nodes"}
BF16 = torch.bfloat16


def load(name: str, folder: Path) -> Any:
    """A file of the pack, imported from its place in the folder."""
    path = folder / PLACES[name] / f"{name}.py"
    path.parent.mkdir(parents=True)
    shutil.copyfile(Path(__file__).parent / path.name, path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def choices(comfyui: str, folder: Path) -> dict[str, dict[str, str | None]]:
    """By override, the kernel that it chooses."""
    find = importlib.import_module("pack.nodes.inside.attention_kernels").find_kernel
    files = importlib.import_module("pack.worker.inside.code_files").CodeFiles(comfyui, [str(folder)])
    found: dict[str, dict[str, str | None]] = {"chosen": {}, "others": {}}
    for module in (load(name, folder) for name in PLACES):
        found["chosen"] |= {name: find(override, files) for name, override in module.CHOOSE.items()}
        found["others"] |= {name: find(override, files) for name, override in module.OTHERS.items()}
    return found


def answer(name: str, capability: tuple[int, int] | None, dtype: torch.dtype = BF16, **more: Any) -> str:
    """Why a rank with such a device cannot use the kernel; empty if it can."""
    head_dim, plan = more.pop("head_dim", 64), ParallelPlan(**more)
    with patch.object(backends, "nvidia_capability", lambda _device: capability):
        try:
            choose_kernel(name, plan, torch.device("cpu"), dtype, head_dim)
        except RequestError as error:
            return error.explanation.cause
    return ""


def answers() -> dict[str, str]:
    registered = importlib.import_module("comfy.ldm.modules.attention").REGISTERED_ATTENTION_FUNCTIONS
    found = {"no package": answer("sage", (9, 0)), "no function": answer("fast", (9, 0))}
    with patch.dict(registered, sage=sage, flash=sage, sage3=sage):
        found |= {
            "a CPU": answer("sage", None),
            "fp32": answer("sage", (9, 0), torch.float32),
            "an old card": answer("sage3", (9, 0)),
            "long heads": answer("sage", (9, 0), head_dim=256),
            "ring": answer("sage3", (10, 0), ring=2),
            "ring, by the engine": answer("sage", (9, 0), ring=2),
            "a plan's own": answer("sage", (9, 0), ulysses=2, attention="native"),
        }
    return found | {"split, ring": answer("split", None, ring=2)}


def sage(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, **more: Any) -> torch.Tensor:
    """In place of ComfyUI's function: three times the attention, with what it was called with."""
    assert (heads, more.pop("skip_reshape"), more.pop("skip_output_reshape")) == (q.shape[1], True, True)
    return 3 * torch.nn.functional.scaled_dot_product_attention(q, k, v, **more)


def results() -> dict[str, float]:
    """How far what a kernel computes is from three times torch's attention; with a mask, from torch's."""
    registered = importlib.import_module("comfy.ldm.modules.attention").REGISTERED_ATTENTION_FUNCTIONS
    q, k, v = torch.randn(3, 2, 4, 7, 8)
    mask = torch.randn(1, 1, 7, 7)
    attend = torch.nn.functional.scaled_dot_product_attention
    with (
        patch.dict(registered, sage=sage),
        patch.object(backends, "nvidia_capability", lambda _device: (9, 0)),
    ):
        kernel = choose_kernel("sage", ParallelPlan(), torch.device("cpu"), BF16, 8)
        found = {"plain": kernel.attend(q, k, v, None), "scaled": kernel.attend(q, k, v, 0.3)}
        masked = kernel.attend(q, k, v, None, mask)
    wanted = {"plain": 3 * attend(q, k, v), "scaled": 3 * attend(q, k, v, scale=0.3)}
    errors = {name: float((found[name] - wanted[name]).abs().max()) for name in wanted}
    return {**errors, "masked": float((masked - attend(q, k, v, attn_mask=mask)).abs().max())}


def main(comfyui: str, folder: str) -> dict[str, Any]:
    mount(comfyui)
    takes = {name: kernel.takes({"low_precision_attention": False}) for name, kernel in KERNELS.items()}
    return {**choices(comfyui, Path(folder)), "answers": answers(), "results": results(), "takes": takes}
