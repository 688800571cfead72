"""What a step with a network beside the model or inside of it takes, now and before the ranks ran such networks.

COMFYUI_PATH=… python -m tests.benchmarks.speed.side_networks [--rounds 5] [--only NAME]

The models are of a part of the published width and depth, with 576 tokens of an image, on two CPU ranks. Before,
ComfyUI's process computed a ControlNet and sent its residuals in each step, and ComfyUI's own device alone ran a model
with a network inside. Both still happen with a network whose file is not known, so this program hides the file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from tests.support.host.graphs import TINY_MODELS

Texts = tuple[Any, Any]
STEPS = (2, 6)
WAYS = ("without the network", "before", "now")


@dataclass(frozen=True)
class Case:
    """apply: (census, row, MODEL, whether the network's file is known) to the MODEL and the two texts."""

    model: str
    latent: tuple[int, ...]
    apply: Callable[[Any, Any, Any, bool], tuple[Any, Texts]]


def texts_of(census: Any, row: Any) -> Texts:
    return census.conditioning(row.model, "positive"), census.conditioning(row.model, "negative")


def apply_controlnet(census: Any, row: Any, model: Any, is_known: bool) -> tuple[Any, Texts]:
    """Half of the model's blocks."""
    control = census.a_controlnet("flux, 5 and 10 blocks", row, model)
    if not is_known:
        control.control_model_wrapped.paralleldit_loaded_by = None
    positive, negative = texts_of(census, row)
    return model, census.run(
        "ControlNetApplyAdvanced", positive=positive, negative=negative, control_net=control,
        image=census.a_image(row, model), strength=0.7, start_percent=0.0, end_percent=1.0, vae=None,
    )  # fmt: skip


def apply_fun(census: Any, row: Any, model: Any, is_known: bool) -> tuple[Any, Texts]:
    """A block for every second one of the model's, and two before them."""
    sizes = {"dim": 512, "n_heads": 8, "n_kv_heads": 8, "multiple_of": 32, "n_control_layers": 15}
    network = census.a_network("ZImage_Control", "comfy.ldm.lumina.controlnet", **sizes)
    return with_network(census, row, model, "ZImageFunControlnet", network, census.a_image_vae(row, model), is_known)


def apply_diffsynth(census: Any, row: Any, model: Any, is_known: bool) -> tuple[Any, Texts]:
    """Two small layers for each block of the model."""
    network = census.a_network("QwenImageBlockWiseControlNet", num_layers=10, dim=512)
    vae = census.a_video_vae(row, model)
    return with_network(census, row, model, "QwenImageDiffsynthControlnet", network, vae, is_known)


def with_network(
    census: Any, row: Any, model: Any, node: str, network: Any, vae: Any, is_known: bool
) -> tuple[Any, Texts]:
    if not is_known:
        network.cached_patcher_init = None
    given = {"model_patch": network, "vae": vae, "image": census.a_image(row, model), "strength": 0.7}
    return census.run(node, model=model, **given)[0], texts_of(census, row)


CASES = {
    "a ControlNet of Flux": Case("flux-to-weigh", (1, 16, 48, 48), apply_controlnet),
    "Z-Image-Fun": Case("zimage-to-weigh", (1, 16, 48, 48), apply_fun),
    "DiffSynth's of Qwen-Image": Case("qwen-to-weigh", (1, 16, 1, 48, 48), apply_diffsynth),
}


@contextmanager
def counted(group: Any) -> Iterator[list[int]]:
    """The bytes of the tensors of each call of the model in the ranks, both ways."""
    moved, request = [], group._request

    def noted(header: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        found = request(header, tensors, *args, **kwargs)
        if header["op"] == "call":
            moved.append(sum(each.nbytes for each in [*tensors.values(), *found.values()]))
        return found

    with patch.object(group, "_request", noted):
        yield moved


def seconds_of(pids: Iterable[int]) -> dict[int, float]:
    """The CPU seconds that processes have taken."""
    return {pid: sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids}


def a_step(census: Any, row: Any, model: Any, texts: Texts) -> tuple[float, float, float]:
    """Seconds, CPU seconds and bytes of one, by samplings of two lengths after one that loads everything.

    CPU seconds are of ComfyUI's process and of the busiest rank, which wait for one another. They do
    not count what else the machine does."""
    found = []
    for steps in (1, *STEPS):
        pids = census.group.status().get("pids", [])
        with counted(census.group) as sizes:
            began, own, before = time.perf_counter(), time.process_time(), seconds_of(pids)
            census.sample(replace(row, steps=steps), model, positive=texts[0], negative=texts[1])
            took = seconds_of(pids)
            busiest = max((took[pid] - before[pid] for pid in pids), default=0.0)
            found.append((time.perf_counter() - began, time.process_time() - own + busiest, sum(sizes)))
    count = STEPS[1] - STEPS[0]
    seconds, busy, size = ((more - less) / count for less, more in zip(*found[1:], strict=True))
    return seconds, busy, size


def measure(comfyui: str, rounds: int, only: str) -> None:
    from tests.support.census.pack_rows import PACK
    from tests.support.census.program import Census
    from tests.support.census.rows import Row
    from tests.support.host.stock_prompts import write_cases

    cases = {name: case for name, case in CASES.items() if only in name}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        write_cases(Path(comfyui), base, [case.model for case in cases.values()])
        (base / "custom_nodes").mkdir()
        (base / "custom_nodes" / PACK.name).symlink_to(PACK)
        census = Census(comfyui, folder)
        for name, case in cases.items():
            row = Row(case.model, latent=case.latent, cfg=1.0, plan={"ulysses": 2})
            model = census.load(row, ours=True)
            found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
            for _ in range(rounds):
                for way in WAYS:
                    applied = model, texts_of(census, row)
                    if way != WAYS[0]:
                        applied = case.apply(census, row, model, way == "now")
                    found[way].append(a_step(census, row, *applied))
            alone = statistics.median(busy for _, busy, _ in found[WAYS[0]])
            for way, steps in found.items():
                seconds, busy, size = (statistics.median(values) for values in zip(*steps, strict=True))
                times = f"{seconds:.2f} s a step, {busy:.3f} CPU seconds, ×{busy / alone:.2f}"
                print(f"{name}, {way}: {times}; {size / 1e6:.2f} MB", flush=True)
            del model
        census.group.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="a part of a case's name")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        measure(os.environ["COMFYUI_PATH"], options.rounds, options.only)
        return
    asked = ["--rounds", str(options.rounds), "--only", options.only]
    command = [sys.executable, "-m", "tests.benchmarks.speed.side_networks", "--inside", *asked]
    subprocess.run(command, env={**os.environ, **TINY_MODELS}, check=True)


if __name__ == "__main__":
    main()
