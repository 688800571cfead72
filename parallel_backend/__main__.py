"""Draws pictures with a diffusers pipeline folder on all ranks, from the command line.

    torchrun --nproc-per-node=4 -m parallel_backend FOLDER --prompt "a cat" --ulysses 2 --cfg 2 --output out.png

The plan's options are the fields of ParallelPlan.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import Explained, RequestError
from .plan import CHOICES, ParallelPlan

if TYPE_CHECKING:
    import torch

    from .command.drawing import Order

GIGABYTE = 1 << 30
PATIENCE = 10.0  # seconds, see `main`
FIELDS = {field.name: field for field in fields(ParallelPlan)}


def describe_fields() -> dict[str, str]:
    """Returns the description of each of the plan's fields, as its docstring has them."""
    names = "|".join(FIELDS)
    text = inspect.getdoc(ParallelPlan) or ""
    found = re.findall(rf"^({names}): (.*?)(?=^(?:{names}): |^\s*$|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return {name: " ".join(described.split()) for name, described in found}


def parse_value(text: str, default: object) -> object:
    """Returns a field's value. A text that is none stays as it is, and the plan says what would be one."""
    try:
        if isinstance(default, tuple):
            return tuple(map(float, text.split(",")))
        return int(text) if isinstance(default, int) else text
    except ValueError:
        return text


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Adds an option for each of the plan's fields."""
    group = parser.add_argument_group("the plan", "The product of the degrees is the number of ranks.")
    described = describe_fields()
    for name, field in FIELDS.items():
        several = isinstance(field.default, tuple)
        choices = f" One of {', '.join(CHOICES[name])}." if name in CHOICES else " With commas between." * several
        default = "" if several else f" Default: {field.default}."
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=lambda text, default=field.default: parse_value(text, default),
            default=field.default,
            metavar=name.upper(),
            help=f"{described.get(name, '')}{choices}{default}".replace("%", "%%"),
        )


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node=RANKS -m parallel_backend",
        description="Draws a picture for each prompt and each seed with a diffusers pipeline folder, on all ranks.",
    )
    parser.add_argument("folder", help="a diffusers pipeline folder")
    parser.add_argument("--prompt", action="append", default=[], help="may be given several times; or a class")
    parser.add_argument("--prompt-file", type=Path, help="a file with a prompt on each line")
    parser.add_argument("--negative-prompt")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="SEED", help="default: 0")
    parser.add_argument("--batch", type=int, help="pictures in a call; default: one for each of the plan's dp groups")
    parser.add_argument("--steps", type=int, help="default: the pipeline's")
    parser.add_argument("--guidance", type=float, help="guidance_scale; default: the pipeline's")
    parser.add_argument("--height", type=int, help="in pixels; default: the pipeline's")
    parser.add_argument("--width", type=int, help="in pixels; default: the pipeline's")
    parser.add_argument(
        "--argument",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another argument of the pipeline's call, such as num_frames=33; the value as JSON, or a text",
    )
    parser.add_argument("--vae", action="store_true", help="share the rows of what the VAE decodes, too")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), help="default: bf16 on a GPU, fp32 on a CPU")
    parser.add_argument("--device", help="a kind of device by its name in torch; default: the accelerator")
    parser.add_argument("--output", type=Path, help="out.png; several pictures are out-1.png, out-2.png, …")
    parser.add_argument("--fps", type=float, default=16, help="of a video; default: 16")
    parser.add_argument("--repeat", type=int, default=0, help="time this many more runs, and report their median")
    parser.add_argument("--compare", action="store_true", help="draw on one device, too, and report the difference")
    add_plan(parser)
    return parser.parse_args(arguments)


def order_of(options: argparse.Namespace, plan: ParallelPlan) -> Order:
    """Returns what to draw. Raises RequestError."""
    from .command.drawing import Order

    prompts = list(options.prompt)
    if options.prompt_file:
        try:
            lines = options.prompt_file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise RequestError(f"{options.prompt_file} cannot be read: {error}.") from error
        prompts += [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise RequestError("There is no prompt.", "Give --prompt, or --prompt-file with a prompt on each line.")
    batch = plan.dp if options.batch is None else options.batch
    if batch < 1 or options.repeat < 0:
        raise RequestError(f"--batch {batch} --repeat {options.repeat} does not work.", "Use 1 or more, and 0 or more.")
    given = {
        "negative_prompt": options.negative_prompt,
        "num_inference_steps": options.steps,
        "guidance_scale": options.guidance,
        "height": options.height,
        "width": options.width,
    }
    return Order(prompts, options.seeds, batch, {**given, **dict(map(parse_argument, options.argument))})


def parse_argument(text: str) -> tuple[str, Any]:
    """Returns name and value of NAME=VALUE. Raises RequestError."""
    name, equals, value = text.partition("=")
    if not name.isidentifier() or not equals:
        raise RequestError(f"--argument {text} names no argument.", "Write NAME=VALUE.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def say(text: str) -> None:
    """Prints a line, on rank 0 alone."""
    if is_first():
        print(text, flush=True)


def is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def dtype_of(options: argparse.Namespace, device: torch.device) -> str:
    from .device import is_accelerator

    return options.dtype or ("bf16" if is_accelerator(device) else "fp32")


def join(kind: str | None, plan: ParallelPlan) -> torch.device:
    """Joins torchrun's group, and returns this rank's device. Raises PlanError if the plan is for other ranks."""
    from .groups.collectives import gather_numbers
    from .groups.mesh import start_distributed
    from .library import check_world

    device = start_distributed(kind)
    gather_numbers((0,), None)  # a rank that left before another had joined would break that one's start
    check_world(plan)
    return device


def draw_on_ranks(options: argparse.Namespace, plan: ParallelPlan, order: Order) -> None:
    """Draws on torchrun's ranks, and reports. Raises what `parallelize` raises."""
    import torch.distributed as dist

    from .command import drawing
    from .device import peak_bytes
    from .groups.collectives import gather_numbers
    from .library import MODELS, load_transformer, parallelize
    from .weights.loading import DTYPES

    if options.output:
        drawing.check_output(options.output)
    device = join(options.device, plan)  # before the weights are read
    dtype, folder = dtype_of(options, device), options.folder
    names = [name for name in MODELS if Path(folder, name).is_dir()] or [MODELS[0]]
    parts = {name: load_transformer(folder, plan, device, dtype, name).model for name in names}
    pipeline: Any = drawing.load_pipeline(folder, DTYPES[dtype], not is_first(), **parts).to(device)
    parallelize(pipeline, plan, options.vae)
    timed = drawing.time_runs(lambda: drawing.draw(pipeline, order), options.repeat, device)
    say(f"{len(timed.pictures)} pictures with {plan}: {timed}")
    peaks = [f"{size / GIGABYTE:.2f}" for (size,) in gather_numbers((peak_bytes(device),), None)]
    say(f"peak memory by rank: {', '.join(peaks)} GiB")
    if options.output and is_first():
        say(f"saved {', '.join(map(str, drawing.save(timed.pictures, options.output, options.fps)))}")
    dist.destroy_process_group()
    if not options.compare or not is_first():  # the other ranks are done, and leave the machine to rank 0
        return
    del parts
    pipeline = drawing.load_pipeline(folder, DTYPES[dtype], False).to(device)
    alone = drawing.time_runs(lambda: drawing.draw(pipeline, order), options.repeat, device)
    say(f"one device: {alone}; the plan is {alone.seconds / timed.seconds:.2f} times as fast")
    for number, (got, expected) in enumerate(zip(timed.pictures, alone.pictures, strict=True), 1):
        error, noise = (measure(got, expected) for measure in (drawing.relative_error, drawing.peak_signal_to_noise))
        say(f"picture {number}: relative error {error:.2e}, PSNR {noise:.1f} dB")


def main(arguments: Sequence[str] | None = None, patience: float = PATIENCE) -> int:
    """Returns the exit code: 2 if the request cannot be served. Rank 0 says why, and what to do.

    patience: seconds until another rank says it. When rank 0 ends, torchrun ends the others, which mostly were to say
    the same.
    """
    options = parse_arguments(arguments)
    try:
        plan = ParallelPlan.from_json({name: getattr(options, name) for name in FIELDS})
        order = order_of(options, plan)
        draw_on_ranks(options, plan, order)
    except Explained as error:
        if not is_first():
            time.sleep(patience)
        print(error.explanation, file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
