"""The demo model draws what it is asked for, and the checker that says so can be trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFilter

from demo.host import REPOSITORY
from tests.support.host.shape_checker import NONE, judge

MODEL = REPOSITORY / "demo" / "shapes-dit"
SIDE = 64
STEPS = 20
SUPERSAMPLING = 8
PAPER = (238, 236, 230)
INKS = {
    "red": (215, 35, 45),
    "orange": (240, 135, 20),
    "yellow": (250, 220, 50),
    "green": (40, 150, 75),
    "blue": (35, 95, 210),
    "purple": (130, 65, 180),
}
Point = tuple[float, float]
Ink = tuple[int, int, int]
Brush = Callable[[ImageDraw.ImageDraw, float, float, float, Ink], None]


def polygon(corners: list[Point]) -> Brush:
    """A brush that fills the polygon with these corners, given for radius 1 about (0, 0), y downwards."""

    def brush(pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, ink: Ink) -> None:
        pen.polygon([(x + radius * px, y + radius * py) for px, py in corners], fill=ink)

    return brush


def disc(pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, ink: Ink) -> None:
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=ink)


def ring(pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, ink: Ink) -> None:
    disc(pen, x, y, radius, ink)
    disc(pen, x, y, radius / 2, PAPER)


def cross(pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, ink: Ink) -> None:
    arm = radius * 0.32
    pen.rectangle((x - radius, y - arm, x + radius, y + arm), fill=ink)
    pen.rectangle((x - arm, y - radius, x + arm, y + radius), fill=ink)


def regular(corners: int, turn: float = 0, inner: float | None = None) -> list[Point]:
    """Corners of a regular polygon, the first one upwards and then turned; of a star where inner is a radius."""
    radii = [1.0] if inner is None else [1.0, inner]
    count = corners * len(radii)
    angles = [turn + 2 * math.pi * i / count for i in range(count)]
    return [(radii[i % len(radii)] * math.sin(a), -radii[i % len(radii)] * math.cos(a)) for i, a in enumerate(angles)]


def heart_outline() -> list[Point]:
    angles = [2 * math.pi * i / 120 for i in range(120)]
    height = [13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a) for a in angles]
    return [(math.sin(a) ** 3, -h / 16) for a, h in zip(angles, height, strict=True)]


BRUSHES: dict[str, Brush] = {
    "circle": disc,
    "square": polygon([(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)]),
    "triangle": polygon(regular(3)),
    "diamond": polygon(regular(4)),
    "star": polygon(regular(5, inner=0.45)),
    "heart": polygon(heart_outline()),
    "ring": ring,
    "cross": cross,
}


def picture(*figures: tuple[Brush, Point, float, Ink], blur: float = 0) -> np.ndarray:
    """Figures (brush, center, radius, ink) in pixels on paper: HWC uint8, with smooth edges."""
    canvas = Image.new("RGB", (SIDE * SUPERSAMPLING, SIDE * SUPERSAMPLING), PAPER)
    pen = ImageDraw.Draw(canvas)
    for brush, (x, y), radius, ink in figures:
        brush(pen, x * SUPERSAMPLING, y * SUPERSAMPLING, radius * SUPERSAMPLING, ink)
    return np.asarray(canvas.resize((SIDE, SIDE), Image.Resampling.BOX).filter(ImageFilter.GaussianBlur(blur)))


def one(brush: Brush, center: Point = (32, 32), radius: float = 21, ink: Ink = INKS["blue"]) -> np.ndarray:
    """A picture of one figure, see `picture`."""
    return picture((brush, center, radius, ink))


PLACES = [((32.0, 32.0), 21.0), ((28.3, 36.6), 24.0), ((36.5, 29.2), 17.0)]


@pytest.mark.parametrize("shape", BRUSHES)
@pytest.mark.parametrize("color", INKS)
def test_the_checker_tells_every_color_and_shape_apart(color: str, shape: str) -> None:
    """At the places in turn, so that each color and each shape is seen at each of them."""
    turn = list(INKS).index(color) + list(BRUSHES).index(shape)
    center, radius = PLACES[turn % len(PLACES)]
    assert judge(one(BRUSHES[shape], center, radius, INKS[color])) == (color, shape)


def no_figures() -> dict[str, np.ndarray]:
    """Pictures without one clear figure, by what they show instead."""
    generator = np.random.default_rng(0)
    blue, red = INKS["blue"], INKS["red"]
    return {
        "blank paper": picture(),
        "black": np.zeros((SIDE, SIDE, 3), np.uint8),
        "uniform noise": generator.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8),
        "normal noise": generator.normal(0.5, 0.5, (SIDE, SIDE, 3)).clip(0, 1),
        "faint noise on paper": (picture() / 255 + generator.normal(0, 0.1, (SIDE, SIDE, 3))).clip(0, 1),
        "not numbers": np.full((SIDE, SIDE, 3), np.nan, np.float32),
        "two squares side by side": picture(
            (BRUSHES["square"], (18, 32), 12, blue), (BRUSHES["square"], (46, 32), 12, blue)
        ),
        "two circles of two colors": picture((disc, (17, 32), 13, blue), (disc, (47, 32), 13, red)),
        "a circle and a crumb": picture((disc, (28, 32), 18, blue), (disc, (56, 54), 4, red)),
        "a figure that fills the picture": picture((BRUSHES["square"], (32, 32), 45, blue)),
        "a figure cut by the edge": picture((disc, (4, 32), 21, blue)),
        "a cloud": picture((disc, (32, 32), 21, blue), blur=5),
    }


@pytest.mark.parametrize("image", [pytest.param(image, id=scene) for scene, image in no_figures().items()])
def test_noise_and_blank_paper_and_crowds_are_no_shape(image: np.ndarray) -> None:
    assert judge(image)[1] == NONE


@torch.no_grad()
def sample(model: torch.nn.Module, labels_B: torch.Tensor, steps: int, guidance: float = 3.0) -> torch.Tensor:
    """Pictures BCHW in [-1, 1] by Euler's method on the rectified flow, sigma from 1 to 0, with guidance.

    x_t = (1 - sigma) x0 + sigma noise, and the model predicts noise - x0; the null label is the one after the last.
    """
    config = model.config
    x_BCHW = torch.randn(
        len(labels_B),
        config.in_channels,
        config.sample_size,
        config.sample_size,
        generator=torch.Generator().manual_seed(0),
    )
    labels_2B = torch.cat([labels_B, torch.full_like(labels_B, config.num_embeds_ada_norm)])
    sigmas = torch.linspace(1, 0, steps + 1)
    for sigma, following in zip(sigmas[:-1], sigmas[1:], strict=True):
        timestep_2B = (sigma * 1000).expand(len(labels_2B))
        velocity = model(torch.cat([x_BCHW, x_BCHW]), timestep=timestep_2B, class_labels=labels_2B).sample
        asked, unasked = velocity.chunk(2)
        x_BCHW = x_BCHW + (following - sigma) * (unasked + guidance * (asked - unasked))
    return x_BCHW


def contact_sheet(pictures_BHWC: np.ndarray, columns: int = 8) -> Image.Image:
    """The pictures, row by row, in one."""
    side = pictures_BHWC.shape[1]
    sheet = Image.new("RGB", (columns * side, math.ceil(len(pictures_BHWC) / columns) * side))
    for index, pixels in enumerate(pictures_BHWC):
        sheet.paste(Image.fromarray(pixels), (index % columns * side, index // columns * side))
    return sheet


@pytest.fixture(scope="module", params=[STEPS // 2, pytest.param(STEPS, marks=pytest.mark.slow)])
def drawn(request: pytest.FixtureRequest) -> tuple[list[str], np.ndarray]:
    """What was asked of the demo model, and its pictures: every class once, in half of STEPS; or
    in all STEPS, and every third again, from other noise."""
    from diffusers import DiTTransformer2DModel

    names = json.loads((MODEL / "model_index.json").read_text())["id2label"]
    model = DiTTransformer2DModel.from_pretrained(MODEL / "transformer", torch_dtype=torch.float32).eval()
    labels = [*range(len(names)), *(range(0, len(names), 3) if request.param == STEPS else ())]

    x_BCHW = sample(model, torch.tensor(labels), request.param)
    asked = [names[str(label)] for label in labels]
    return asked, ((x_BCHW + 1) / 2).clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1).numpy()


def test_demo_model_draws_what_was_asked(drawn: tuple[list[str], np.ndarray], tmp_path: Path) -> None:
    asked, pictures_BHWC = drawn
    sheet = tmp_path / "contact_sheet.png"
    contact_sheet(pictures_BHWC).save(sheet)

    seen = [" ".join(judge(pixels)) for pixels in pictures_BHWC]
    misses = [
        f"{index}: asked for {a}, saw {s}" for index, (a, s) in enumerate(zip(asked, seen, strict=True)) if a != s
    ]
    assert len(misses) <= 0.05 * len(asked), "\n".join(
        [f"{len(misses)} of {len(asked)} pictures miss, see {sheet}", *misses]
    )
