"""A model file that ComfyUI's own classes run, as the ranks are told of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# Methods of a diffusion model beside its forward that compute with its weights, and that ComfyUI calls before the first
# step.
PARTS = ("preprocess_text_embeds",)


@dataclass(frozen=True)
class HostSource:
    """comfyui: the folder of ComfyUI. arguments: its command line, as far as it is the ranks'.

    file: safetensors or GGUF. model_class: of the diffusion model, for people. dtype, cast: what its weights are stored
    in on the device, and what they are computed in, as names in torch; empty for what their format says, and for the
    same.
    """

    comfyui: str
    arguments: tuple[str, ...]
    file: str
    model_class: str
    dtype: str
    cast: str

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "arguments": list(self.arguments)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> HostSource:
        return cls(**{**fields, "arguments": tuple(fields["arguments"])})
