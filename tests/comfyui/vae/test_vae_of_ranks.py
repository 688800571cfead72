"""A VAE in the worker group: its weights come once, it can be given up, parked and let go, and may lack memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.cases.vaes.vae_cases import Weights, save_decoder
from tests.support.group.direct_group import go_on
from worker.comfyui.source import VaeSource
from worker.comfyui.vae import fingerprint
from worker.errors import RequestRefused
from worker.host.client import WorkerGroup
from worker.wire.operations import PARK, UNLOAD

SMALL = (8, 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vae")


@pytest.fixture(scope="module")
def weights(folder: Path) -> Weights:
    return save_decoder(folder / "decoder.safetensors")


@pytest.fixture(scope="module")
def source(comfyui: Path, folder: Path, weights: Weights) -> VaeSource:
    arguments = ("--cpu", "--use-pytorch-cross-attention")
    return VaeSource(str(comfyui), arguments, str(folder / "decoder.safetensors"), "AutoencoderKL", "float32")


def no_weights() -> Weights:
    raise AssertionError("the ranks have a file")


def latents(*sizes: int) -> torch.Tensor:
    return torch.randn(1, 4, *sizes, generator=torch.Generator().manual_seed(1))


def decode(
    group: WorkerGroup,
    source: VaeSource,
    sizes: tuple[int, int] = SMALL,
    send: Callable[[], Weights] = no_weights,
    check: Callable[[], None] = go_on,
    direction: str = "decode",
) -> torch.Tensor:
    return group.run_vae(direction, source.to_json(), {"input": latents(*sizes)}, send, 2, check)["result"]


def test_weights_are_sent_once_and_again_when_they_are_let_go(
    group_of_two: WorkerGroup, source: VaeSource, weights: Weights
) -> None:
    """Another VAE in between, or Free, takes them out of the ranks."""
    sent = replace(source, file="", fingerprint=fingerprint(weights))
    asked = []

    def send() -> Weights:
        asked.append(None)
        return weights

    expected = decode(group_of_two, source)
    for _ in range(2):
        assert torch.equal(decode(group_of_two, sent, send=send), expected)
    assert len(asked) == 1
    decode(group_of_two, source)
    assert torch.equal(decode(group_of_two, sent, send=send), expected)
    group_of_two._request(UNLOAD.header(), {}, go_on)
    assert torch.equal(decode(group_of_two, sent, send=send), expected)
    assert len(asked) == 3


def test_weights_that_make_another_vae_than_comfyuis_are_refused(
    group_of_two: WorkerGroup, source: VaeSource, weights: Weights
) -> None:
    sent = replace(source, file="", fingerprint=fingerprint(weights), structure="of another")
    with pytest.raises(RequestRefused, match="build a different AutoencoderKL than ComfyUI's"):
        decode(group_of_two, sent, send=lambda: weights)


def test_a_decode_in_a_callback_of_another_request_is_refused_and_both_go_on(
    group_of_two: WorkerGroup, source: VaeSource
) -> None:
    """As of a node that shows each step of a sampling by its VAE: ComfyUI's device computes that."""
    said: list[str] = []

    def decode_another() -> None:
        if group_of_two.session and group_of_two.session.operation == "vae" and not said:
            with pytest.raises(RequestRefused) as caught:
                decode(group_of_two, source)
            said.append(str(caught.value))

    expected = decode(group_of_two, source, (24, 24))
    assert torch.equal(decode(group_of_two, source, (24, 24), check=decode_another), expected)
    assert said == ["The ranks are at work on the sampling in which they are asked for this."]


@pytest.mark.parametrize(
    "park",
    [lambda group: group._request(PARK.header(), {}, go_on), lambda group: group.park()],
    ids=["parked", "of a CPU, which drop all"],
)
def test_a_parked_vae_comes_back_as_it_was(
    park: Callable[[WorkerGroup], object], group_of_two: WorkerGroup, source: VaeSource
) -> None:
    expected = decode(group_of_two, source)
    assert park(group_of_two) and group_of_two.status()["state"] == "parked"
    assert torch.equal(decode(group_of_two, source), expected)
    assert group_of_two.status()["state"] == "ready"
