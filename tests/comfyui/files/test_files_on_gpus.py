"""Files in every quantised format, through a ComfyUI that has the GPUs: the ranks draw what its own loader draws.

With --device cpu, in a ComfyUI without them. How near, the report of `python3 dev.py gpu` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from demo.host import ComfyHost, PromptError
from tests.support.cases.files.formats import FORMATS
from tests.support.host.graphs import GROUPS_BY_SIZE, latents, relative_error
from tests.support.host.stock_prompts import host_with_cases, prompt
from tests.support.programs import run_program

pytestmark = pytest.mark.gpu

CASE = "longcat-image"
Draw = Callable[[str], torch.Tensor]


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> str:
    return request.config.getoption("--device")


@pytest.fixture(scope="module")
def gpu_host(comfyui: Path, device: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyHost]:
    """A ComfyUI on the device, with the case in every format."""
    base = tmp_path_factory.mktemp("base")
    host = host_with_cases(comfyui, base, [CASE], cpu=device == "cpu")
    file = base / "models" / "diffusion_models" / f"{CASE}.safetensors"
    run_program(comfyui, "tests.support.files.quantise", file, *FORMATS)
    with host:
        yield host


@pytest.fixture(scope="module")
def stock(gpu_host: ComfyHost) -> Draw:
    """What ComfyUI's own loader draws of a file."""

    @cache
    def draw(model: str) -> torch.Tensor:
        try:
            return latents(gpu_host, prompt(CASE, model=model))
        except PromptError as refusal:
            pytest.skip(f"ComfyUI's own loader cannot: {refusal}")

    return draw


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("form", FORMATS)
def test_a_quantised_file_draws_what_the_stock_loader_draws(
    form: str, ranks: int, device: str, gpu_host: ComfyHost, stock: Draw, record_property: Callable[[str, object], None]
) -> None:
    """As near as to differ by less than stock's does from what is not quantised."""
    record_property("group", f"quantised files in ComfyUI, {ranks} rank{'s' if ranks > 1 else ''}")
    if device == "cuda" and ranks > torch.cuda.device_count():
        pytest.skip(f"needs {ranks} GPUs, and there is one here")
    model = f"{CASE}-{form}.safetensors"
    right = stock(model)
    own_error = relative_error(right, stock(f"{CASE}.safetensors"))
    ours = prompt(CASE, {"ulysses": ranks}, model=model, group=GROUPS_BY_SIZE[ranks])
    error = relative_error(latents(gpu_host, ours), right)
    record_property("error", error)
    assert error <= own_error
