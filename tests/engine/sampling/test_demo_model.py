"""The demo model draws what it is asked for, also by PipeFusion, and the checker that says so can be trusted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFilter

from tests.benchmarks.pipefusion_demo import LEAST_RIGHT, MODEL, STEPS, Request, plan
from tests.support.host.shape_checker import NONE, judge

SIDE = 64
PAPER, BLUE, RED = (238, 236, 230), (35, 95, 210), (215, 35, 45)
Figure = tuple[str, tuple[int, int], int, tuple[int, int, int]]


def picture(*figures: Figure, blur: float = 0) -> np.ndarray:
    """Figures (ellipse or rectangle, center, radius, ink) in pixels on paper: HWC uint8."""
    canvas = Image.new("RGB", (SIDE, SIDE), PAPER)
    pen = ImageDraw.Draw(canvas)
    for shape, (x, y), radius, ink in figures:
        getattr(pen, shape)((x - radius, y - radius, x + radius, y + radius), fill=ink)
    return np.asarray(canvas.filter(ImageFilter.GaussianBlur(blur)))


def no_figures() -> dict[str, np.ndarray]:
    """Pictures without one clear figure, by what they show instead."""
    generator = np.random.default_rng(0)
    return {
        "blank paper": picture(),
        "uniform noise": generator.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8),
        "two circles of two colors": picture(("ellipse", (17, 32), 13, BLUE), ("ellipse", (47, 32), 13, RED)),
        "a circle and a crumb": picture(("ellipse", (28, 32), 18, BLUE), ("ellipse", (56, 54), 4, RED)),
        "a figure cut by the edge": picture(("ellipse", (4, 32), 21, BLUE)),
        "a cloud": picture(("ellipse", (32, 32), 21, BLUE), blur=5),
    }


@pytest.mark.parametrize("image", [pytest.param(image, id=scene) for scene, image in no_figures().items()])
def test_noise_and_blank_paper_and_crowds_are_no_shape(image: np.ndarray) -> None:
    assert judge(image)[1] == NONE


def test_a_figure_is_told_by_its_color_and_shape() -> None:
    """Here two of them; the demo model's pictures have every color and every shape."""
    assert judge(picture(("ellipse", (32, 32), 21, BLUE))) == ("blue", "circle")
    assert judge(picture(("rectangle", (28, 36), 18, RED))) == ("red", "square")


@pytest.fixture(scope="module")
def drawn() -> torch.Tensor:
    """A picture of every class, in half as many steps as the benchmark's."""
    return Request.of(MODEL).serial(steps=STEPS // 2)


def right_or_nearly(images: torch.Tensor) -> bool:
    request = Request.of(MODEL)
    return len(request.misses(images)) <= (1 - LEAST_RIGHT) * len(request.names)


def test_demo_model_draws_what_was_asked(drawn: torch.Tensor) -> None:
    assert right_or_nearly(drawn)


@pytest.mark.slow
def test_pipefusion_with_one_sync_step_draws_what_was_asked(own_ranks: None) -> None:
    """Its stale keys and values do not keep the model from it."""
    assert right_or_nearly(Request.of(MODEL).parallel({"pipefusion": plan(sync_steps=1)})["pipefusion"])
