"""The parallel VAE's nodes against the stock ones, through the API queue."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL
from PIL import Image
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost, PromptError
from tests.support.cases.vae_cases import config
from tests.support.host.graphs import Graph, Job, Link, latents, ranks, relative_error

STOCK_WIDTHS = (128, 256, 512, 512)  # ComfyUI knows no others
VAE = "tiny.safetensors"
SEED = 5


@pytest.fixture(scope="module")
def vae(models: Path) -> str:
    """A stock VAE file with random weights."""
    torch.manual_seed(0)
    model = AutoencoderKL(**config(STOCK_WIDTHS, groups=32, layers=2))
    (models / "models" / "vae").mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, models / "models/vae" / VAE)
    return VAE


def decoded(host: ComfyHost, latent: Path, node: str, **inputs: object) -> np.ndarray:
    """The picture, 0 to 255."""
    graph = Graph()
    if node == "VAEDecode":
        inputs = {"vae": graph.add("VAELoader", vae_name=VAE)}
    image = graph.add(node, samples=graph.add("LoadLatent", latent=latent.name), **inputs)
    graph.add("SaveImage", images=image, filename_prefix="vae")
    outputs = host.run(graph.prompt)["outputs"]
    (saved,) = [image for output in outputs.values() for image in output.get("images", [])]
    return np.asarray(Image.open(host.output_file(saved))).astype(int)


def picture(graph: Graph) -> Link:
    return graph.add("LoadImage", image="picture.png")


def test_decode_and_encode_are_the_stock_ones(host: ComfyHost, models: Path, vae: str) -> None:
    latents(host, Job("tiny-dit", plan={"ulysses": 2}).prompt())
    before = ranks(host)
    path = models / "input" / "for-vae.latent"
    latent = 3 * torch.randn(1, 4, 9, 8, generator=torch.manual_seed(SEED))
    save_file({"latent_tensor": latent, "latent_format_version_0": torch.tensor([])}, path)
    parallel = decoded(host, path, "ParallelDiT_VAEDecode", vae_name=vae, dtype="fp32")
    stock = decoded(host, path, "VAEDecode")
    assert stock.std() > 5, "a picture that is all grey says nothing"
    assert abs(parallel - stock).max() <= 1
    Image.fromarray(stock.astype(np.uint8)).resize((70, 69)).save(models / "input" / "picture.png")
    graph = Graph()
    encoded = graph.add("ParallelDiT_VAEEncode", pixels=picture(graph), vae_name=vae, dtype="fp32")
    graph.add("SaveLatent", samples=encoded, filename_prefix="parallel")
    other = Graph()
    stock_encoded = other.add("VAEEncode", pixels=picture(other), vae=other.add("VAELoader", vae_name=VAE))
    other.add("SaveLatent", samples=stock_encoded, filename_prefix="stock")
    assert relative_error(latents(host, graph.prompt), latents(host, other.prompt)) <= 1e-4
    assert ranks(host) == before


def test_a_wrong_file_or_latent_is_refused_and_the_group_lives(host: ComfyHost, models: Path, vae: str) -> None:
    latents(host, Job("tiny-dit", plan={"ulysses": 2}).prompt())
    before = ranks(host)
    weights = load_file(models / "models" / "vae" / vae)
    del weights["decoder.conv_in.weight"]
    save_file(weights, models / "models" / "vae" / "half.safetensors")
    path = models / "input" / "wrong.latent"
    for name, channels, words in (("half.safetensors", 4, "half.safetensors is no VAE"), (vae, 16, "16")):
        latent = torch.randn(1, channels, 8, 8)
        save_file({"latent_tensor": latent, "latent_format_version_0": torch.tensor([])}, path)
        with pytest.raises(PromptError) as caught:
            decoded(host, path, "ParallelDiT_VAEDecode", vae_name=name, dtype="fp32")
        assert words in caught.value.message
    assert latents(host, Job("tiny-dit", plan={"ulysses": 2}).prompt()).isfinite().all()
    assert ranks(host) == before
