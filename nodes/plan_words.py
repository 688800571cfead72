"""What is said of a plan beside its errors: why auto chose it, why another one runs, what it is good for.

Each sentence has a key, under which the editor looks for it in other languages (`locales/*/main.json`, plan.remarks).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..parallel_backend.plan import ParallelPlan

TEXTS = {
    "auto_gpus": "auto uses all GPUs: {devices}.",
    "auto_cpu": "auto uses {devices} CPU ranks, as there is no GPU here.",
    "auto_set": "auto uses {devices} ranks, as the settings say.",
    "auto_one": "auto has one device to use: one rank runs the whole model.",
    "guidance_first": "Guidance is split first: cond and uncond run side by side (cfg=2).",
    "guidance_odd": "{devices} is odd, so guidance is not split.",
    "ulysses": "The tokens go over {ulysses} ranks by Ulysses, which divides the model's {heads} heads.",
    "ring": "By ring they go over {ring}: no more of the {ranks} ranks divide the model's {heads} heads.",
    "ring_alone": "The tokens go over {ring} ranks by ring: none of it divides the model's {heads} heads.",
    "needs_model": "How {ranks} ranks share the tokens follows from the model's heads: connect the plan to a loader.",
    "unchecked": "Connect the plan to a loader to have it checked against the model.",
    "no_guidance": "The sampler's cfg is 1, so there is no uncond to run beside cond: a single image leaves ranks of "
    "the cfg axis without work. Use ulysses or ring in place of cfg.",
    "one_device": "This machine has one device, and the plan {asked} asks for {ranks} ranks: one rank runs the whole "
    "model.",
    "few_cores": "This machine has no GPU and CPU cores for {most} ranks, and the plan {asked} asks for {ranks}: one "
    "rank runs the whole model.",
    "same_image": "The image is the same, and takes longer.",
    "exact_image": "The image is the exact one, without PipeFusion's stale keys, and takes longer.",
    "more_devices": "For the plan as it is, use a machine with {ranks} devices.",
}


class Remark(NamedTuple):
    """A sentence. key: of TEXTS. values: what is filled in there."""

    key: str
    values: dict[str, int | str]

    @property
    def text(self) -> str:
        return TEXTS[self.key].format(**self.values)


def remark(key: str, **values: int | str) -> Remark:
    return Remark(key, values)


def in_words(remarks: Iterable[Remark]) -> str:
    """The sentences as one text."""
    return " ".join(each.text for each in remarks)


def why_auto(devices: int, on_gpus: bool, is_set: bool, plan: ParallelPlan | None, heads: int | None) -> list[Remark]:
    """Why an automatic plan is what it is. is_set: whether the settings say how many devices.

    plan, heads: None where no model is known, on which the plan depends.
    """
    if devices <= 1:
        return [remark("auto_one")]
    said = [remark("auto_set" if is_set else "auto_gpus" if on_gpus else "auto_cpu", devices=devices)]
    said.append(remark("guidance_odd", devices=devices) if devices % 2 else remark("guidance_first"))
    ranks = devices if devices % 2 else devices // 2
    if ranks == 1:
        return said
    if plan is None or heads is None:
        return [*said, remark("needs_model", ranks=ranks)]
    if plan.ulysses > 1:
        said.append(remark("ulysses", ulysses=plan.ulysses, heads=heads))
    if plan.ring > 1:
        key = "ring" if plan.ulysses > 1 else "ring_alone"
        said.append(remark(key, ring=plan.ring, ranks=ranks, heads=heads))
    return said


def why_one_rank(plan: ParallelPlan, most: int, on_gpus: bool) -> tuple[Remark, ...]:
    """Why one rank runs in place of this plan's, what becomes of the image, and what to do. most: ranks to be had."""
    asked, ranks = str(plan), plan.world_size
    machine = remark("one_device", asked=asked, ranks=ranks)
    if not on_gpus:
        machine = remark("few_cores", asked=asked, ranks=ranks, most=most)
    image = remark("exact_image" if plan.patch_count > 1 else "same_image")
    return machine, image, remark("more_devices", ranks=ranks)
