"""Draws pictures with a diffusers pipeline, one for each prompt and seed. Times the calls, compares and saves pictures.

A picture is an array of numbers from 0 to 1: (H, W, C), or (F, H, W, C) of a video.
"""

from __future__ import annotations

import inspect
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from diffusers import DiffusionPipeline
from diffusers.utils import logging

from ..device import synchronise
from ..errors import RequestError
from ..weights.folder import read_json

MILLISECONDS = 1000
FORMATS = (".png", ".webp", ".gif", ".jpg", ".jpeg")
MOVING = FORMATS[:3]


@dataclass(frozen=True)
class Order:
    """What to draw: each prompt with each seed. batch: how many pictures a call draws. options: more arguments of the
    pipeline's call, by name; None for those that are not given."""

    prompts: Sequence[str]
    seeds: Sequence[int]
    batch: int
    options: Mapping[str, Any]

    @property
    def pictures(self) -> list[tuple[str, int]]:
        """The prompt and the seed of each picture."""
        return [(prompt, seed) for prompt in self.prompts for seed in self.seeds]


class Timed(NamedTuple):
    """pictures: of the last run. first, median: seconds of the first run, and of the runs after it; None without
    any."""

    pictures: list[np.ndarray]
    first: float
    median: float | None

    @property
    def seconds(self) -> float:
        return self.first if self.median is None else self.median

    def __str__(self) -> str:
        first = f"{self.first:.3f} s with the warm-up"
        return first if self.median is None else f"{self.median:.3f} s (median), first run {first}"


def load_pipeline(folder: str | Path, dtype: torch.dtype, quiet: bool, **components: Any) -> DiffusionPipeline:
    """Loads a pipeline folder. quiet: without progress bars. components: used in place of the folder's. Raises
    ModelFileError, and RequestError for a folder without a VAE."""
    entries = read_json(Path(folder) / "model_index.json")
    absent = {name: None for name, entry in entries.items() if entry == [None, None]}  # diffusers wants them named
    if "vae" in absent:
        raise RequestError(
            f"{folder} has no VAE, and its pipeline decodes pictures with one.",
            'Draw latents in a script, with parallelize and output_type="latent".',
        )
    if quiet:
        logging.disable_progress_bar()
    given = {**absent, **components}
    pipeline = DiffusionPipeline.from_pretrained(folder, torch_dtype=dtype, local_files_only=True, **given)
    pipeline.set_progress_bar_config(disable=quiet)
    return pipeline


def draw(pipeline: Any, order: Order) -> list[np.ndarray]:
    """Returns the pictures, in order. A picture depends on its prompt and seed, not on the batch that it is in.

    Raises RequestError for an option that the pipeline does not take.
    """
    found: list[np.ndarray] = []
    for start in range(0, len(order.pictures), order.batch):
        part = order.pictures[start : start + order.batch]
        prompts = [prompt for prompt, _ in part]
        generators = [torch.Generator().manual_seed(seed) for _, seed in part]
        arguments = arguments_of(pipeline, prompts, order.options)
        result = pipeline(**arguments, generator=generators, output_type="np")
        found += [*(result.frames if hasattr(result, "frames") else result.images)]
    return found


def arguments_of(pipeline: Any, prompts: list[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call for these prompts. Raises RequestError for an option that the pipeline does not
    take, and for the name of a class that the model does not have."""
    known = inspect.signature(pipeline.__call__).parameters
    given = {name: value for name, value in options.items() if value is not None}
    if "negative_prompt" in given:
        given["negative_prompt"] = [given["negative_prompt"]] * len(prompts)
    if "class_labels" in known:
        given["class_labels"] = [class_label(pipeline, prompt) for prompt in prompts]
    else:
        given["prompt"] = prompts
    unknown = ", ".join(name for name in given if name not in known)
    if unknown:
        raise RequestError(
            f"{type(pipeline).__name__} takes no {unknown}.", f"Leave it out. It takes {', '.join(known)}."
        )
    return given


def class_label(pipeline: Any, prompt: str) -> int:
    """Returns the number of a class, by its number or its name. Raises RequestError."""
    if prompt.isdecimal():
        return int(prompt)
    if prompt not in pipeline.labels:
        raise RequestError(
            f"The model draws classes, and {prompt!r} is none.",
            "Use a class's number, or its name in model_index.json (id2label).",
        )
    return pipeline.labels[prompt]


def time_runs(run: Callable[[], list[np.ndarray]], repeats: int, device: torch.device) -> Timed:
    """Runs once as a warm-up, then `repeats` times more."""
    seconds, pictures = [], []
    for _ in range(1 + repeats):
        synchronise(device)
        began = time.perf_counter()
        pictures = run()
        synchronise(device)
        seconds.append(time.perf_counter() - began)
    return Timed(pictures, seconds[0], statistics.median(seconds[1:]) if repeats else None)


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    """Returns the norm of the difference, in that of the expected picture."""
    return float(np.linalg.norm(np.subtract(got, expected, dtype=float)) / np.linalg.norm(expected.astype(float)))


def peak_signal_to_noise(got: np.ndarray, expected: np.ndarray) -> float:
    """Returns the PSNR in dB. It is infinite for equal pictures."""
    mean_square = float(np.mean(np.square(np.subtract(got, expected, dtype=float))))
    return -10 * math.log10(mean_square) if mean_square else math.inf


def check_output(path: Path) -> None:
    """Raises RequestError if pictures cannot be saved there. So nobody waits for pictures in vain."""
    if path.suffix.lower() not in FORMATS or not path.parent.is_dir():
        raise RequestError(
            f"Pictures cannot be saved as {path}.",
            f"Use a name that ends in {', '.join(FORMATS)} (a video: {', '.join(MOVING)}), in a folder that exists.",
        )


def save(pictures: Sequence[np.ndarray], path: Path, fps: float) -> list[Path]:
    """Saves pictures, and returns their paths. Several have numbers: out-1.png, out-2.png. fps: of a video."""
    paths = [path]
    if len(pictures) > 1:
        paths = [path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(1, 1 + len(pictures))]
    for picture, own in zip(pictures, paths, strict=True):
        first, *others = DiffusionPipeline.numpy_to_pil(picture)
        moving: dict[str, Any] = {"save_all": True, "append_images": others, "duration": MILLISECONDS / fps, "loop": 0}
        first.save(own, **(moving if others else {}))
    return paths
