"""The class-conditional DiT (https://arxiv.org/abs/2212.09748), which ComfyUI lacks.

It is built from ComfyUI's layers. Its parameter names are those of diffusers' DiTTransformer2DModel.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from comfy.ldm.common_dit import pad_to_patch_size
from comfy.ldm.modules.attention import attention_pytorch
from comfy.ldm.modules.diffusionmodules.mmdit import get_1d_sincos_pos_embed_from_grid_torch
from comfy.model_management import supports_fp64
from torch.nn import Module, ModuleDict, ModuleList
from torch.nn.functional import gelu, layer_norm, silu

TIME_CHANNELS = 256


class Conditioning(Module):
    """Embeds a timestep and a class."""

    def __init__(self, width: int, classes: int, ops: Any, **factory: Any) -> None:
        super().__init__()
        first, second = ops.Linear(TIME_CHANNELS, width, **factory), ops.Linear(width, width, **factory)
        self.timestep_embedder = ModuleDict({"linear_1": first, "linear_2": second})
        self.class_embedder = ModuleDict({"embedding_table": ops.Embedding(classes + 1, width, **factory)})

    def forward(self, timestep_B: torch.Tensor, label_B: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        half = TIME_CHANNELS // 2
        exponents = -math.log(10000) * torch.arange(half, dtype=torch.float32, device=timestep_B.device)
        angles = timestep_B[:, None].float() * torch.exp(exponents / (half - 1))
        first, second = self.timestep_embedder.values()
        time = second(silu(first(torch.cat([angles.cos(), angles.sin()], dim=1).to(dtype))))
        return time + self.class_embedder["embedding_table"](label_B, out_dtype=dtype)


class DiTBlock(Module):
    def __init__(self, width: int, heads: int, classes: int, bias: bool, eps: float, ops: Any, **factory: Any) -> None:
        super().__init__()
        self.heads, self.eps = heads, eps
        linear, emb = ops.Linear(width, 6 * width, **factory), Conditioning(width, classes, ops, **factory)
        self.norm1: Any = ModuleDict({"emb": emb, "linear": linear})
        self.attn1: Any = ModuleDict({f"to_{each}": ops.Linear(width, width, bias=bias, **factory) for each in "qkv"})
        self.attn1["to_out"] = ModuleList([ops.Linear(width, width, **factory)])
        up, down = ops.Linear(width, 4 * width, **factory), ops.Linear(4 * width, width, **factory)
        self.ff: Any = ModuleDict({"net": ModuleList([ModuleDict({"proj": up}), Module(), down])})

    def forward(
        self, x: torch.Tensor, timestep_B: torch.Tensor, label_B: torch.Tensor, transformer_options: dict[str, Any]
    ) -> torch.Tensor:
        """x: (batch, tokens, width)."""
        embedding = silu(self.norm1.emb(timestep_B, label_B, x.dtype))
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.norm1.linear(embedding)[:, None].chunk(6, dim=2)
        attended = normalise(x, 1e-6) * (1 + scale) + shift
        *heads, out = (self.attn1[name] for name in ("to_q", "to_k", "to_v", "to_out"))
        q, k, v = (layer(attended) for layer in heads)
        x = x + gate * out[0](attention_pytorch(q, k, v, self.heads, transformer_options=transformer_options))
        up, _, down = self.ff["net"]
        hidden = up["proj"](normalise(x, self.eps) * (1 + mlp_scale) + mlp_shift)
        return x + mlp_gate * down(gelu(hidden, approximate="tanh"))


class DiT(Module):
    __module__ = "paralleldit"  # in ComfyUI's process and in the ranks: the engine finds the spec by this name

    def __init__(self, config: dict[str, Any], dtype: torch.dtype, device: Any, operations: Any) -> None:
        """config: the config of the diffusers class."""
        super().__init__()
        self.num_heads, self.patch_size, self.dtype = config["num_attention_heads"], config["patch_size"], dtype
        self.hidden_size = width = self.num_heads * config["attention_head_dim"]
        self.channels, self.base_size = config["in_channels"], config["sample_size"] // self.patch_size
        factory = {"dtype": dtype, "device": device}
        proj = operations.Conv2d(self.channels, width, self.patch_size, self.patch_size, **factory)
        self.pos_embed = ModuleDict({"proj": proj})
        self.classes = config["num_embeds_ada_norm"]
        of_block = (width, self.num_heads, self.classes, config["attention_bias"], config["norm_eps"])
        blocks = (DiTBlock(*of_block, operations, **factory) for _ in range(config["num_layers"]))
        self.transformer_blocks: Any = ModuleList(blocks)
        self.proj_out_1 = operations.Linear(width, 2 * width, **factory)
        outputs = self.patch_size**2 * (config.get("out_channels") or self.channels)
        self.proj_out_2 = operations.Linear(width, outputs, **factory)

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        class_labels: torch.Tensor | None = None,
        transformer_options: dict[str, Any] | None = None,
        **_others: Any,
    ) -> torch.Tensor:
        """Returns the prediction for latents (B, C, H, W) at timesteps (B), of classes (B), without learned variances.

        Without classes, it uses the null class.
        """
        height, width = x.shape[2:]
        if class_labels is None:
            class_labels = torch.full_like(timesteps, self.classes, dtype=torch.int64)
        x = self.pos_embed["proj"](pad_to_patch_size(x, (self.patch_size,) * 2))
        rows, columns = x.shape[2:]
        x = x.flatten(2).transpose(1, 2)
        x = x + self.positions(rows, columns, x.device).to(x)
        for block in self.transformer_blocks:
            x = block(x, timesteps, class_labels, transformer_options=transformer_options or {})
        embedding = self.transformer_blocks[0].norm1.emb(timesteps, class_labels, x.dtype)
        shift, scale = self.proj_out_1(silu(embedding))[:, None].chunk(2, dim=2)
        x = self.proj_out_2(normalise(x, 1e-6) * (1 + scale) + shift)
        x = x.unflatten(2, (self.patch_size, self.patch_size, -1)).unflatten(1, (rows, columns))
        x = x[..., : self.channels].permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)
        return x[..., :height, :width]

    def positions(self, rows: int, columns: int, device: torch.device) -> torch.Tensor:
        """Returns the position embeddings (1, rows × columns, width)."""
        device = device if supports_fp64(device) else torch.device("cpu")
        steps = [torch.arange(count, dtype=torch.float32, device=device) for count in (rows, columns)]
        grid = [each / (len(each) / self.base_size) for each in steps]
        down, right = torch.meshgrid(*grid, indexing="ij")
        half = self.hidden_size // 2
        parts = [
            get_1d_sincos_pos_embed_from_grid_torch(half, each, device=device, dtype=torch.float64)
            for each in (right.double(), down.double())
        ]
        return torch.cat(parts, dim=1).float()[None]


def normalise(x: torch.Tensor, eps: float) -> torch.Tensor:
    return layer_norm(x, x.shape[-1:], eps=eps)
