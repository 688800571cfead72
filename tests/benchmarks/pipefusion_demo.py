"""What PipeFusion's stale keys and values do to pictures: the demo model's, read by the shape checker.

python -m tests.benchmarks.pipefusion_demo [--schedulers] [--int4]

Two stages, four patches, 20 steps of FlowMatchEuler, guidance 3, every class once; one, two and four sync steps.
--schedulers: with one sync step, by each scheduler for flow matching, compared with its own exact run. --int4: exact
steps by Ulysses on two ranks, with exchange_dtype=int4.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch
from safetensors.torch import save_file

from demo.host import REPOSITORY
from parallel_backend.models import known_spec
from parallel_backend.plan import INT4
from parallel_backend.sampling.schedulers import FLOW, MODELS_OWN, SCHEDULERS, build_scheduler
from tests.support.cases import oracle
from tests.support.cases.families import FAMILIES
from tests.support.cases.references import relative_error
from tests.support.host.shape_checker import judge
from tests.support.ranks.pool import RankPool

MODEL = REPOSITORY / "demo" / "shapes-dit"
STAGES, PATCHES, STEPS, GUIDANCE = 2, 4, 20, 3.0
SYNC_STEPS = (1, 2, 4, STEPS)
FLOW_SCHEDULERS = tuple(name for name, choice in SCHEDULERS.items() if choice.kind == FLOW)
LEAST_RIGHT = 0.95


@dataclass(frozen=True)
class Request:
    """One picture of every class of a demo model: noise, and labels with and without what is asked for."""

    folder: Path
    names: list[str]
    latents: torch.Tensor
    asked: torch.Tensor
    unasked: torch.Tensor

    @classmethod
    def of(cls, folder: Path) -> Request:
        names = list(json.loads((folder / "model_index.json").read_text())["id2label"].values())
        config = json.loads((folder / "transformer" / "config.json").read_text())
        side = config["sample_size"]
        noise = torch.randn(len(names), config["in_channels"], side, side, generator=torch.Generator().manual_seed(0))
        return cls(folder, names, noise, torch.arange(len(names)), torch.full((len(names),), len(names)))

    def parallel(self, plans: dict[str, dict[str, Any]], scheduler: str = MODELS_OWN) -> dict[str, torch.Tensor]:
        """What the engine draws under each plan, in a real group. scheduler: a name of SCHEDULERS."""
        with tempfile.TemporaryDirectory(prefix="demo-") as root, RankPool(Path(root)) as pool:
            inputs = str(Path(root) / "inputs")
            save_file({"latents": self.latents, "asked": self.asked, "unasked": self.unasked}, inputs)
            sampling = {"steps": STEPS, "guidance": GUIDANCE, "scheduler": scheduler}
            by_rank = pool.run(STAGES, "demo_ranks", str(self.folder), inputs, sampling, plans)
            return {name: tensors[name] for name in plans for _, tensors in by_rank if name in tensors}

    def serial(
        self, patches: int = 1, sync_steps: int | None = None, scheduler_name: str = MODELS_OWN, steps: int = STEPS
    ) -> torch.Tensor:
        """What one process on plain diffusers draws: exactly, or by the oracle of PipeFusion."""
        folder = self.folder / "transformer"
        model = diffusers.DiTTransformer2DModel.from_pretrained(folder, dtype=torch.float32, low_cpu_mem_usage=False)
        config = json.loads((self.folder / "scheduler" / "scheduler_config.json").read_text())
        scheduler = build_scheduler(scheduler_name, config)
        scheduler.set_timesteps(steps)
        branches = [{"class_labels": self.asked}, {"class_labels": self.unasked}]
        return oracle.sample(
            model.eval(), known_spec(type(model).__name__), FAMILIES["dit"].reference, scheduler,
            self.latents, *branches, GUIDANCE, patches, sync_steps, patch=(model.config.patch_size,) * 2,
        )  # fmt: skip

    def misses(self, images_BCHW: torch.Tensor) -> list[str]:
        """What the checker does not find as asked."""
        pixels_BHWC = pictures(images_BCHW).mul(255).round().byte().permute(0, 2, 3, 1).numpy()
        seen = [" ".join(judge(pixels)) for pixels in pixels_BHWC]
        return [f"{asked}, seen as {saw}" for asked, saw in zip(self.names, seen, strict=True) if asked != saw]


def pictures(images_BCHW: torch.Tensor) -> torch.Tensor:
    return ((images_BCHW + 1) / 2).clamp(0, 1)


def plan(sync_steps: int) -> dict[str, int]:
    return {"pipefusion": STAGES, "patches": PATCHES, "sync_steps": sync_steps}


def psnr(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Peak signal to noise of pictures in [0, 1], in dB, over all of them together."""
    error = (pictures(got) - pictures(wanted)).double().square().mean().item()
    return 10 * math.log10(1 / error) if error else math.inf


def print_schedulers(request: Request) -> int:
    """Prints what one sync step does by each scheduler. Returns 0."""
    print("| scheduler | right, exact | right, PipeFusion | PSNR to exact, dB | worst picture, dB |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name in FLOW_SCHEDULERS:
        exact = request.serial(scheduler_name=name)
        drawn = request.parallel({name: plan(1)}, name)[name]
        right = (f"{1 - len(request.misses(images)) / len(images):.1%}" for images in (exact, drawn))
        worst = min(psnr(*pair) for pair in zip(drawn, exact, strict=True))
        print(f"| {name} | {' | '.join(right)} | {psnr(drawn, exact):.1f} | {worst:.1f} |", flush=True)
    return 0


def print_int4(request: Request, exact: torch.Tensor) -> int:
    """Prints what a lossy exchange does; returns 1 where it draws too few pictures right."""
    images = request.parallel({INT4: {"ulysses": STAGES, "exchange_dtype": INT4}})[INT4]
    missed = request.misses(images)
    worst = min(psnr(*pair) for pair in zip(images, exact, strict=True))
    print(f"{INT4}: relative error {relative_error(images, exact):.1e}, missed: {'; '.join(missed) or 'none'}")
    print(f"PSNR to exact {psnr(images, exact):.1f} dB, of the worst picture {worst:.1f} dB")
    return int(len(missed) > (1 - LEAST_RIGHT) * len(request.names))


def main() -> int:
    """Prints the table; returns 1 where PipeFusion with one sync step draws too few pictures right."""
    request = Request.of(MODEL)
    if "--schedulers" in sys.argv:
        return print_schedulers(request)
    count = len(request.names)
    exact = request.serial()
    if "--int4" in sys.argv:
        return print_int4(request, exact)
    drawn = request.parallel({str(sync_steps): plan(sync_steps) for sync_steps in SYNC_STEPS})
    print(f"{STAGES} stages, {PATCHES} patches, {STEPS} steps, guidance {GUIDANCE:g}, {count} pictures, fp32\n")
    print("| sampling | right | PSNR to exact, dB | worst picture, dB | relative error to exact | to the oracle |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    misses = {"exact": request.misses(exact)}
    print(f"| exact, one process | {1 - len(misses['exact']) / count:.1%} | | | | |")
    for name, images in drawn.items():
        sync_steps = int(name)
        misses[name] = request.misses(images)
        worst = min(psnr(*pair) for pair in zip(images, exact, strict=True))
        to_oracle = relative_error(images, request.serial(PATCHES, sync_steps))
        print(
            f"| {name} sync steps | {1 - len(misses[name]) / count:.1%} | {psnr(images, exact):.1f} | {worst:.1f} "
            f"| {relative_error(images, exact):.1e} | {to_oracle:.1e} |"
        )
    for name, missed in misses.items():
        print(f"\nmissed, {name}: {'; '.join(missed) or 'none'}", end="")
    print()
    return int(len(misses["1"]) > (1 - LEAST_RIGHT) * count)


if __name__ == "__main__":
    sys.exit(main())
