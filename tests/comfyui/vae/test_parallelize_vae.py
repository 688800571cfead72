"""*Parallelize VAE* behind stock loaders, with the stock nodes that use a VAE, against the same without the node."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost
from tests.support.cases.vaes.vae_cases import config
from tests.support.group.memory import little_memory
from tests.support.host.faults import wait_until
from tests.support.host.graphs import Graph, Link, latents, ranks, relative_error, saved_latents, status, write_latent
from tests.support.host.stock_prompts import write_cases
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
# Of several tiles: latents, pictures, and what the stock nodes for tiles ask for.
TILED = {IMAGE: ((1, 4, 9, 12), (1, 72, 96, 3)), WAN: ((1, 16, 3, 12, 5), (5, 96, 40, 3))}
TILES = {"tile_size": 64, "overlap": 16, "temporal_size": 64, "temporal_overlap": 8}
CHECKPOINT, MODEL = "with-vae.safetensors", "longcat-image"
TOLERANCE = 1e-5
SEED = 5
SAID = "The VAE runs as stock, on ComfyUI's own device alone."
_saves = itertools.count()  # a file each, as the host caches what it has saved

Sampled = Callable[[Graph, Link], Link]  # what uses a VAE: it returns what Save Latent saves


@pytest.fixture(scope="module", autouse=True)
def vaes(models: Path, comfyui: Path) -> Path:
    """A stock VAE file with random weights, and three of videos; a latent and pictures for each. A VAE of a video's
    sound, and a latent for it. Returns their folder."""
    folder = models / "models" / "vae"
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = AutoencoderKL(**config(STOCK_WIDTHS, groups=32, layers=2))
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / IMAGE)
    run_program(comfyui, "tests.support.files.stock_files:write_video_vaes", folder)
    draw = torch.Generator().manual_seed(SEED)
    for sizes, start in ((SIZES, ""), (TILED, "tiled-")):
        for name, (latent, pictures) in sizes.items():
            write_latent(models, f"{start}{name}", torch.randn(latent, generator=draw))
            save_file({"pictures": torch.rand(pictures, generator=draw)}, models / "input" / f"{start}{name}")
    write_latent(models, SOUND, torch.randn(SOUND_SIZE, generator=draw))
    return folder


def add_save(graph: Graph, samples: Link) -> Link:
    return graph.add("SaveLatent", samples=samples, filename_prefix=f"vae-{next(_saves)}")


def parallelized(graph: Graph, vae: Link, dtype: str = "auto") -> Link:
    return graph.add("ParallelDiT_ParallelizeVAE", vae=vae, dtype=dtype, group=1)


def used(
    host: ComfyHost,
    name: str,
    use: Sampled,
    parallel: bool,
    loader: str = "VAELoader",
    changed: str = "",
    behind: str = "",
    dtype: str = "auto",
) -> torch.Tensor:
    """What a use of a VAE gives. changed: by a node before ours. behind: by a node behind it."""
    graph = Graph()
    vae = graph.add("VAELoader", vae_name=name) if loader == "VAELoader" else graph.add(loader, ckpt_name=name)
    vae = [vae[0], 2] if loader != "VAELoader" else vae
    if changed:
        vae = graph.add("Test_ChangedVAE", vae=vae, how=changed)
    if parallel:
        vae = parallelized(graph, vae, dtype)
    if behind:
        vae = graph.add("Test_ChangedVAE", vae=vae, how=behind)
    add_save(graph, use(graph, vae))
    return latents(host, graph.prompt, as_stock=True)  # callers look at what ranks have done


def calls(host: ComfyHost) -> int:
    """How often ranks have run a VAE, or said that they lack its weights."""
    return status(host).get("counts", {}).get("vae", 0)


def check_shared(host: ComfyHost, name: str, use: Sampled, tolerance: float = TOLERANCE, **more: Any) -> torch.Tensor:
    """Compares a use that the ranks share with stock's. Returns stock's."""
    before = calls(host)
    stock = used(host, name, use, False, **more)
    assert stock.std() > 0.02, "a picture that is all grey says nothing"
    assert calls(host) == before
    assert relative_error(used(host, name, use, True, **more), stock) <= tolerance
    assert calls(host) > before, "it ran as stock"
    return stock


def check_stock(host: ComfyHost, name: str, use: Sampled, says: str, **more: Any) -> None:
    """The node or its use says why the ranks do not share it, and it gives stock's bits."""
    changed = {"changed": how} if (how := more.get("changed") or more.get("behind", "")) else {}
    stock = used(host, name, use, False, **changed)
    before, log = calls(host), len(host.log.read_text())
    found = used(host, name, use, True, **more)
    assert torch.equal(found.nan_to_num(9), stock.nan_to_num(9))
    assert calls(host) == before
    lines = [line for line in host.log.read_text()[log:].splitlines() if SAID in line]
    assert len(lines) == 1 and says in lines[0], lines


def decode(latent: str, node: str = "VAEDecode", drawn: bool = False, **inputs: Any) -> Sampled:
    """The pictures in full precision. drawn: with the random numbers that are drawn next."""

    def use(graph: Graph, vae: Link) -> Link:
        samples = graph.add("LoadLatent", latent=f"{latent}.latent")
        if drawn:
            samples = graph.add("Test_Seeded", samples=samples, vae=vae, seed=SEED)
        pictures = graph.add(node, samples=samples, vae=vae, **inputs)
        return graph.add("Test_Drawn" if drawn else "Test_Numbers", pictures=pictures)

    return use


def encode(pictures: str, node: str = "VAEEncode", **inputs: Any) -> Sampled:
    return lambda graph, vae: graph.add(node, pixels=graph.add("Test_Pictures", name=pictures), vae=vae, **inputs)


@pytest.mark.parametrize("changed", ["", "nameless"], ids=["a file", "by value"])
@pytest.mark.parametrize("name", [IMAGE, WAN, MINIMAX])
def test_decode_and_encode_are_the_stock_ones(host: ComfyHost, name: str, changed: str) -> None:
    """The weights of a file are not sent: the first call needs no second request."""
    used(host, WAN if name == IMAGE else IMAGE, decode(WAN if name == IMAGE else IMAGE), True)
    before = calls(host)
    check_shared(host, name, decode(name), changed=changed)
    assert calls(host) - before == (2 if changed else 1)
    pids = ranks(host)
    check_shared(host, name, encode(name), changed=changed)
    assert ranks(host) == pids


@pytest.mark.parametrize("name", TILED)
def test_tiles_that_a_node_asks_for_run_one_by_one_in_the_ranks(host: ComfyHost, name: str) -> None:
    before = calls(host)
    stock = check_shared(host, name, decode(f"tiled-{name}", "VAEDecodeTiled", **TILES))
    assert calls(host) - before >= 2, "there is one tile"
    assert relative_error(stock, used(host, name, decode(f"tiled-{name}"), False)) > 1e-3, "tiles change nothing"
    check_shared(host, name, encode(f"tiled-{name}", "VAEEncodeTiled", **TILES))


def test_a_vae_that_cuts_tiles_itself_runs_in_the_ranks_when_a_node_asks_for_others(host: ComfyHost) -> None:
    stock = check_shared(host, MINIMAX, decode(MINIMAX, "VAEDecodeTiled", **TILES))
    assert relative_error(stock, used(host, MINIMAX, decode(MINIMAX), True)) <= TOLERANCE


def test_a_checkpoints_vae_is_read_from_the_checkpoint(
    host: ComfyHost, comfyui: Path, models: Path, vaes: Path
) -> None:
    write_cases(comfyui, models, [MODEL])
    model = load_file(models / "models" / "diffusion_models" / f"{MODEL}.safetensors")
    weights = {f"model.diffusion_model.{name}": tensor for name, tensor in model.items()}
    weights |= {f"vae.{name}": tensor for name, tensor in load_file(vaes / WAN).items()}
    folder = models / "models" / "checkpoints"
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / CHECKPOINT)
    used(host, IMAGE, decode(IMAGE), True)
    before = calls(host)
    check_shared(host, CHECKPOINT, decode(WAN), loader="CheckpointLoaderSimple")
    assert calls(host) - before == 1, "its weights were sent"


def test_a_vae_that_draws_noise_draws_what_the_stock_one_draws(host: ComfyHost) -> None:
    """And what is drawn after it is the same, too."""
    for changed in ("", "nameless"):
        check_shared(host, LTX, decode(LTX, drawn=True), changed=changed)
    check_shared(host, LTX, encode(LTX))


def test_a_video_and_its_sound_are_decoded_from_one_latent(host: ComfyHost) -> None:
    """The video by all ranks. The ranks cannot share the sound's VAE, which runs as stock."""

    def both(parallel: bool) -> list[torch.Tensor]:
        graph = Graph()
        parts = (graph.add("LoadLatent", latent=f"{name}.latent") for name in (MINIMAX, SOUND))
        samples = graph.add("LTXVConcatAVLatent", **dict(zip(("video_latent", "audio_latent"), parts, strict=True)))
        kept = []
        for node, name in (("VAEDecode", MINIMAX), ("VAEDecodeAudio", SOUND)):
            vae = graph.add("VAELoader", vae_name=name)
            found = graph.add(node, samples=samples, vae=parallelized(graph, vae) if parallel else vae)
            kept.append(add_save(graph, graph.add("Test_Numbers", pictures=found)))
        outputs = host.run(graph.prompt)["outputs"]
        return [saved_latents(host, {"outputs": {node: outputs[node]}}) for node, _ in kept]

    stock, before = both(False), calls(host)
    parallel = both(True)
    assert calls(host) > before
    assert [each.std() > 0.01 for each in stock] == [True, True], "silence and grey say nothing"
    assert [each.shape for each in stock] == [(39, 80, 48, 3), (1, 2, 8800)]
    assert [relative_error(*pair) <= TOLERANCE for pair in zip(parallel, stock, strict=True)] == [True, True]
    assert f"{SAID} A VAE of the class MiniMaxH3AudioVAE" in host.log.read_text()


def test_a_quantised_vae_is_the_stock_one(host: ComfyHost, comfyui: Path, vaes: Path) -> None:
    if "minimax_quant" not in (comfyui / "comfy" / "sd.py").read_text():
        pytest.skip("this ComfyUI reads no quantised VAE; 0.33 does")
    run_program(comfyui, "tests.support.files.quantise", vaes / MINIMAX, "fp8")  # int8 rounds activations, too
    name = "minimax-fp8.safetensors"
    for changed in ("", "nameless"):
        stock = check_shared(host, name, decode(MINIMAX), changed=changed)
    assert relative_error(stock, used(host, MINIMAX, decode(MINIMAX), False)) > 1e-3


def test_another_dtype_is_computed_in_and_the_last_node_of_two_counts(host: ComfyHost) -> None:
    exact = used(host, WAN, decode(WAN), False)
    half = used(host, WAN, decode(WAN), True, dtype="bf16")
    assert 1e-4 < relative_error(half, exact) < 0.1

    def again(graph: Graph, vae: Link) -> Link:
        return decode(WAN)(graph, parallelized(graph, vae, "bf16"))

    before = calls(host)
    assert torch.equal(used(host, WAN, again, True, dtype="fp32"), half)
    assert calls(host) > before


@pytest.mark.parametrize("place", ["changed", "behind"])
def test_weights_that_a_node_has_written_to_are_sent(host: ComfyHost, place: str) -> None:
    """By a node before ours or behind it. The file that the VAE names has others."""
    exact, before = used(host, WAN, decode(WAN), True), calls(host)
    changed = used(host, WAN, decode(WAN), True, **{place: "weights"})
    assert calls(host) - before == 2
    assert relative_error(changed, exact) > 1e-3
    assert relative_error(changed, used(host, WAN, decode(WAN), False, changed="weights")) <= TOLERANCE


@pytest.mark.parametrize("place", ["changed", "behind"])
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("patch", "A node has changed the VAE's patches"),
        ("hook", "A node has changed the VAE's decoder"),
        ("method", "A node has changed the VAE's decode"),
        ("convolution", "A node has changed the VAE's encoder.conv_in _conv_forward"),
    ],
)
def test_a_vae_that_a_node_has_changed_runs_as_stock_and_says_why(
    host: ComfyHost, place: str, how: str, says: str
) -> None:
    check_stock(host, IMAGE, decode(IMAGE), says, **{place: how})


def test_where_comfyui_lacks_memory_it_cuts_tiles_as_in_stock(host: ComfyHost) -> None:
    check_stock(host, IMAGE, decode(IMAGE), "no room for its share of the picture", changed="memory")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
def test_where_a_rank_lacks_memory_the_vae_runs_as_stock_and_the_group_lives(host: ComfyHost, models: Path) -> None:
    used(host, IMAGE, decode(IMAGE), True)
    write_latent(models, "square", torch.randn(1, 4, 24, 24))
    stock, pids = used(host, IMAGE, decode("square"), False), ranks(host)
    with little_memory(pids[1]):
        assert torch.equal(used(host, IMAGE, decode("square"), True), stock)
    assert f"{SAID} Rank 1" in host.log.read_text()
    check_shared(host, IMAGE, decode(IMAGE))
    assert ranks(host) == pids


def test_what_cannot_be_shared_runs_as_stock_and_the_group_lives(host: ComfyHost, models: Path, vaes: Path) -> None:
    used(host, WAN, decode(WAN), True)
    pids = ranks(host)
    write_latent(models, "not-finite", torch.full(SIZES[IMAGE][0], torch.nan))
    found = used(host, IMAGE, decode("not-finite", "VAEDecodeTiled", **TILES), True)
    assert found.isnan().all()
    assert host.log.read_text().count(f"{SAID} The latent holds NaN") == 1, "once for all tiles"
    check_stock(host, "pixel_space", encode(IMAGE), "A VAE of the class PixelspaceConversionVAE")
    assert ranks(host) == pids


def test_an_interrupt_ends_a_decode_and_the_same_ranks_run_the_next(host: ComfyHost, models: Path) -> None:
    expected, pids = used(host, IMAGE, decode(IMAGE), True), ranks(host)
    write_latent(models, "large", torch.randn(1, 4, 64, 64))
    graph = Graph()
    use = decode("large")
    add_save(graph, use(graph, parallelized(graph, graph.add("VAELoader", vae_name=IMAGE))))
    prompt_id = host.queue(graph.prompt)
    wait_until(lambda: status(host)["state"] == "busy")
    host.interrupt(prompt_id)
    entry = host.wait(prompt_id)
    assert "execution_interrupted" in [kind for kind, _ in entry["status"]["messages"]]
    assert torch.equal(used(host, IMAGE, decode(IMAGE), True), expected)
    assert ranks(host) == pids
