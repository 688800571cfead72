"""The node `DiT Class Label` turns a class name or number into CONDITIONING."""

from __future__ import annotations

import difflib

import torch
from comfy_api.latest import io

from ..worker.comfyui.dit.model import ClassConditionalDiT
from .errors import Refused


class DiTClassLabel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ParallelDiT_ClassLabel",
            display_name="DiT Class Label",
            category="ParallelDiT",
            description="Names what a class-conditional DiT draws. Leave the label empty for a sampler's negative.",
            search_aliases=["ParallelDiT", "imagenet class", "label"],
            inputs=[
                io.Model.Input("model", tooltip="The DiT that has these classes."),
                io.String.Input(
                    "label",
                    default="",
                    tooltip="A class name (any of its comma-separated names), or a number from 0. Empty: no class.",
                ),
            ],
            outputs=[io.Conditioning.Output(tooltip="For the positive or the negative of a sampler.")],
        )

    @classmethod
    def execute(cls, model, label: str) -> io.NodeOutput:  # noqa: ANN001 (ComfyUI's ModelPatcher)
        dit = model.model
        if not isinstance(dit, ClassConditionalDiT):
            raise Refused(
                f"DiT Class Label needs a class-conditional DiT, and this MODEL is a {type(dit).__name__}.",
                "Use the text-encode nodes of that model.",
            )
        one_hot = torch.zeros(1, 1, dit.classes + 1)
        one_hot[..., class_index(label, dit.classes, dit.id2label)] = 1
        return io.NodeOutput([[one_hot, {}]])


def class_index(label: str, classes: int, id2label: dict[int, str]) -> int:
    """Returns the index of a class. An empty label means the null class, whose index is `classes`.

    Raises Refused, with the nearest names, if the model has no such class.
    """
    label = label.strip()
    if not label:
        return classes
    if label.lstrip("-").isdecimal():
        if not 0 <= int(label) < classes:
            raise Refused(f"Class {label} does not exist: this model has classes 0 to {classes - 1}.")
        return int(label)
    indices: dict[str, int] = {}
    for index, names in sorted(id2label.items()):
        for name in [names, *names.split(",")]:
            indices.setdefault(name.strip().lower(), index)
    if label.lower() not in indices:
        nearest = difflib.get_close_matches(label.lower(), indices, n=3, cutoff=0.4) or sorted(indices)[:3]
        cause = f"This model has no class {label!r}"
        if not indices:
            raise Refused(f"{cause}: its classes have no names.", "Use a number.")
        raise Refused(f"{cause}.", f"Did you mean {', '.join(nearest)}?")
    return indices[label.lower()]
