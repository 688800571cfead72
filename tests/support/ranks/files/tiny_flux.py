"""A call of a tiny Flux of ComfyUI's, and adapters of its weights."""

from __future__ import annotations

from typing import Any

import torch

from parallel_backend.groups.calls import Call
from worker.comfyui.patches import pack_patches
from worker.rank.model.host_model import HostModel
from worker.wire.tensors import Tensors

RANK = 2
LATENTS, TEXT = (16, 8, 8), (7, 3584)
TIMES = (0.5, 0.25)
NO_MERGE: Any = None  # there is none to find a file of


def calls(rows: int = 1, latents: tuple[int, ...] = LATENTS) -> list[Call]:
    generator = torch.Generator().manual_seed(0)
    given, text = (torch.randn(rows, *shape, generator=generator) for shape in (latents, TEXT))
    return [Call((given, torch.tensor(TIMES[:rows]), text), {"y": None, "guidance": None, "transformer_options": {}})]


def call(model: HostModel, rows: int = 1) -> Any:
    """What rank 0 gets."""
    outputs = model.call(calls(rows))
    return outputs[0] if outputs else None


def lora(
    model: HostModel, scale: float, strength: float = 1.0, others: tuple[str, ...] = ()
) -> tuple[dict[str, list], Tensors]:
    """For each matrix of the blocks, and differences of other weights."""
    from comfy.weight_adapter import LoRAAdapter

    generator, patches = torch.Generator().manual_seed(1), {}
    for name, weight in model.parallel.model.named_parameters():
        if weight.ndim == 2 and "_blocks." in name and name.endswith(".weight"):
            rows, columns = weight.shape
            up, down = (torch.randn(*shape, generator=generator) for shape in ((rows, RANK), (RANK, columns)))
            value = LoRAAdapter(set(), (scale * up, down, None, None, None, None))
            patches[f"diffusion_model.{name}"] = [(strength, value, 1.0, None, None)]
    return differences(model, others, strength, generator, patches)


def differences(
    model: HostModel,
    names: tuple[str, ...],
    strength: float = 1.0,
    generator: torch.Generator | None = None,
    patches: dict[str, list[tuple]] | None = None,
) -> tuple[dict[str, list], Tensors]:
    """Packed, of weights by name, and their tensors. patches: of others, beside them."""
    generator, found = generator or torch.Generator().manual_seed(1), dict(patches or {})
    for name in names:
        change = 0.1 * torch.randn(model.parallel.model.get_parameter(name).shape, generator=generator)
        found[f"diffusion_model.{name}"] = [(strength, (change,), 1.0, None, None)]
    fields, tensors = pack_patches(found, NO_MERGE)
    return fields["patches"], tensors
