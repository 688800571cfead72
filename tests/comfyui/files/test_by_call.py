"""What one of ComfyUI's own classes is asked for decides how the ranks share it, which does not change the image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost, PromptError
from tests.support.host.graphs import (
    GROUPS_BY_SIZE,
    Graph,
    behind,
    groups,
    latents,
    ranks,
    relative_error,
    status,
)
from tests.support.host.stock_prompts import STEPS, prompt, write_cases

TOLERANCE = 1e-5
IMAGE, VIDEO = "longcat-image", "wan-2.1-vace"
# Models for which ComfyUI runs texts of different lengths one after the other.
IMAGES = (IMAGE, "qwen-image", "z-image", "lumina-2")
AUTO: dict[str, int] = {}
AXES = ("dp", "cfg", "ring", "ulysses")
TOKENS = ({"ulysses": 2}, {"ring": 2})  # shared by whichever is predicted to be faster
DECIDED = "[ParallelDiT] Flux: "


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path) -> Path:
    """The folder with the models. For images there is another negative text, which is longer; for the video there are
    texts without what is of as many frames."""
    write_cases(comfyui, models, [*IMAGES, VIDEO])
    for name in IMAGES:
        texts = load_file(models / "input" / f"{name} negative.safetensors")
        text = texts["conditioning"]
        longer = torch.cat([text, text[:, :4].flip(1)], 1)
        save_file({**texts, "conditioning": longer}, models / "input" / f"{name} longer.safetensors")
    for which in ("positive", "negative"):
        path = models / "input" / f"{VIDEO} {which}.safetensors"
        save_file({"conditioning": load_file(path)["conditioning"]}, path.with_stem(f"{VIDEO} {which} alone"))
    return models / "models" / "diffusion_models"


@contextmanager
def unreadable(file: Path) -> Iterator[None]:
    """While entered, another stands in the file's place, which is no model."""
    away = file.rename(file.with_suffix(".away"))
    file.write_bytes(b"no model")
    try:
        yield
    finally:
        away.replace(file)


def plan_of(host: ComfyHost) -> dict[str, int]:
    return {axis: degree for axis, degree in status(host)["plan"].items() if axis in AXES and degree > 1}


def plan_told(host: ComfyHost) -> str:
    """What the panel says of the last run."""
    return groups(host)[0]["runs"][0]["plan"]


def drawn(host: ComfyHost, name: str, plan: dict[str, int], **options: Any) -> int:
    """Draws under a plan what the stock loader's MODEL draws; how many requests it took."""
    right = latents(host, prompt(name, **options))
    host.run(prompt(name, plan, **options, steps=1))  # a group that runs
    before = status(host)["counts"]["call"]
    ours = latents(host, prompt(name, plan, **options))
    assert relative_error(ours, right) <= TOLERANCE
    return status(host)["counts"]["call"] - before


def test_an_automatic_plan_follows_from_what_a_sampling_brings(host: ComfyHost, files: Path) -> None:
    """Two ranks: cond and uncond apart, or else the images, or else the tokens; on the weights that are there."""
    two = {"size": (2, 16, 9, 12)}
    drawn(host, IMAGE, AUTO, cfg=2.0)
    assert plan_of(host) == {"cfg": 2}
    assert plan_told(host) == "cfg=2"
    assert "run side by side (cfg=2)" in status(host)["note"]
    decided = host.log.read_text().count(DECIDED)
    with unreadable(files / f"{IMAGE}.safetensors"):
        alone = latents(host, prompt(IMAGE, AUTO, cfg=1.0))
        assert plan_of(host) in TOKENS
        assert "This step has only one pass" in status(host)["note"]
        several = latents(host, prompt(IMAGE, AUTO, cfg=1.0, **two))
        assert plan_of(host) == {"dp": 2}
    assert relative_error(alone, latents(host, prompt(IMAGE, cfg=1.0))) <= TOLERANCE
    assert relative_error(several, latents(host, prompt(IMAGE, cfg=1.0, **two))) <= TOLERANCE
    assert host.log.read_text().count(DECIDED) == decided + 2, "each sampling decides once"


@pytest.mark.usefixtures("groups_by_size")
@pytest.mark.parametrize(("cfg", "plan"), [(2.0, [{"cfg": 2}]), (1.0, TOKENS)])
def test_the_parallel_samplers_automatic_plan_follows_from_its_guidance(
    cfg: float, plan: list[dict[str, int]], host: ComfyHost, files: Path
) -> None:
    options = {"cfg": cfg, "scheduler": "model's own", "negative": "longer", "size": (1, 16, 10, 12)}
    alone = latents(host, prompt(IMAGE, {"cfg": 1}, group=GROUPS_BY_SIZE[1], **options))
    assert relative_error(latents(host, prompt(IMAGE, AUTO, **options)), alone) <= TOLERANCE
    assert plan_of(host) in plan


def test_guidance_that_ends_leaves_no_rank_idle(host: ComfyHost, files: Path) -> None:
    """Uncond is there for the first steps alone: after two steps without, tokens are shared, and stay so."""

    def made(plan: dict[str, int] | None) -> dict:
        graph = Graph()
        graph.prompt = prompt(IMAGE, plan, steps=6)
        (sampler,) = (node["inputs"] for node in graph.prompt.values() if node["class_type"] == "KSampler")
        early = {"start": 0.0, "end": 0.25}
        sampler["negative"] = graph.add("ConditioningSetTimestepRange", conditioning=sampler["negative"], **early)
        return graph.prompt

    right = latents(host, made(None))
    drawn(host, IMAGE, AUTO, cfg=2.0)
    before = status(host)["counts"]
    ours = latents(host, made(AUTO))
    after = status(host)["counts"]
    assert relative_error(ours, right) <= TOLERANCE
    assert (after["load"] - before["load"], after["call"] - before["call"]) == (1, 6)
    assert plan_of(host) in TOKENS
    assert plan_told(host) in ("cfg=2, ulysses=2", "cfg=2, ring=2")
    assert relative_error(ours, latents(host, prompt(IMAGE, steps=6))) > TOLERANCE, "guidance does not end"


def test_an_automatic_plan_shares_nothing_that_a_nodes_patch_needs_whole(host: ComfyHost, files: Path) -> None:
    """Normalised attention guidance reads cond and uncond of one batch."""
    guided = behind("NAGuidance", nag_scale=5.0, nag_alpha=0.5, nag_tau=1.5)
    drawn(host, IMAGE, AUTO, cfg=2.0)
    assert plan_of(host) == {"cfg": 2}
    drawn(host, IMAGE, AUTO, cfg=2.0, patch=guided)
    assert plan_of(host) in TOKENS


@pytest.mark.parametrize("plan", [{"cfg": 2}, AUTO], ids=["cfg", "auto"])
@pytest.mark.parametrize("name", IMAGES)
def test_cond_and_uncond_of_different_lengths_are_one_request(
    name: str, plan: dict[str, int], host: ComfyHost, files: Path
) -> None:
    assert drawn(host, name, plan, negative="longer", cfg=3.0) == STEPS
    assert plan_of(host) == {"cfg": 2}


@pytest.mark.parametrize("wrong", ["positive", "negative"])
def test_what_one_of_several_calls_raises_is_the_nodes_error_and_the_ranks_live_on(
    wrong: str, host: ComfyHost, files: Path, models: Path
) -> None:
    """It is raised on one rank, and another waits for it, or has ended."""
    save_file({"conditioning": torch.zeros(1, 9, 99)}, models / "input" / f"{IMAGE} wide.safetensors")
    drawn(host, IMAGE, {"cfg": 2}, negative="longer")
    before = ranks(host)
    with pytest.raises(PromptError, match="The model failed: RuntimeError: mat1 and mat2 shapes cannot be multiplied"):
        host.run(prompt(IMAGE, {"cfg": 2}, **{wrong: "wide"}))
    drawn(host, IMAGE, {"cfg": 2}, negative="longer")
    assert ranks(host) == before


@pytest.mark.parametrize("plan", [{"dp": 2}, AUTO], ids=["dp", "auto"])
@pytest.mark.parametrize(("frames", "windows"), [(7, 3), (9, 4)])
def test_the_windows_of_a_long_video_are_one_request(
    frames: int, windows: int, plan: dict[str, int], host: ComfyHost, files: Path
) -> None:
    """Over two ranks go whole windows, or of each cond and uncond. All but the first are a frame longer."""
    options = {"size": (1, 16, frames, 8, 12), "positive": "positive alone", "negative": "negative alone"}
    by_windows = behind(
        "ContextWindowsManual", context_length=3, context_overlap=1, context_stride=1, dim=2,
        context_schedule="standard_static", fuse_method="pyramid", closed_loop=False, freenoise=False,
        cond_retain_index_list="", latent_retain_index_list="", split_conds_to_windows=False, causal_window_fix=True,
    )  # fmt: skip
    assert drawn(host, VIDEO, plan, **options, patch=by_windows) == STEPS
    assert plan_of(host) == {"dp": 2}
    assert f"Context window {windows}/{windows}" in host.log.read_text()


def test_what_a_node_has_a_hand_in_is_asked_for_once_after_the_other(host: ComfyHost, files: Path) -> None:
    """EasyCache looks at each call."""
    cached = behind("EasyCache", reuse_threshold=0.0, start_percent=0.0, end_percent=1.0, verbose=False)
    assert drawn(host, IMAGE, {"cfg": 2}, negative="longer", patch=cached) == 2 * STEPS
