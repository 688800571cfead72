"""Runs a lossy setting and the exact one once each, and keeps the measured difference for later prompts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import comfy.sd
import folder_paths
import latent_preview
import torch

from ..parallel_backend.errors import PlanError
from ..parallel_backend.plan import AUTO, LOSSY_ATTENTION, MODEL, OFF, ParallelPlan
from ..parallel_backend.sampling.caches import NONE
from ..worker.errors import RequestRefused
from ..worker.wire.sampler_call import SamplerCall
from .model.loop_mode import Callback
from .model.remote_module import RemoteModule

FOLDER, FILE = "paralleldit", "comparisons.json"  # in ComfyUI's user directory; a web page cannot read it
KEPT = 200  # newest entries
WARM_UP = 1  # untimed steps

NEVER, ONCE = "never", "once"


@dataclass(frozen=True)
class Comparison:
    """error: the norm of the latents' difference divided by the norm of the exact latents. plan, exact_plan: in words.
    seconds, exact_seconds: the mean time of a step, without the first. None if there is only one step.
    """

    error: float
    plan: str
    exact_plan: str
    seconds: float | None
    exact_seconds: float | None

    @property
    def text(self) -> str:
        text = f"Compared with exact ({self.exact_plan}): the latents differ by {self.error:.2%}."
        if self.seconds is None or self.exact_seconds is None:
            return text
        factor = self.exact_seconds / self.seconds
        return (
            f"{text} A step takes {self.seconds:.3g} s ({self.plan}), and {self.exact_seconds:.3g} s exact: "
            f"×{factor:.2f} as fast."
        )


class Comparisons:
    """Comparisons by `make_key`, in a file that outlives ComfyUI."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(folder_paths.get_system_user_directory(FOLDER), FILE)

    def get(self, key: str) -> Comparison | None:
        fields = self._read().get(key)
        return Comparison(**fields) if fields else None

    def put(self, key: str, comparison: Comparison) -> None:
        known = {**{name: each for name, each in self._read().items() if name != key}, key: asdict(comparison)}
        kept = dict(list(known.items())[-KEPT:])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(kept, indent=1), "utf-8")
        fresh.replace(self.path)

    def _read(self) -> dict[str, dict[str, Any]]:
        """Returns an empty dict if the file is missing or not in the format of `put`."""
        try:
            found = json.loads(self.path.read_text("utf-8"))
            return {key: asdict(Comparison(**fields)) for key, fields in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            logging.warning("[ParallelDiT] Earlier comparisons cannot be read (%s): %s", self.path, error)
            return {}


def compare_with_exact(
    patcher: Any,
    remote: RemoteModule,
    call: SamplerCall,
    sample: Callable[[SamplerCall, StepClock], torch.Tensor],
    vae: comfy.sd.VAE | None,
) -> tuple[torch.Tensor, str, torch.Tensor | None]:
    """Returns the latents of a call and a text about its setting. If this call made the comparison, also returns the
    lossy and the exact picture (see `decode_pictures`); else None.
    """
    clock, exact_clock = StepClock(), StepClock()
    latents = sample(call, clock)
    skipped = f"{clock.text} " if clock.text else ""
    plan = find_exact_plan(remote, call.steps)
    if plan == remote.plan and call.cache == NONE:
        return latents, "Nothing to compare: this setting is exact.", None
    key, known = make_key(remote, call, latents.shape), Comparisons()
    if found := known.get(key):
        return latents, f"{skipped}{found.text} (Found on an earlier prompt.)", None
    words = str(remote.plan) if call.cache == NONE else f"{remote.plan}, {call.cache} cache"
    try:
        with use_plan(remote, plan):
            exact = sample(replace(call, cache=NONE), exact_clock)
    except (RequestRefused, PlanError) as error:
        return latents, f"{skipped}The exact run under {plan} was refused: {error}", None
    error = relative_error(latents, exact)
    comparison = Comparison(error, words, str(plan), clock.seconds, exact_clock.seconds)
    known.put(key, comparison)
    return latents, f"{skipped}{comparison.text}", decode_pictures([latents, exact], patcher, vae)


def make_key(remote: RemoteModule, call: SamplerCall, shape: torch.Size) -> str:
    """Identifies a setting by model, plan, sampling and size. Prompt and seed do not count."""
    setting = asdict(replace(call, seed=0, previews=False))
    text = json.dumps([remote.source, remote.plan.to_json(), setting, list(shape)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def find_exact_plan(remote: RemoteModule, steps: int) -> ParallelPlan:
    """Returns a plan that computes the exact image on the same number of ranks.

    It sends tokens in the model's own dtype, and all of them attend to all, by an exact kernel. If PipeFusion's patches
    make the plan lossy, the ranks share tokens instead of blocks. If the model does not allow that, every step runs
    whole.
    """
    attention = AUTO if remote.plan.attention in LOSSY_ATTENTION else remote.plan.attention
    plan = replace(remote.plan, exchange_dtype=MODEL, sparse=OFF, attention=attention)
    if plan.patch_count == 1 or plan.sync_steps >= steps:
        return plan
    whole = replace(plan, pipefusion=1, patches=0, sync_steps=1, weights="auto", weight_blocks=0)
    ways = [replace(whole, **{axis: getattr(plan, axis) * plan.pipefusion}) for axis in ("ulysses", "ring")]
    return next((each for each in ways if remote.allows(each)), replace(plan, sync_steps=steps))


@contextlib.contextmanager
def use_plan(remote: RemoteModule, plan: ParallelPlan) -> Iterator[None]:
    """Runs the model's calls under this plan inside the context."""
    before, remote.plan = remote.plan, plan
    try:
        yield
    finally:
        remote.plan, remote.replaced = before, None


class StepClock:
    """Measures the time of a sampler's step, and records what a cache skipped."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.text = ""  # what the cache skipped

    def record_skipped(self, skipped: int, forwards: int) -> None:
        """Records how many of the forwards skipped their blocks."""
        self.text = f"Cache: {skipped} of {forwards} forwards skipped, {skipped / forwards:.0%}."

    def wrap(self, callback: Callback) -> Callback:
        """Returns a callback that records the time and then calls `callback`."""

        def timed(step: int, denoised: torch.Tensor, latents: torch.Tensor, steps: int) -> None:
            self.ends.append(time.monotonic())
            callback(step, denoised, latents, steps)

        return timed

    @property
    def seconds(self) -> float | None:
        """Returns the mean time of a step, without the first. None if there is only one step."""
        counted = len(self.ends) - WARM_UP
        return (self.ends[-1] - self.ends[WARM_UP - 1]) / counted if counted > 0 else None


def relative_error(latents: torch.Tensor, exact: torch.Tensor) -> float:
    return float((latents.double() - exact.double()).norm() / exact.double().norm())


def decode_pictures(latents: list[torch.Tensor], patcher: Any, vae: comfy.sd.VAE | None) -> torch.Tensor | None:
    """Returns the first image or frame of each of these latents: (N, H, W, 3), from 0 to 1.

    The VAE decodes them. Without a VAE, ComfyUI's previewer does. Returns None if ComfyUI has no preview for these
    latents.
    """
    if vae is not None:
        decoded = [vae.decode(each[:1]) for each in latents]
        return torch.stack([each.reshape(-1, *each.shape[-3:])[0] for each in decoded])[..., :3].cpu()
    latent_format = patcher.model.latent_format
    previewer = latent_preview.get_previewer(patcher.load_device, latent_format)
    if previewer is None and latent_format.latent_rgb_factors is not None:
        factors = (latent_format.latent_rgb_factors, latent_format.latent_rgb_factors_bias)
        previewer = latent_preview.Latent2RGBPreviewer(*factors, latent_format.latent_rgb_factors_reshape)
    if previewer is None:
        return None
    own = [latent_format.process_in(each).to(patcher.load_device) for each in latents]
    shown = [previewer.decode_latent_to_preview(each).convert("RGB") for each in own]
    pixels = [torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8) for image in shown]
    return torch.stack([each.reshape(*image.size[::-1], 3) for each, image in zip(pixels, shown, strict=True)]) / 255
