"""Reads a picture of one coloured figure on light paper back into words, by plain image analysis.

It judges what the demo model drew, so it shares no code with the model or with its training data: the
colours are bands of hue, the shapes are textbook definitions stretched to the figure's bounding box.

Shapes: H height, W width, C the 3 channels of RGB, N points.
"""

from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

NONE = "none"

# The least intersection over union with the ideal shape. A clean drawing of about 40 pixels keeps 0.93 or more (a star
# 0.85, as thin points fade first); a person still tells a shape with a rough edge, and from here on not for sure.
LEAST_OVERLAP = {
    "circle": 0.95,
    "square": 0.86,
    "triangle": 0.8,
    "diamond": 0.84,
    "star": 0.7,
    "heart": 0.82,
    "ring": 0.8,
    "cross": 0.8,
}

# Degrees of hue. The gaps between the bands are meant: what falls there is no clear colour.
HUE_BANDS = {
    "red": (-15, 15),
    "orange": (21, 40),
    "yellow": (44, 68),
    "green": (95, 165),
    "blue": (200, 245),
    "purple": (262, 310),
}

WORKING_SIDE = 256  # the longer side that a picture is enlarged to, so that edges are found between pixels
TEMPLATE_SIDE = 96
SPUR = 7  # pixels of the working size, under 2 of the picture's: what is thinner is a slip of the pen
LEAST_LEAD = 0.08  # in overlap, of the best shape over the next: less is a blob between two shapes
GREATEST_EDGE = 16  # pixels of the working size from ink to paper: a softer edge outlines nothing
GREATEST_STRETCH = 1.18  # between the figure's width to height and the shape's own


def judge(image: np.ndarray) -> tuple[str, str]:
    """The colour and the shape of the one figure in a picture, "none" for either that is not clear.

    image: HWC, uint8. Both are "none" where there is no single figure on plain light paper.
    """
    image_HWC = image.astype(np.float32) / 255
    zoom = WORKING_SIDE / max(image.shape[:2])
    image_HWC = ndimage.zoom(image_HWC, (zoom, zoom, 1), order=1, grid_mode=True, mode="nearest")

    paper_C = plain_paper(image_HWC)
    if paper_C is None:
        return NONE, NONE
    figure_HW = single_figure(image_HWC, paper_C)
    if figure_HW is None:
        return NONE, NONE
    return name_color(image_HWC[core(figure_HW)]), name_shape(figure_HW)


def plain_paper(image_HWC: np.ndarray) -> np.ndarray | None:
    """The paper's colour, from the picture's rim; None where the rim is not one light, greyish colour."""
    rims = image_HWC[:6], image_HWC[-6:], image_HWC[:, :6], image_HWC[:, -6:]
    rim_NC = np.concatenate([rim.reshape(-1, 3) for rim in rims])
    paper_C = np.median(rim_NC, axis=0)
    strays = np.linalg.norm(rim_NC - paper_C, axis=1) > 0.2
    is_light = paper_C.min() > 0.7 and np.ptp(paper_C) < 0.12
    return paper_C if is_light and strays.mean() < 0.1 else None


def single_figure(image_HWC: np.ndarray, paper_C: np.ndarray) -> np.ndarray | None:
    """Mask HW of the one figure on the paper; None where there is none, or more than one, or only a smear."""
    distance_HW = np.linalg.norm(image_HWC - paper_C, axis=2)
    core_HW = core(distance_HW > 0.25)
    if not core_HW.any():
        return None
    ink_C = np.median(image_HWC[core_HW], axis=0) - paper_C
    coverage_HW = (image_HWC - paper_C) @ ink_C / (ink_C @ ink_C)
    components_HW, count = ndimage.label(coverage_HW > 0.5)
    if count == 0:
        return None
    areas = np.bincount(components_HW.ravel())[1:]
    figure_HW = components_HW == areas.argmax() + 1

    inked = figure_HW.mean()
    outline_HW = figure_HW & ~ndimage.binary_erosion(figure_HW)
    edge = ((coverage_HW > 0.2) & (coverage_HW < 0.8)).sum() / outline_HW.sum()
    near_HW = ndimage.binary_dilation(figure_HW, iterations=6)
    marks_elsewhere = ((distance_HW > 0.25) & ~near_HW).sum() / figure_HW.sum()
    is_single = 0.03 < inked < 0.75 and marks_elsewhere < 0.03 and edge < GREATEST_EDGE
    return figure_HW if is_single else None


def core(mask_HW: np.ndarray) -> np.ndarray:
    """The mask without its edge, where ink and paper mix."""
    return ndimage.binary_erosion(mask_HW, iterations=6)


def name_color(ink_NC: np.ndarray) -> str:
    """The colour that nearly all of the ink has, or "none"."""
    if len(ink_NC) == 0:
        return NONE
    red, green, blue = ink_NC.T
    # So that red, which lies around 0, is not cut in two.
    hue = (np.degrees(np.arctan2(3**0.5 * (green - blue), 2 * red - green - blue)) + 30) % 360 - 30
    is_vivid = (np.ptp(ink_NC, axis=1) > 0.4 * ink_NC.max(axis=1)) & (ink_NC.max(axis=1) > 0.35)
    for color, (low, high) in HUE_BANDS.items():
        agree = is_vivid & (hue >= low - 5) & (hue <= high + 5)
        if low <= np.median(hue) <= high and agree.mean() > 0.9:
            return color
    return NONE


def name_shape(figure_HW: np.ndarray) -> str:
    """The shape that the mask overlaps best once stretched to the same box, or "none" if that is not clear."""
    figure_HW = ndimage.binary_opening(figure_HW, np.ones((SPUR, SPUR)))  # a stray hair does not make a shape wider
    rows, columns = np.flatnonzero(figure_HW.any(axis=1)), np.flatnonzero(figure_HW.any(axis=0))
    boxed_HW = figure_HW[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = boxed_HW.shape
    pick = (np.arange(TEMPLATE_SIDE) + 0.5) / TEMPLATE_SIDE
    stretched_HW = boxed_HW[np.ix_((pick * height).astype(int), (pick * width).astype(int))]

    overlap = {}
    for shape in LEAST_OVERLAP:
        template_HW, _ = ideal(shape)
        overlap[shape] = (stretched_HW & template_HW).sum() / (stretched_HW | template_HW).sum()
    best, second = sorted(overlap, key=overlap.get, reverse=True)[:2]
    stretch = width / height / ideal(best)[1]
    hole = (ndimage.binary_fill_holes(boxed_HW) & ~boxed_HW).mean()
    is_clear = (
        overlap[best] >= LEAST_OVERLAP[best]
        and overlap[best] - overlap[second] >= LEAST_LEAD
        and 1 / GREATEST_STRETCH < stretch < GREATEST_STRETCH
        and (0.08 < hole < 0.35 if best == "ring" else hole < 0.01)
    )
    return best if is_clear else NONE


@lru_cache
def ideal(shape: str) -> tuple[np.ndarray, float]:
    """A shape's mask, filling a square of TEMPLATE_SIDE, and its true width to height."""
    axis = (np.arange(TEMPLATE_SIDE) + 0.5) / TEMPLATE_SIDE * 2 - 1
    x_HW, y_HW = np.meshgrid(axis, axis)  # y downwards
    radius_HW = np.hypot(x_HW, y_HW)
    masks = {
        "circle": radius_HW <= 1,
        "square": radius_HW < 2,
        "triangle": np.abs(x_HW) <= (y_HW + 1) / 2,
        "diamond": np.abs(x_HW) + np.abs(y_HW) <= 1,
        "ring": (radius_HW <= 1) & (radius_HW >= 0.5),
        "cross": np.minimum(np.abs(x_HW), np.abs(y_HW)) <= 1 / 3,
    }
    if shape in masks:
        return masks[shape], 2 / np.sqrt(3) if shape == "triangle" else 1.0
    outline = star_outline() if shape == "star" else heart_outline()
    size = np.ptp(outline, axis=0)
    mask = Image.new("1", (TEMPLATE_SIDE, TEMPLATE_SIDE))
    ImageDraw.Draw(mask).polygon([*map(tuple, (outline - outline.min(axis=0)) / size * (TEMPLATE_SIDE - 1))], fill=1)
    return np.asarray(mask), size[0] / size[1]


def star_outline() -> np.ndarray:
    """Corners N2 of a star of five points, one upwards, its inner corners at 0.45 of the outer radius."""
    turn = np.arange(10) * np.pi / 5
    radius = np.where(np.arange(10) % 2, 0.45, 1.0)
    return np.stack([radius * np.sin(turn), -radius * np.cos(turn)], axis=1)


def heart_outline() -> np.ndarray:
    """Points N2 of the heart curve, https://mathworld.wolfram.com/HeartCurve.html (the one with 16 sin^3)."""
    turn = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    y = 13 * np.cos(turn) - 5 * np.cos(2 * turn) - 2 * np.cos(3 * turn) - np.cos(4 * turn)
    return np.stack([16 * np.sin(turn) ** 3, -y], axis=1)
