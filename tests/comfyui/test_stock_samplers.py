"""Every stock way to sample: with Parallelize Model it gives the latents that it gives without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from demo.host import ComfyHost
from tests.support.cases.files.single_file_cases import PUBLISHED, original
from tests.support.host.graphs import (
    GROUPS_BY_SIZE,
    Graph,
    Job,
    Link,
    ask_error,
    latents,
    relative_error,
    right_half,
    runs,
)
from tests.support.loaders import parallelize

TOLERANCE = 1e-4
ONE_RANK = {"cfg": 1}
STEPS_OF_PIPEFUSION = 6
SIZE = {"width": 128, "height": 96}


class Scene:
    """A graph with a model file, two texts and an empty latent, from which a case samples.

    plan: of Parallelize Model; None for stock.
    """

    def __init__(self, name: str, plan: dict[str, int] | None) -> None:
        self.graph = Graph()
        self.cfg = PUBLISHED[name].cfg
        add = self.graph.add
        self.model = add("UNETLoader", unet_name=f"{name}.safetensors", weight_dtype="default")
        if plan:
            group = GROUPS_BY_SIZE[plan.get("pipefusion", 1)]
            self.model = parallelize(self.graph, self.model, plan, group)
        self.positive, self.other, self.negative = (
            add("Test_LoadConditioning", name=f"{text}.safetensors") for text in ("text", "other-text", "short-text")
        )
        self.latent = add("EmptySD3LatentImage", batch_size=1, **SIZE)

    def ksampler(self, **changes: object) -> Link:
        """A KSampler of the scene, with these inputs changed."""
        inputs = {
            "model": self.model,
            "positive": self.positive,
            "negative": self.negative,
            "latent_image": self.latent,
            "seed": 5,
            "steps": 3,
            "cfg": self.cfg,
            "sampler_name": "euler",
            "scheduler": "simple",
            "denoise": 1.0,
        }
        return self.graph.add("KSampler", **{**inputs, **changes})


Case = Callable[[Scene], Link]


def two_advanced(scene: Scene) -> Link:
    """The first half of the steps, and the second from its leftover noise."""
    common = {
        "model": scene.model, "noise_seed": 6, "steps": 4, "cfg": scene.cfg, "sampler_name": "euler",
        "scheduler": "normal", "positive": scene.positive, "negative": scene.negative,
    }  # fmt: skip
    first = scene.graph.add(
        "KSamplerAdvanced", **common, latent_image=scene.latent, add_noise="enable", start_at_step=0, end_at_step=2,
        return_with_leftover_noise="enable",
    )  # fmt: skip
    return scene.graph.add(
        "KSamplerAdvanced", **common, latent_image=first, add_noise="disable", start_at_step=2, end_at_step=10000,
        return_with_leftover_noise="disable",
    )  # fmt: skip


def custom(scene: Scene, guider: Link | None, sampler: str = "euler") -> Link:
    """SamplerCustomAdvanced with this guider, or SamplerCustom without one."""
    add = scene.graph.add
    chosen = add("KSamplerSelect", sampler_name=sampler)
    sigmas = add("BasicScheduler", model=scene.model, scheduler="beta", steps=3, denoise=1.0)
    if guider is None:
        return add(
            "SamplerCustom", model=scene.model, add_noise=True, noise_seed=7, cfg=scene.cfg, positive=scene.positive,
            negative=scene.negative, sampler=chosen, sigmas=sigmas, latent_image=scene.latent,
        )  # fmt: skip
    noise = add("RandomNoise", noise_seed=7)
    inputs = {"noise": noise, "guider": guider, "sampler": chosen, "sigmas": sigmas, "latent_image": scene.latent}
    return add("SamplerCustomAdvanced", **inputs)


def dual_guider(scene: Scene) -> Link:
    weights = {"cfg_conds": 2.0, "cfg_cond2_negative": 1.5, "style": "regular"}
    texts = {"cond1": scene.positive, "cond2": scene.other, "negative": scene.negative}
    return scene.graph.add("DualCFGGuider", model=scene.model, **texts, **weights)


def masked(scene: Scene) -> Link:
    mask = right_half(scene.graph, **SIZE)
    latent = scene.graph.add("SetLatentNoiseMask", samples=scene.ksampler(seed=8), mask=mask)
    return scene.ksampler(latent_image=latent, denoise=0.7)


def conditioned(node: str, **inputs: object) -> Case:
    """The positive conditioning through a node, combined with the other one."""

    def sample(scene: Scene) -> Link:
        taken = {name: value(scene) if callable(value) else value for name, value in inputs.items()}
        changed = scene.graph.add(node, conditioning=scene.positive, **taken)
        both = scene.graph.add("ConditioningCombine", conditioning_1=changed, conditioning_2=scene.other)
        return scene.ksampler(positive=both)

    return sample


def averaged(scene: Scene) -> Link:
    texts = {"conditioning_to": scene.positive, "conditioning_from": scene.other}
    return scene.ksampler(positive=scene.graph.add("ConditioningAverage", **texts, conditioning_to_strength=0.4))


CASES: dict[str, tuple[str, Case]] = {
    "KSampler, a batch, denoise 0.6": (
        "sd3.5",
        lambda scene: scene.ksampler(
            latent_image=scene.graph.add("RepeatLatentBatch", samples=scene.ksampler(seed=8), amount=3), denoise=0.6
        ),
    ),
    "KSamplerAdvanced in two halves": ("sd3", two_advanced),
    "SamplerCustom": ("sd3", lambda scene: custom(scene, None)),
    "BasicGuider": (
        "flux-dev",
        lambda scene: custom(
            scene, scene.graph.add("BasicGuider", model=scene.model, conditioning=scene.positive), "dpmpp_2m"
        ),
    ),
    "CFGGuider": (
        "flux-dev",
        lambda scene: custom(
            scene,
            scene.graph.add("CFGGuider", model=scene.model, positive=scene.positive, negative=scene.negative, cfg=2.0),
        ),
    ),
    "DualCFGGuider": ("sd3", lambda scene: custom(scene, dual_guider(scene))),
    "SetLatentNoiseMask": ("sd3", masked),
    "ConditioningAverage": ("sd3", averaged),
    "an area": ("sd3", conditioned("ConditioningSetArea", width=64, height=64, x=16, y=0, strength=0.8)),
    "a mask": (
        "flux-dev",
        conditioned(
            "ConditioningSetMask",
            mask=lambda scene: right_half(scene.graph, **SIZE),
            strength=1.0,
            set_cond_area="default",
        ),
    ),
    "a timestep range": ("sd3", conditioned("ConditioningSetTimestepRange", start=0.0, end=0.4)),
    "FluxGuidance": (
        "flux-dev",
        lambda scene: scene.ksampler(
            positive=scene.graph.add("FluxGuidance", conditioning=scene.positive, guidance=6.0)
        ),
    ),
    "ModelSamplingFlux": (
        "flux-dev",
        lambda scene: scene.ksampler(
            model=scene.graph.add("ModelSamplingFlux", model=scene.model, max_shift=1.3, base_shift=0.4, **SIZE)
        ),
    ),
    "ModelSamplingSD3": (
        "sd3",
        lambda scene: scene.ksampler(model=scene.graph.add("ModelSamplingSD3", model=scene.model, shift=5.0)),
    ),
    "RescaleCFG": (
        "sd3",
        lambda scene: scene.ksampler(model=scene.graph.add("RescaleCFG", model=scene.model, multiplier=0.6)),
    ),
}


@pytest.fixture(scope="module")
def files(models: Path) -> None:
    for name in ("sd3", "sd3.5", "flux-dev"):
        weights = {key: value.contiguous() for key, value in original(name).items()}
        save_file(weights, models / "models" / "diffusion_models" / f"{name}.safetensors")


def sampled(host: ComfyHost, name: str, case: Case, plan: dict[str, int] | None) -> torch.Tensor:
    scene = Scene(name, plan)
    scene.graph.add("SaveLatent", samples=case(scene), filename_prefix="stock")
    return latents(host, scene.graph.prompt)


@pytest.mark.parametrize("case", CASES)
def test_a_stock_way_to_sample_gives_what_the_stock_loader_gives(case: str, host: ComfyHost, files: None) -> None:
    name, sample = CASES[case]
    ours, stock = (sampled(host, name, sample, plan) for plan in (ONE_RANK, None))
    assert relative_error(ours, stock) <= TOLERANCE


def test_every_sampler_and_scheduler_of_the_host_gives_what_the_stock_loader_gives(
    host: ComfyHost, files: None
) -> None:
    inputs = host.object_info()["KSampler"]["input"]["required"]
    samplers, schedulers = inputs["sampler_name"][0], inputs["scheduler"][0]
    assert len(samplers) > 30 and len(schedulers) > 5
    choices = [(sampler, "simple") for sampler in samplers] + [("dpmpp_2m", scheduler) for scheduler in schedulers]

    def draw(sampler: str, scheduler: str, plan: dict[str, int] | None) -> torch.Tensor:
        case = lambda scene: scene.ksampler(sampler_name=sampler, scheduler=scheduler)  # noqa: E731
        return sampled(host, "sd3", case, plan)

    ours, stock = ({choice: draw(*choice, plan) for choice in choices} for plan in (ONE_RANK, None))  # loaded once each
    errors = {choice: relative_error(ours[choice], stock[choice]) for choice in choices}
    assert not {choice: error for choice, error in errors.items() if not error <= TOLERANCE}


@pytest.mark.parametrize("sampler", ["heun", "dpmpp_2m", "euler_ancestral"])
def test_pipefusion_under_a_stock_sampler_depends_on_the_patches_alone(
    sampler: str, host: ComfyHost, groups_by_size: None, files: None
) -> None:
    """Not on the stages. cond and uncond differ in length, so each step has two forwards. A step goes whole if it is
    one of the first."""

    def draw(plan: dict[str, int] | None) -> torch.Tensor:
        case = lambda scene: scene.ksampler(sampler_name=sampler, steps=STEPS_OF_PIPEFUSION)  # noqa: E731
        return sampled(host, "sd3", case, plan)

    patches = {"patches": 3, "sync_steps": 2}
    stock, serial, staged = draw(None), draw(patches), draw({"pipefusion": 2, **patches})
    assert relative_error(staged, serial) <= TOLERANCE
    assert TOLERANCE < relative_error(serial, stock) < 0.5
    assert relative_error(draw({"pipefusion": 2, "patches": 3, "sync_steps": 100}), stock) <= TOLERANCE


def test_two_runs_are_compared_by_their_latents(host: ComfyHost) -> None:
    job = Job("shapes-dit", "red heart", width=64, height=64, seed=86, steps=6)
    found = [latents(host, job.under(plan).prompt()) for plan in ({"ulysses": 2}, {"pipefusion": 2, "patches": 2})]
    lossy, exact = (each["id"] for each in runs(host)[:2])
    error = float((found[1] - found[0]).norm() / found[0].norm())
    assert ask_error(host, lossy, exact) == pytest.approx(error, rel=1e-3) and error > 1e-3
    assert ask_error(host, exact, exact) == 0.0 and ask_error(host, lossy, 0) is None
