"""Trains the demo model: a small class-conditional DiT that draws coloured shapes, 64×64, in pixel space.

    .venv/bin/python demo/train.py                # 90 minutes on 2 shared cores, writes demo/shapes-dit

The data is drawn here, from signed distance functions; nothing is downloaded. Rectified flow
(https://arxiv.org/abs/2209.03003): x_t = (1 - sigma) x0 + sigma noise, and the model predicts
noise - x0. The result is a diffusers folder (model_index.json with id2label, transformer, scheduler).

Shapes: B batch, H height, W width; images are BCHW in [-1, 1].
"""

import argparse
import copy
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import DiTTransformer2DModel, FlowMatchEulerDiscreteScheduler

COLORS = {
    "red": (220, 40, 40),
    "orange": (245, 140, 25),
    "yellow": (245, 215, 40),
    "green": (45, 160, 70),
    "blue": (40, 90, 215),
    "purple": (140, 60, 185),
}
SHAPES = ("circle", "square", "triangle", "diamond", "star", "heart", "ring", "cross")
LABELS = [f"{color} {shape}" for color in COLORS for shape in SHAPES]
SIDE = 64
OUTPUT = Path(__file__).parent / "shapes-dit"


def polygon_distance(x_BHW: torch.Tensor, y_BHW: torch.Tensor, vertices: list[tuple[float, float]]) -> torch.Tensor:
    """Signed distance to a closed polygon, negative inside (even-odd rule)."""
    nearest = torch.full_like(x_BHW, math.inf)
    inside = torch.zeros_like(x_BHW, dtype=torch.bool)
    for (ax, ay), (bx, by) in zip(vertices, vertices[1:] + vertices[:1], strict=True):
        ex, ey = bx - ax, by - ay
        along = (((x_BHW - ax) * ex + (y_BHW - ay) * ey) / (ex * ex + ey * ey)).clamp(0, 1)
        nearest = torch.minimum(nearest, torch.hypot(x_BHW - ax - along * ex, y_BHW - ay - along * ey))
        if ay != by:
            crosses = (y_BHW >= min(ay, by)) & (y_BHW < max(ay, by))
            inside ^= crosses & (x_BHW < ax + (y_BHW - ay) / (by - ay) * ex)
    return torch.where(inside, -nearest, nearest)


def star_vertices(points: int = 5, inner: float = 0.45) -> list[tuple[float, float]]:
    angles = [math.pi * i / points - math.pi / 2 for i in range(2 * points)]
    return [
        ((inner if i % 2 else 1) * math.cos(a), (inner if i % 2 else 1) * math.sin(a)) for i, a in enumerate(angles)
    ]


def heart_vertices(segments: int = 48) -> list[tuple[float, float]]:
    angles = [2 * math.pi * i / segments for i in range(segments)]
    return [
        (
            math.sin(a) ** 3,
            -(13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a)) / 16 - 0.1,
        )
        for a in angles
    ]


def shape_distance(shape: str, x_BHW: torch.Tensor, y_BHW: torch.Tensor) -> torch.Tensor:
    """Signed distance to a shape of about unit radius, y downwards."""
    if shape == "circle":
        return torch.hypot(x_BHW, y_BHW) - 0.92
    if shape == "ring":
        return (torch.hypot(x_BHW, y_BHW) - 0.7).abs() - 0.24
    if shape == "square":
        return torch.maximum(x_BHW.abs(), y_BHW.abs()) - 0.82
    if shape == "diamond":
        return (x_BHW.abs() + y_BHW.abs() - 1.05) / math.sqrt(2)
    if shape == "cross":
        across, along = torch.minimum(x_BHW.abs(), y_BHW.abs()), torch.maximum(x_BHW.abs(), y_BHW.abs())
        return torch.maximum(across - 0.3, along - 0.95)
    if shape == "triangle":
        return polygon_distance(x_BHW, y_BHW, [(0, -0.95), (1.0, 0.8), (-1.0, 0.8)])
    return polygon_distance(x_BHW, y_BHW, star_vertices() if shape == "star" else heart_vertices())


def draw(labels_B: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Images BCHW in [-1, 1] for labels; place, size, shade and paper vary with the generator."""
    batch = len(labels_B)

    def uniform(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(batch, generator=generator)

    radius, shade = uniform(19, 26), uniform(0.9, 1.08)
    center_x, center_y = uniform(29, 35), uniform(29, 35)
    paper = uniform(0.86, 0.98)[:, None] * torch.ones(3) + 0.02 * (torch.rand(batch, 3, generator=generator) - 0.5)
    grid = torch.arange(SIDE) + 0.5
    x_BHW = ((grid[None, None, :] - center_x[:, None, None]) / radius[:, None, None]).expand(batch, SIDE, SIDE)
    y_BHW = ((grid[None, :, None] - center_y[:, None, None]) / radius[:, None, None]).expand(batch, SIDE, SIDE)
    coverage_BHW = torch.zeros(batch, SIDE, SIDE)
    for index, shape in enumerate(SHAPES):
        chosen = labels_B % len(SHAPES) == index
        distance = shape_distance(shape, x_BHW[chosen], y_BHW[chosen]) * radius[chosen, None, None]
        coverage_BHW[chosen] = (0.5 - distance).clamp(0, 1)
    palette = torch.tensor(list(COLORS.values())) / 255
    ink = (palette[labels_B // len(SHAPES)] * shade[:, None]).clamp(0, 1)
    image = paper[:, :, None, None] + (ink - paper)[:, :, None, None] * coverage_BHW[:, None]
    return image * 2 - 1


def build_model() -> DiTTransformer2DModel:
    """The DiT with the paper's adaLN-Zero initialisation (https://arxiv.org/abs/2212.09748, section 3.2)."""
    model = DiTTransformer2DModel(
        num_attention_heads=8,
        attention_head_dim=32,
        in_channels=3,
        num_layers=5,
        sample_size=SIDE,
        patch_size=8,
        num_embeds_ada_norm=len(LABELS),
    )
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.xavier_uniform_(module.weight)
            torch.nn.init.zeros_(module.bias)
    blocks: Any = model.transformer_blocks  # a module's attribute is a tensor or a module, as torch types it
    for layer in [block.norm1.linear for block in blocks] + [model.proj_out_1, model.proj_out_2]:
        torch.nn.init.zeros_(layer.weight)
    # eval, because in training mode diffusers drops the label in each block on its own draw; here all drop together.
    return model.eval()


def learning_rate(step: int, steps: int, peak: float = 1e-3) -> float:
    """Linear warm-up over 300 steps, then cosine to zero."""
    return peak * min(1, (step + 1) / 300) * 0.5 * (1 + math.cos(math.pi * step / steps))


def train(steps: int, batch: int, save_every: int = 2000) -> DiTTransformer2DModel:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = build_model()
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.01, fused=True)
    started, running_loss = time.time(), 0.0
    for step in range(steps):
        labels_B = torch.randint(len(LABELS), (batch,), generator=generator)
        image = draw(labels_B, generator)
        labels_B = torch.where(torch.rand(batch, generator=generator) < 0.1, len(LABELS), labels_B)
        sigma = torch.sigmoid(torch.randn(batch, generator=generator) + 0.2)
        noise = torch.randn(image.shape, generator=generator)
        noisy = torch.lerp(image, noise, sigma[:, None, None, None])
        with torch.autocast("cpu", torch.bfloat16):
            predicted = model(noisy, timestep=sigma * 1000, class_labels=labels_B).sample
        loss = F.mse_loss(predicted.float(), noise - image)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        decay = min(0.999, (step + 1) / (step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
        running_loss += loss.item()
        if (step + 1) % 100 == 0:
            rate = (step + 1) * batch / (time.time() - started)
            print(f"step {step + 1}/{steps}  loss {running_loss / 100:.4f}  {rate:.0f} samples/s", flush=True)
            running_loss = 0.0
        if (step + 1) % save_every == 0 or step + 1 == steps:
            save(average)
    return average


def save(model: DiTTransformer2DModel) -> None:
    """Writes the diffusers folder: bf16 weights, the flow-matching scheduler, and the names of the classes."""
    copy.deepcopy(model).bfloat16().save_pretrained(OUTPUT / "transformer")
    FlowMatchEulerDiscreteScheduler().save_pretrained(OUTPUT / "scheduler")
    index = {
        "_class_name": "DiTPipeline",
        "id2label": {str(index): label for index, label in enumerate(LABELS)},
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "transformer": ["diffusers", "DiTTransformer2DModel"],
        "vae": [None, None],
    }
    (OUTPUT / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    train(arguments.steps, arguments.batch)
