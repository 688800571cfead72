"""Input that nobody means gives what it gives with the stock loader: the same latents, or an error. The group lives."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost, PromptError
from tests.support.host.graphs import find_node, latents, post, ranks, relative_error, saved_latents, write_latent
from tests.support.host.stock_prompts import prompt, write_cases

TOLERANCE = 1e-5
FLUX, VIDEO, UNET = "longcat-image", "wan-2.1-vace", "unet"
PLANS = [{"ulysses": 2}, {"cfg": 2}]
NAN = float("nan")
Prompt = dict[str, dict[str, Any]]
Change = Callable[[Prompt], None]


seeds = itertools.count(50)  # a new one makes a sampler run: the host keeps results by their inputs


def good(kind: str, plan: dict[str, int] | None, seed: int) -> Prompt:
    asked = prompt(kind, plan)
    find_node(asked, "KSampler")["inputs"]["seed"] = seed
    return asked


def sampler_with(**inputs: Any) -> Change:
    return lambda prompt: find_node(prompt, "KSampler")["inputs"].update(inputs)


def without(*which: str) -> Change:
    """No conditioning at these inputs of the sampler."""

    def change(prompt: Prompt) -> None:
        prompt["90"] = {"class_type": "Test_NoConditioning", "inputs": {}}
        find_node(prompt, "KSampler")["inputs"].update(dict.fromkeys(which, ["90", 0]))

    return change


def latent(name: str) -> Change:
    return lambda prompt: find_node(prompt, "Test_EmptyLatent").update(
        class_type="LoadLatent", inputs={"latent": f"{name}.latent"}
    )


def empty(*shape: int) -> Change:
    return lambda prompt: find_node(prompt, "Test_EmptyLatent")["inputs"].update(shape=" ".join(map(str, shape)))


def text(name: str) -> Change:
    def change(prompt: Prompt) -> None:
        first = next(each for each in prompt.values() if each["class_type"] == "Test_LoadConditioning")
        first["inputs"]["name"] = f"{name}.safetensors"

    return change


ODD: dict[str, Change] = {
    "a latent of other channels": latent("narrow"),
    "a latent without rows": empty(0, 16, 9, 12),
    "a latent of one value a channel": empty(1, 16, 1, 1),
    "NaN in the latent": latent("nan"),
    "NaN in the text": text("nan-text"),
    "a text of another width": text("wide-text"),
    "a text without tokens": text("no-text"),
    "no positive text": without("positive"),
    "no text at all": without("positive", "negative"),
    "no steps": sampler_with(denoise=0.0),
    "no noise and no guidance": sampler_with(cfg=0.0),
}


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path) -> Path:
    """The folder with the models. The inputs are there, too."""
    write_cases(comfyui, models, [FLUX, VIDEO, UNET])
    for name, tensor in {"narrow": torch.randn(1, 4, 9, 12), "nan": torch.full((1, 16, 9, 12), NAN)}.items():
        write_latent(models, name, tensor)
    good = load_file(models / "input" / f"{FLUX} positive.safetensors")["conditioning"]
    for name, tensor in {
        "nan-text": good.clone().index_fill(1, torch.tensor(2), NAN),
        "wide-text": torch.randn(1, 7, 99),
        "no-text": good[:, :0].clone(),
    }.items():
        save_file({"conditioning": tensor}, models / "input" / f"{name}.safetensors")
    return models / "models" / "diffusion_models"


def outcome(host: ComfyHost, prompt: Prompt) -> torch.Tensor | str:
    try:
        return latents(host, prompt)
    except PromptError as error:
        return error.message


@pytest.fixture(scope="module")
def stock(host: ComfyHost, files: Path) -> Callable[[str], torch.Tensor | str]:
    """By case, what comes with the stock loader."""

    @cache
    def find(case: str) -> torch.Tensor | str:
        asked = prompt(FLUX)
        ODD[case](asked)
        return outcome(host, asked)

    return find


# Each case under one of the plans, and those of a plan together: another one loads the model anew.
CASES = sorted(zip(ODD, itertools.cycle(PLANS), strict=False), key=lambda case: PLANS.index(case[1]))


@pytest.mark.parametrize(("case", "plan"), CASES, ids=str)
def test_it_gives_what_it_gives_with_the_stock_loader_and_the_group_lives(
    case: str, plan: dict[str, int], host: ComfyHost, stock: Callable[[str], torch.Tensor | str]
) -> None:
    right = stock(case)
    latents(host, good(FLUX, plan, next(seeds)))
    before = ranks(host)
    asked = prompt(FLUX, plan)
    ODD[case](asked)
    found = outcome(host, asked)
    assert isinstance(found, str) == isinstance(right, str)
    if isinstance(found, torch.Tensor) and isinstance(right, torch.Tensor):
        assert found.shape == right.shape and torch.equal(found.isnan(), right.isnan())
        is_number = ~right.isnan()
        if right.nan_to_num().any():
            assert relative_error(found[is_number], right[is_number]) <= TOLERANCE
    assert latents(host, good(FLUX, plan, next(seeds))).isfinite().all()
    assert ranks(host) == before, "it cost the group its ranks"


@contextmanager
def other_weights(file: Path, in_place: bool = False) -> Iterator[None]:
    """While entered, a file with other weights of the same names and shapes is in its place, as after a download; or
    they are in the file itself, as a copying tool leaves it."""
    whole = file.read_bytes()
    start = int.from_bytes(whole[:8], "little") + 8
    others = 0.9 * torch.frombuffer(bytearray(whole[start:]), dtype=torch.float32)

    def write(content: bytes) -> None:
        target = file if in_place else file.with_suffix(".part")
        with open(target, "r+b" if in_place else "wb") as opened:
            opened.write(content)
        os.replace(target, file)

    write(whole[:start] + others.numpy().tobytes())
    try:
        yield
    finally:
        write(whole)


@pytest.mark.parametrize("plan", [None, {"ulysses": 2}], ids=["stock", "ours"])
def test_a_model_stays_what_it_was_if_its_file_is_overwritten(
    plan: dict[str, int] | None, host: ComfyHost, files: Path
) -> None:
    """Until ComfyUI loads it again, which it does after other prompts."""
    seed = next(seeds)
    old = latents(host, good(FLUX, None, seed))
    latents(host, good(FLUX, plan, next(seeds)))
    with other_weights(files / f"{FLUX}.safetensors"):
        assert relative_error(latents(host, good(FLUX, plan, seed)), old) <= TOLERANCE
        latents(host, good(UNET, None, seed))
        assert relative_error(latents(host, good(FLUX, plan, seed)), old) > 1e-2
    latents(host, good(UNET, None, next(seeds)))


def test_ranks_never_take_the_file_that_overwrote_another_for_it(host: ComfyHost, files: Path) -> None:
    file, plan = files / f"{FLUX}.safetensors", {"ulysses": 2}
    latents(host, good(FLUX, plan, next(seeds)))
    with other_weights(file):
        post(host, "/paralleldit/park?group=1")  # which on the CPU is unload, so that they have to read it again
        message = outcome(host, good(FLUX, plan, next(seeds)))
        assert isinstance(message, str)
        assert f"{file.name} was overwritten after it was loaded" in message and "Free model and node cache" in message
        latents(host, good(UNET, None, next(seeds)))  # ComfyUI keeps what it has loaded until another prompt
        before, seed = ranks(host), next(seeds)
        new = latents(host, good(FLUX, None, seed))
        assert relative_error(latents(host, good(FLUX, plan, seed)), new) <= TOLERANCE
        assert ranks(host) == before
    latents(host, good(UNET, None, next(seeds)))


def test_a_file_that_is_written_over_in_place(host: ComfyHost, files: Path) -> None:
    """Stock's model may have its pages. What is in the file may be another model then, and that one runs as stock."""
    file, plan, drawn = files / f"{FLUX}.safetensors", {"ulysses": 2}, (next(seeds), next(seeds))
    latents(host, good(FLUX, None, next(seeds)))
    latents(host, good(FLUX, plan, next(seeds)))
    before = ranks(host)
    with other_weights(file, in_place=True):
        right, found = (latents(host, good(FLUX, each, drawn[0]), as_stock=True) for each in (None, plan))
        assert relative_error(found, right) <= TOLERANCE
    right, found = (latents(host, good(FLUX, each, drawn[1])) for each in (None, plan))
    assert relative_error(found, right) <= TOLERANCE
    assert ranks(host) == before, "it cost the group its ranks"


@pytest.mark.parametrize("plan", [None, {"ulysses": 2}], ids=["stock", "ours"])
def test_a_file_that_is_deleted_while_its_model_runs(plan: dict[str, int] | None, host: ComfyHost, files: Path) -> None:
    """What is queued runs. What is queued later is refused, until the file is back."""
    file, seed = files / f"{FLUX}.safetensors", next(seeds)
    right = latents(host, good(FLUX, None, seed))
    latents(host, good(FLUX, {"ulysses": 2}, next(seeds)))
    before = ranks(host)
    running, waiting = good(FLUX, plan, next(seeds)), good(FLUX, plan, seed)
    sampler_with(steps=30)(running)
    first, second, whole = host.queue(running), host.queue(waiting), file.read_bytes()

    def delete(event: dict[str, Any]) -> None:
        if event["type"] == "progress":
            file.unlink(missing_ok=True)

    try:
        host.wait(first, on_event=delete)
        assert not file.exists()
        assert relative_error(saved_latents(host, host.wait(second)), right) <= TOLERANCE
        message = outcome(host, good(FLUX, plan, next(seeds)))
        assert isinstance(message, str) and "failed validation" in message and file.name in message
    finally:
        file.write_bytes(whole)
    assert latents(host, good(FLUX, plan, next(seeds))).isfinite().all()
    assert ranks(host) == before, "it cost the group its ranks"


def test_a_file_that_is_cut_short_in_place_while_it_is_in_use(host: ComfyHost, files: Path) -> None:
    """Its pages are gone, which ends a process that reads them: the stock loader's is ComfyUI's own."""
    file, plan = files / f"{VIDEO}.safetensors", {"ulysses": 2}
    latents(host, good(VIDEO, plan, next(seeds)))
    whole = file.read_bytes()
    os.truncate(file, 4096)
    try:
        message = outcome(host, good(VIDEO, plan, next(seeds)))
        assert isinstance(message, str) and "SIGBUS" in message and "restarts by itself" in message
        assert latents(host, good(FLUX, plan, next(seeds))).isfinite().all()
    finally:
        file.write_bytes(whole)
    assert latents(host, good(VIDEO, plan, next(seeds))).isfinite().all()
