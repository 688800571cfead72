"""A picture of a UNet in bands of rows: which rank has which, what is refused, and when auto uses it.

`test_host_models.py` compares what ranks give with what ComfyUI's own class gives.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from parallel_backend.costs.auto import list_model_plans
from parallel_backend.costs.forward import Cost, ForwardCost, Work
from parallel_backend.errors import PlanError, RequestError
from parallel_backend.groups.mesh import Axis
from parallel_backend.models.bands import BandTraits
from parallel_backend.models.checks import check_module
from parallel_backend.models.spec import spec_named
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.bands.functions import BandFunctions
from parallel_backend.seams.bands.layout import RowLayout
from parallel_backend.seams.bands.model import BandedModel
from parallel_backend.seams.bands.rows import RowBands
from parallel_backend.seams.forward import ForwardSlot

UNET = "comfy.ldm.modules.diffusionmodules.openaimodel.UNetModel"
LEVELS = 4  # of Stable Diffusion 1


def layout(index: int, height: int) -> RowLayout:
    """Of one of two ranks."""
    found = RowLayout(RowBands(Axis(None, 2, index)), LEVELS, ForwardSlot())
    found.begin(height, 64)
    return found


def test_a_tensor_with_the_rows_of_no_level_is_refused() -> None:
    own = layout(0, 64)
    with pytest.raises(RequestError, match=r"shape \(1, 4, 30, 64\) has the rows of no level"):
        own.cut_rows(torch.zeros(1, 4, 30, 64))
    with pytest.raises(RequestError, match="7 pixels, as many as no level"):
        own.stream_of(7)


def functions(index: int) -> BandFunctions:
    bands = RowBands(Axis(None, 2, index))
    bands.rows = 6
    return BandFunctions(bands, BandTraits(attends_over_rows=False, by_size=True), lambda: None, "model")


def test_only_the_last_band_may_end_with_half_of_a_doubled_row() -> None:
    band = torch.arange(12.0).reshape(1, 1, 3, 4)
    for index, rows in ((0, 6), (1, 6), (1, 5)):
        with functions(index):
            doubled = F.interpolate(band, size=[rows, 7], mode="nearest")
        assert torch.equal(doubled, band.repeat_interleave(2, 2).repeat_interleave(2, 3)[:, :, :rows, :7])
    for index, rows in ((0, 5), (1, 4), (1, 7)):
        with functions(index), pytest.raises(RequestError, match="The model has interpolation"):
            F.interpolate(band, size=[rows, 7], mode="nearest")


def unet(**attributes: Any) -> torch.nn.Module:
    """A module with the name of ComfyUI's class, and no layers."""

    def forward(self, x, timesteps=None, context=None, y=None, control=None, transformer_options={}, **kwargs):  # noqa: B006
        return x

    module, _, name = UNET.rpartition(".")
    given = {"channel_mult": [1, 2], "forward": forward, **attributes}
    return type(name, (torch.nn.Module,), {"__module__": module, **given})()


class Blur(torch.nn.Module):
    """A layer that nobody has heard of."""


def comfyui_convolution(kernel: int, **options: Any) -> torch.nn.Module:
    kind = type("Conv2d", (torch.nn.Conv2d,), {"__module__": "comfy.ops"})
    return kind(4, 4, kernel, **options)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (Blur(), r"its layer block is of the class Blur \("),
        (torch.nn.AvgPool2d(2), r"is of the class AvgPool2d \(torch"),
        (comfyui_convolution(5, padding=2), "its layer block is a convolution of an unknown form"),
        (comfyui_convolution(3), "its layer block is a convolution of an unknown form"),
        (comfyui_convolution(3, padding=2, dilation=2), "its layer block is a convolution of an unknown form"),
    ],
)
def test_a_unet_with_a_layer_that_is_not_known_shares_its_batch_alone(layer: torch.nn.Module, said: str) -> None:
    model = unet()
    check_module(ParallelPlan(ring=2), model)
    model.block = layer
    with pytest.raises(PlanError, match=said):
        check_module(ParallelPlan(ring=2), model)
    check_module(ParallelPlan(cfg=2), model)
    assert list_model_plans(2, model, Work(2, True, forward=FORWARD)) == [ParallelPlan(cfg=2)]


def test_bands_are_not_compiled() -> None:
    with pytest.raises(PlanError, match="compile=on does not work") as raised:
        check_module(ParallelPlan(ring=2, compile="on"), unet())
    assert raised.value.fields == ("compile",)
    check_module(ParallelPlan(cfg=2, compile="on"), unet())


TEXT, LATENTS = torch.zeros(2, 7, 8), torch.zeros(2, 4, 16, 16)
RIGHT: dict[str, Any] = {"timesteps": torch.zeros(2), "context": TEXT}


@pytest.mark.parametrize(
    ("latents", "given", "said"),
    [
        (LATENTS, RIGHT | {"masks": TEXT}, "was given masks, which cannot be shared"),
        (LATENTS, RIGHT | {"context": None}, "was given no context"),
        (LATENTS.unsqueeze(2), RIGHT, r"latents of shape \(2, 4, 1, 16, 16\)"),
        (LATENTS, RIGHT | {"control": {"output": [None, torch.zeros(2, 4, 16, 1)]}}, "has the rows of no level"),
    ],
)
def test_a_call_that_is_not_known_to_be_right_in_bands_is_refused(
    latents: torch.Tensor, given: dict[str, Any], said: str
) -> None:
    model, spec = unet(), spec_named(UNET)
    assert spec and spec.bands
    banded = BandedModel(model, spec.bands, layout(0, 16))
    with pytest.raises(RequestError, match=said):
        banded.enter(model, (latents,), given)
    assert banded.leave(model, (), None) is None  # torch calls it after any error


def test_a_call_is_cut_and_what_the_caller_gave_stays_whole() -> None:
    model, spec = unet(), spec_named(UNET)
    assert spec and spec.bands
    own = layout(1, 16)
    one_row = torch.zeros(1, 1, 1, 1)  # which is added to all rows
    control = {"output": [None, torch.arange(64.0).reshape(1, 1, 8, 8), one_row, torch.zeros(1, 1, 5, 5)]}
    banded = BandedModel(model, spec.bands, own)
    args, kwargs = banded.enter(model, (LATENTS,), RIGHT | {"control": control})
    banded.functions.__exit__(None, None, None)
    cut = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    assert cut["x"].shape == (2, 4, 8, 16) and cut["context"] is TEXT
    assert torch.equal(cut["control"]["output"][1], control["output"][1][:, :, 4:])
    assert cut["control"]["output"][2] is one_row and cut["control"]["output"][3] is None
    assert len(control["output"]) == 4 and cut["control"]["output"] is not control["output"]


FORWARD = ForwardCost(Cost(100, 50, 20, 10), Cost(), 5, 8.0, 40.0, 4.0, 4, exchanges=5)


def test_auto_lists_bands_where_their_cost_is_known() -> None:
    shared, alone = ParallelPlan(ring=2), ParallelPlan(dp=2)
    assert list_model_plans(2, unet(), Work(1, forward=FORWARD)) == [shared, alone]
    assert list_model_plans(2, unet(), Work(1)) == [alone]
