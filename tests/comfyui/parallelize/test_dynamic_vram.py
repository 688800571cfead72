"""*Parallelize Model* in a ComfyUI with dynamic VRAM, as on NVIDIA's cards: behind models that have run as stock.

A changed model sampling before the node is left out. ComfyUI restores a model's buffers by their names, and so gives
those of one model sampling to another: after some prompts with and without it, stock itself draws another image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from demo.host import PACK_NAME, ComfyHost
from tests.comfyui.parallelize import test_parallelize
from tests.comfyui.parallelize.test_parallelize import files, stock  # noqa: F401
from tests.conftest import HOST_ENV, own_base_in
from tests.support.host.graphs import NODE_PACK

ARGUMENTS = ("--whitelist-custom-nodes", PACK_NAME, NODE_PACK, "--enable-dynamic-vram", "--disable-pinned-memory")
PLAN = {"ulysses": 2}


@pytest.fixture(scope="module")
def host(comfyui: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyHost]:
    base = own_base_in(tmp_path_factory.mktemp("dynamic-vram"), models)
    with ComfyHost(comfyui, base, extra_args=ARGUMENTS, env=HOST_ENV) as host:
        assert "DynamicVRAM support detected and enabled" in host.log.read_text()
        yield host


@pytest.mark.parametrize("line", ["behind a merge", "behind the loader", "behind a LoRA"])
def test_it_draws_what_stock_draws(line: str, host: ComfyHost, stock: Callable[..., torch.Tensor]) -> None:  # noqa: F811
    test_parallelize.test_it_draws_what_stock_draws_wherever_it_stands(line, PLAN, host, stock)


def test_it_reads_a_checkpoint(host: ComfyHost, stock: Callable[..., torch.Tensor]) -> None:  # noqa: F811
    test_parallelize.test_it_reads_a_checkpoint(PLAN, host, stock)
