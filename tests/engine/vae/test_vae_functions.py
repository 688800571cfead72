"""What a VAE does that cannot be split over ranks is refused by name, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from parallel_backend.errors import RequestError
from parallel_backend.groups.mesh import Axis
from parallel_backend.models.bands import BandTraits
from parallel_backend.seams.bands.functions import CHECK_EVERY, BandFunctions
from parallel_backend.seams.bands.rows import RowBands
from parallel_backend.vae.pipeline import check_vae
from tests.support.cases.vaes.vae_cases import CASES

BAND = torch.zeros(1, 4, 6, 8)  # of the three latent rows of one of two ranks, at a level of twice as many
VIDEO = BAND.unsqueeze(2)
KERNEL = torch.zeros(4, 4, 3, 3)
Call = Callable[[], object]


def functions(rows: int = 6, check: Callable[[], None] = lambda: None) -> BandFunctions:
    bands = RowBands(Axis(None, 2, 0))
    bands.rows = rows
    return BandFunctions(bands, BandTraits(), check)


@pytest.mark.parametrize(
    ("says", "call"),
    [
        ("interpolation of mode 'bilinear'", lambda: F.interpolate(BAND, scale_factor=2, mode="bilinear")),
        ("interpolation of mode 'nearest' by 1.5", lambda: F.interpolate(BAND, scale_factor=1.5)),
        ("interpolation", lambda: F.interpolate(BAND, (12, 16))),
        ("interpolation of mode 'nearest'", lambda: F.interpolate(BAND, (9, 16))),
        ("interpolation", lambda: torch.nn.Upsample(scale_factor=(1.5, 2.0))(BAND)),
        ("pooling with overlaps", lambda: F.avg_pool2d(BAND, 3, 2)),
        ("pooling with overlaps", lambda: F.avg_pool3d(VIDEO, (1, 2, 2), (1, 1, 2))),
        ("max_pool2d", lambda: F.max_pool2d(BAND, 2)),
        ("padding of mode 'circular'", lambda: F.pad(BAND, (1, 1, 1, 1), mode="circular")),
        ("padding of mode 'constant' by 4", lambda: F.pad(BAND, (0, 0, 4, 0))),
        ("padding of mode 'constant' by -1", lambda: F.pad(BAND, (0, 0, -1, 0))),
        ("a convolution of 3 rows, padded by 2", lambda: F.conv2d(BAND, KERNEL, padding=2)),
        ("a convolution of 9 rows", lambda: F.conv2d(BAND, torch.zeros(4, 4, 9, 1), padding=(4, 0))),
        ("padding='same'", lambda: F.conv2d(BAND, KERNEL, padding="same")),
        ("transposed convolution", lambda: F.conv_transpose2d(BAND, KERNEL, stride=2)),
        ("a batch norm in training", lambda: torch.nn.BatchNorm2d(4)(BAND)),
        ("instance_norm", lambda: F.instance_norm(BAND)),
        ("roll", lambda: torch.roll(BAND, 1, 2)),
        ("unfold", lambda: F.unfold(BAND, 3)),
        ("attention with a mask", lambda: F.scaled_dot_product_attention(BAND, BAND, BAND, is_causal=True)),
        ("noise of shape", lambda: torch.randn(1, 4, 7, 8)),
        ("rand_like", lambda: torch.rand_like(BAND)),
    ],
)
def test_what_looks_beyond_a_band_in_an_unknown_way_is_refused_by_name(says: str, call: Call) -> None:
    with functions(), pytest.raises(RequestError, match=says):
        call()


def test_all_ranks_ask_whether_to_go_on_at_the_same_convolutions() -> None:
    asked = []
    with functions(0, lambda: asked.append(None)):
        for _ in range(3 * CHECK_EVERY + 1):
            F.conv2d(BAND, KERNEL)
    assert len(asked) == 3


class Blur(torch.nn.Module):
    """A layer that nobody has heard of."""


def test_a_layer_that_is_not_known_is_refused_by_its_name() -> None:
    vae = CASES["square"].build()
    vae.decoder.mid_block.resnets[0].conv1 = Blur()
    with pytest.raises(RequestError, match=r"decoder\.mid_block\.resnets\.0\.conv1 is a Blur of .*test_vae_functions"):
        check_vae(vae)
