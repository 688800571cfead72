"""The parallel VAE's nodes against the stock ones, through the API queue."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost, PromptError
from tests.support.cases.vaes.vae_cases import config
from tests.support.host.graphs import Graph, Job, Link, latents, ranks, relative_error, saved_latents
from tests.support.programs import run_program

STOCK_WIDTHS = (128, 256, 512, 512)  # ComfyUI knows no others
IMAGE, WAN, LTX = "tiny.safetensors", "wan.safetensors", "ltx.safetensors"
MINIMAX, SOUND = "minimax.safetensors", "minimax-sound.safetensors"
# Latents (B, C, T, H, W), and pictures (frames, H, W, channels) of no multiple of the VAE's scale.
SIZES = {
    IMAGE: ((1, 4, 9, 8), (1, 69, 70, 3)),
    WAN: ((1, 16, 3, 7, 5), (6, 61, 40, 3)),
    LTX: ((1, 128, 2, 3, 3), (9, 96, 64, 3)),
    MINIMAX: ((1, 24, 12, 5, 3), (25, 83, 50, 3)),
}
SOUND_SIZE = (1, 32, 2, 11)
TOLERANCE = 1e-5
SEED = 5
_saves = itertools.count()  # a file each, as the host caches what it has saved


@pytest.fixture(scope="module")
def vaes(models: Path, comfyui: Path) -> Path:
    """A stock VAE file with random weights, and three of videos; a latent and pictures for each. A VAE of a video's
    sound, and a latent for it. Returns their folder."""
    folder = models / "models" / "vae"
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = AutoencoderKL(**config(STOCK_WIDTHS, groups=32, layers=2))
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / IMAGE)
    run_program(comfyui, "tests.support.files.video_vaes", folder)
    for name, (latent, pictures) in SIZES.items():
        draw = torch.Generator().manual_seed(SEED)
        write_latent(models, name, torch.randn(latent, generator=draw))
        save_file({"pictures": torch.rand(pictures, generator=draw)}, models / "input" / name)
    write_latent(models, SOUND, torch.randn(SOUND_SIZE, generator=torch.Generator().manual_seed(SEED)))
    return folder


def write_latent(models: Path, name: str, latent: torch.Tensor) -> None:
    kept = {"latent_tensor": latent, "latent_format_version_0": torch.tensor([])}
    save_file(kept, models / "input" / f"{name}.latent")


def loaded(graph: Graph, name: str) -> Link:
    return graph.add("VAELoader", vae_name=name)


def add_save(graph: Graph, samples: Link) -> Link:
    return graph.add("SaveLatent", samples=samples, filename_prefix=f"vae-{next(_saves)}")


def saved(host: ComfyHost, graph: Graph, samples: Link) -> torch.Tensor:
    add_save(graph, samples)
    return latents(host, graph.prompt)


def decoded(
    host: ComfyHost, name: str, node: str, latent: str = "", drawn: bool = False, **inputs: Any
) -> torch.Tensor:
    """The pictures in full precision; drawn: with the random numbers that are drawn next."""
    graph = Graph()
    samples = graph.add("LoadLatent", latent=f"{latent or name}.latent")
    if drawn:
        samples = graph.add("Test_Seeded", samples=samples, vae=loaded(graph, name), seed=SEED)
    if inputs.pop("connected", node == "VAEDecode"):
        inputs["vae"] = loaded(graph, name)
    if how := inputs.pop("changed", ""):
        inputs["vae"] = graph.add("Test_ChangedVAE", vae=inputs["vae"], how=how)
    pictures = graph.add(node, samples=samples, **inputs)
    return saved(host, graph, graph.add("Test_Drawn" if drawn else "Test_Numbers", pictures=pictures))


def encoded(host: ComfyHost, name: str, node: str, connected: bool = False, **inputs: Any) -> torch.Tensor:
    graph = Graph()
    if connected or node == "VAEEncode":
        inputs["vae"] = loaded(graph, name)
    latent = graph.add(node, pixels=graph.add("Test_Pictures", name=name), **inputs)
    return saved(host, graph, latent)


@pytest.fixture(scope="module")
def two_ranks(host: ComfyHost) -> list[int]:
    latents(host, Job("tiny-dit", plan={"ulysses": 2}).prompt())
    return ranks(host)


@pytest.mark.parametrize("connected", [False, True], ids=["a file", "a stock VAE"])
@pytest.mark.parametrize("name", [IMAGE, WAN, MINIMAX])
def test_decode_and_encode_are_the_stock_ones(
    host: ComfyHost, vaes: Path, two_ranks: list[int], name: str, connected: bool
) -> None:
    """vae_name is there in any case, as the node has it."""
    given = {"vae_name": name if not connected else IMAGE, "dtype": "auto", "connected": connected}
    stock = decoded(host, name, "VAEDecode")
    assert stock.std() > 0.02, "a picture that is all grey says nothing"
    assert relative_error(decoded(host, name, "ParallelDiT_VAEDecode", **given), stock) <= TOLERANCE
    parallel = encoded(host, name, "ParallelDiT_VAEEncode", **given)
    assert relative_error(parallel, encoded(host, name, "VAEEncode")) <= TOLERANCE
    assert ranks(host) == two_ranks


def test_a_vae_that_draws_noise_draws_what_the_stock_one_draws(
    host: ComfyHost, vaes: Path, two_ranks: list[int]
) -> None:
    """And what is drawn after it is the same, too."""
    stock = decoded(host, LTX, "VAEDecode", drawn=True)
    given = {"vae_name": LTX, "dtype": "fp32", "drawn": True}
    for connected in (False, True):
        parallel = decoded(host, LTX, "ParallelDiT_VAEDecode", connected=connected, **given)
        assert relative_error(parallel, stock) <= TOLERANCE
    assert (
        relative_error(
            encoded(host, LTX, "ParallelDiT_VAEEncode", True, vae_name=LTX, dtype="auto"),
            encoded(host, LTX, "VAEEncode"),
        )
        <= TOLERANCE
    )


def test_a_video_and_its_sound_are_decoded_from_one_latent(host: ComfyHost, vaes: Path, two_ranks: list[int]) -> None:
    """The video by all ranks, the sound by the stock node beside them, in one prompt."""

    def both(node: str, **inputs: Any) -> list[torch.Tensor]:
        graph = Graph()
        parts = (graph.add("LoadLatent", latent=f"{name}.latent") for name in (MINIMAX, SOUND))
        samples = graph.add("LTXVConcatAVLatent", **dict(zip(("video_latent", "audio_latent"), parts, strict=True)))
        found = graph.add(node, samples=samples, vae=loaded(graph, MINIMAX), **inputs)
        sound = graph.add("VAEDecodeAudio", samples=samples, vae=loaded(graph, SOUND))
        kept = [add_save(graph, graph.add("Test_Numbers", pictures=each)) for each in (found, sound)]
        outputs = host.run(graph.prompt)["outputs"]
        return [saved_latents(host, {"outputs": {node: outputs[node]}}) for node, _ in kept]

    stock, parallel = both("VAEDecode"), both("ParallelDiT_VAEDecode", vae_name=IMAGE, dtype="auto")
    assert [each.std() > 0.01 for each in stock] == [True, True], "silence and grey say nothing"
    assert [each.shape for each in stock] == [(39, 80, 48, 3), (1, 2, 8800)]
    assert [relative_error(*pair) <= TOLERANCE for pair in zip(parallel, stock, strict=True)] == [True, True]


def test_a_quantised_vae_is_the_stock_one(host: ComfyHost, comfyui: Path, vaes: Path, two_ranks: list[int]) -> None:
    if "minimax_quant" not in (comfyui / "comfy" / "sd.py").read_text():
        pytest.skip("this ComfyUI reads no quantised VAE; 0.33 does")
    run_program(comfyui, "tests.support.files.quantise", vaes / MINIMAX, "fp8")  # int8 rounds activations, too
    name = "minimax-fp8.safetensors"
    stock = decoded(host, name, "VAEDecode", MINIMAX)
    assert relative_error(stock, decoded(host, MINIMAX, "VAEDecode")) > 1e-3
    for connected in (False, True):
        given = {"vae_name": name, "dtype": "auto", "connected": connected}
        assert relative_error(decoded(host, name, "ParallelDiT_VAEDecode", MINIMAX, **given), stock) <= TOLERANCE


def test_another_dtype_is_computed_in(host: ComfyHost, vaes: Path, two_ranks: list[int]) -> None:
    exact = decoded(host, WAN, "VAEDecode")
    half = decoded(host, WAN, "ParallelDiT_VAEDecode", vae_name=WAN, dtype="bf16", connected=True)
    assert 1e-4 < relative_error(half, exact) < 0.1


def test_weights_that_a_node_has_written_to_are_sent(host: ComfyHost, vaes: Path, two_ranks: list[int]) -> None:
    given = {"vae_name": WAN, "dtype": "auto", "connected": True}
    before = decoded(host, WAN, "ParallelDiT_VAEDecode", **given)
    changed = decoded(host, WAN, "ParallelDiT_VAEDecode", changed="weights", **given)
    assert relative_error(changed, before) > 1e-3
    stock = decoded(host, WAN, "VAEDecode", connected=True, changed="weights")
    assert relative_error(changed, stock) <= TOLERANCE


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("patch", "change of its patches"),
        ("hook", "change of its decoder"),
        ("method", "decode"),
        ("memory", "cannot cut its pictures into tiles"),  # where ComfyUI's own would be
    ],
)
def test_what_a_node_has_put_on_a_vae_is_refused(host: ComfyHost, vaes: Path, how: str, says: str) -> None:
    with pytest.raises(PromptError) as caught:
        decoded(host, WAN, "ParallelDiT_VAEDecode", vae_name=WAN, dtype="auto", connected=True, changed=how)
    assert says in caught.value.message


def test_a_wrong_file_vae_or_latent_is_refused_and_the_group_lives(
    host: ComfyHost, models: Path, vaes: Path, two_ranks: list[int]
) -> None:
    vectors = {name: tensor for name, tensor in load_file(vaes / IMAGE).items() if tensor.ndim == 1}
    save_file(vectors, vaes / "half.safetensors")
    (vaes / "cut.safetensors").write_bytes((vaes / IMAGE).read_bytes()[:1000])
    write_latent(models, "wrong", torch.randn(1, 5, 8, 8))
    write_latent(models, "image", torch.randn(1, 16, 8, 8))
    wrong = [
        ("half.safetensors", IMAGE, {}, "half.safetensors is no VAE"),
        ("cut.safetensors", IMAGE, {}, "cut.safetensors"),
        (IMAGE, "wrong", {}, "this VAE takes (batch, 4, height, width)"),
        (WAN, "image", {}, "this VAE takes (batch, 16, frames, height, width)"),
        ("pixel_space", IMAGE, {"connected": True}, "class PixelspaceConversionVAE"),
    ]
    for name, latent, more, says in wrong:
        with pytest.raises(PromptError) as caught:
            decoded(host, name, "ParallelDiT_VAEDecode", latent, vae_name=IMAGE if more else name, dtype="fp32", **more)
        assert says in caught.value.message
    assert ranks(host) == two_ranks
