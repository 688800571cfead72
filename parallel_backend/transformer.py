"""One diffusers transformer on a mesh: the call that every rank makes together."""

from __future__ import annotations

import torch

from .attention import SequenceParallelAttention, install_attention
from .collectives import collect, shard
from .errors import RequestError
from .mesh import Mesh
from .models import ModelSpec, spec_for
from .tokens import TokenLayout, install_token_boundary

BATCH_DIM = 0


class ParallelTransformer:
    """Applies a plan to an unmodified diffusers transformer, from outside.

    dp and cfg split the batch; ring and ulysses split the tokens between the first and the last block. Raises
    PlanError if the model does not allow the plan and UnknownModelError if its class has no spec.
    """

    def __init__(self, model: torch.nn.Module, mesh: Mesh) -> None:
        self.model = model
        self.mesh = mesh
        self.spec: ModelSpec = spec_for(type(model).__name__)
        mesh.plan.check_model(heads=model.config["num_attention_heads"])
        if self.spec.prepare:
            self.spec.prepare(model)
        if mesh["sequence"].degree > 1:
            shard_sequence(model, self.spec, mesh)

    @torch.inference_mode()
    def __call__(
        self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: dict[str, torch.Tensor]
    ) -> torch.Tensor | None:
        """The model's prediction for a batch, in the shape of `latents`, on global rank 0; None elsewhere.

        latents: (B, C, H, W), or (B, C, F, H, W) for video. timestep_B: in the model's own units.
        conditions: the spec's, each batch first. Raises RequestError, on every rank alike, for input that the model
        cannot take.
        """
        self.check(latents, timestep_B, conditions)
        dtype = self.model.dtype
        batch, axis = len(latents), self.mesh["batch"]
        latents = shard(latents, BATCH_DIM, axis).to(self.mesh.device, dtype)
        timestep_B = shard(timestep_B, BATCH_DIM, axis).to(self.mesh.device)
        conditions = {
            name: shard(value, BATCH_DIM, axis).to(self.mesh.device, dtype if value.is_floating_point() else None)
            for name, value in conditions.items()
        }
        config = self.model.config
        if len(latents):
            inputs = self.spec.inputs(config, latents, timestep_B, conditions)
            sample = self.model(**inputs, return_dict=False)[0]
            latents = self.spec.output(config, sample, latents)
        return None if self.mesh["sequence"].index else collect(latents, BATCH_DIM, batch, axis)

    def check(self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: dict[str, torch.Tensor]) -> None:
        """Raises RequestError for what the model cannot take; depends on the request alone, so all ranks agree."""
        config = self.model.config
        channels, patch = self.spec.geometry(config)
        if latents.ndim != 2 + len(patch) or latents.shape[1] != channels:
            sizes = "(batch, {}, height, width)" if len(patch) == 2 else "(batch, {}, frames, height, width)"
            raise RequestError(
                f"The latent has shape {tuple(latents.shape)}, and {self.spec.model_class} here takes "
                f"{sizes.format(channels)}; use an empty-latent node or a VAE made for this model."
            )
        if any(size % side or not size for size, side in zip(latents.shape[2:], patch, strict=True)):
            shape, sides = ("×".join(map(str, sizes)) for sizes in (latents.shape[2:], patch))
            raise RequestError(
                f"The latent measures {shape}, and the model works on patches of {sides}; "
                "use sizes that are multiples of these, in latent pixels."
            )
        required = set(self.spec.conditions) - set(self.spec.optional)
        if not required <= set(conditions) <= set(self.spec.conditions):
            raise RequestError(
                f"{self.spec.model_class} takes the conditions {', '.join(self.spec.conditions)}; "
                f"got {', '.join(conditions) or 'none'}."
            )
        for name, value in {"timestep": timestep_B, **conditions}.items():
            if len(value) != len(latents):
                raise RequestError(f"{name} is for a batch of {len(value)}, the latent for one of {len(latents)}.")
        for name, value in {"latent": latents, "timestep": timestep_B, **conditions}.items():
            if value.is_floating_point() and not value.isfinite().all():
                raise RequestError(f"The {name} holds NaN or infinite values; the node that made it went wrong.")
        if self.spec.check:
            self.spec.check(config, conditions)


def shard_sequence(model: torch.nn.Module, spec: ModelSpec, mesh: Mesh) -> None:
    """Splits the tokens over the sequence axis: seam 1 at the blocks' ends, seam 2 at each self-attention."""
    layout = TokenLayout(mesh["sequence"])
    attention = SequenceParallelAttention(mesh, layout)
    install_token_boundary(model, spec, layout)
    for blocks in spec.blocks:
        for block in model.get_submodule(blocks):
            for name, streams in spec.self_attention.items():
                if getattr(block, name, None) is not None:
                    install_attention(block.get_submodule(name), attention, streams)
