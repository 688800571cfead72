"""What each rank takes of memory, and reads of the model's file, under every kind of `weights`, beside the formula.

COMFYUI_PATH=… python -m tests.benchmarks.memory

Models of published proportions, narrower, of random weights in bf16, by diffusers' classes and by ComfyUI's. Every case
is loaded and run by the ranks' own code on CPU ranks, where a rank's device is its memory. Of all ranks the one with
most, in MB (1e6), and in brackets by how much that is more than `WeightSizes` says, to be at most 3 %:

live: storages that hold the device's part of the weights, at rest, against `kept`; while loading, against that and the
largest block; in a forward, with its activations, against `kept`. read: bytes of the file, of the rank that reads most.
copy: the host memory of the machine that all ranks together have.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import diffusers
import torch
from safetensors.torch import save_file

from parallel_backend.plan import HOST, SHARED, WHOLE
from tests.support.fakes.models import LIBRARIES
from tests.support.programs import run_program
from tests.support.ranks.pool import RankPool

PROGRAM = "weights.footprint_ranks"
NEAR = 0.03
SLACK = 1e6  # bytes, of activations
MB = 1e6
WORLDS = (1, 2, 4)
ARGUMENTS = ("--cpu", "--use-pytorch-cross-attention")


@dataclass(frozen=True)
class Shape:
    """A model. published: its name in `LIBRARIES`; narrowed: what its config has in place of the published.

    latents, tokens: of a request, which has to be small: activations are not what is measured. stock: the case of
    `SIZED_CASES` that has the same shape of ComfyUI's class, if one has. tables: bytes of positions' that the class has
    beside weights, however narrow it is.
    """

    published: str
    narrowed: dict[str, Any]
    latents: tuple[int, ...]
    tokens: int = 8
    stock: str = ""
    tables: int = 0
    conditions: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of ComfyUI's class


FLUX_TEXT = {"context": (8, 32), "y": (16,), "guidance": ()}
SHAPES = {
    "flux": Shape(
        "flux-dev",
        {"num_attention_heads": 4, "num_layers": 10, "num_single_layers": 20},
        (16, 8, 8),
        stock="flux-to-weigh",
        conditions=FLUX_TEXT,
    ),
    "wan": Shape(
        "wan-14b",
        {"num_attention_heads": 8, "ffn_dim": 4096, "num_layers": 14},
        (16, 1, 8, 8),
        stock="wan-to-weigh",
        conditions={"context": (8, 4096)},
    ),
    "qwen": Shape("qwen-image", {"num_attention_heads": 4, "num_layers": 20}, (16, 1, 8, 8), tables=2 * 4096 * 64 * 8),
}


def write_model(shape: Shape, library: str, folder: Path) -> dict[str, Any]:
    """The file of a library's class in bf16, and its `ModelSource` or `HostSource`."""
    if library == "comfyui":
        comfyui = os.environ["COMFYUI_PATH"]
        run_program(Path(comfyui), "tests.support.files.write_stock_models", folder, shape.stock)
        unsaid = {"model_class": "", "cast": "", "dtype": "bfloat16"}
        file = str(folder / f"{shape.stock}.safetensors")
        return {"comfyui": comfyui, "arguments": ARGUMENTS, "file": file, **unsaid}
    model, path = LIBRARIES["diffusers"][shape.published], folder / "diffusers.safetensors"
    config = {**model.config_of(), **shape.narrowed}
    with torch.device("meta"):
        empty = getattr(diffusers, model.model_class)(**config)
    random = torch.Generator().manual_seed(0)
    weights = {
        name: torch.empty(held.shape, dtype=torch.bfloat16).uniform_(-0.02, 0.02, generator=random)
        for name, held in empty.state_dict().items()
    }
    save_file(weights, path)
    return {"model_class": model.model_class, "config": config, "files": [str(path)], "dtype": "bf16"}


def cases_of(shape: Shape, library: str, source: dict[str, Any], ranks: int) -> Iterator[dict[str, Any]]:
    """Every kind of weights, of all blocks and of half of them."""
    model = LIBRARIES["diffusers"][shape.published]
    half = sum(shape.narrowed.get(name, 0) for name in model.depths) // 2
    kinds = [(kind, count) for kind in (SHARED, HOST) for count in sorted({0, half})]
    conditions = shape.conditions
    if library == "diffusers":
        conditions = {
            name: (shape.tokens, *of[1:]) if name.startswith("encoder") else of for name, of in model.conditions.items()
        }
    for kind, count in [(WHOLE, 0), *kinds]:
        if kind != SHARED or ranks > 1:
            yield {
                "library": library,
                "plan": {"ulysses": ranks, "weights": kind, "weight_blocks": count},
                "source": source,
                "files": source.get("files") or [source["file"]],
                "latents": shape.latents,
                "conditions": conditions,
                "tables": shape.tables,
            }


LIVE, LOADING, FORWARD, READ, COPY = "live", "loading: live", "forward: live", "read", "copy"


@dataclass(frozen=True)
class Line:
    """A case on all ranks: what was measured and what was told, in bytes, by name; of the rank with most."""

    title: str
    figures: dict[str, tuple[float, float]]
    exact: bool

    @property
    def missed(self) -> list[str]:
        """What is more than it may be, or less than can be. Loading may take less than it may."""
        off = {name: (found - told, NEAR * told + SLACK) for name, (found, told) in self.figures.items()}
        return [name for name, (more, most) in off.items() if more > most or (name != LOADING and -more > most)]


def line_of(case: dict[str, Any], by_rank: list[dict[str, Any]], outputs: dict[str, int]) -> Line:
    """outputs: what came out of each model under whole weights, which this adds to."""
    plan, first = case["plan"], by_rank[0]

    def most(name: str) -> float:
        return max(each[name] for each in by_rank)

    told, largest = most("told") + case["tables"], most("largest")
    figures = {
        LIVE: (most("live"), told),
        LOADING: (most("loading live"), told + largest),
        FORWARD: (most("block live"), told),
        READ: (most("read"), most("told read")),
        COPY: (sum(each["copy"] for each in by_rank), first["told copy"]),
    }
    blocks = f" {plan['weight_blocks']}" if plan["weight_blocks"] else ""
    kept = outputs.setdefault(case["library"], first["output"])
    title = f"{case['library']:9} {len(by_rank)} {plan['weights'] + blocks}"
    return Line(title, figures, kept == first["output"])


def measure(cases: list[dict[str, Any]], ranks: int, pool: RankPool) -> Iterator[Line]:
    outputs: dict[str, int] = {}
    for case, *found in zip(cases, *pool.run(ranks, PROGRAM, cases), strict=True):
        yield line_of(case, found, outputs)


def printed(line: Line) -> str:
    cells = []
    for name, (found, told) in line.figures.items():
        more = f"({100 * (found / told - 1):+.0f}%)" if told > SLACK else ""
        cells.append(f"{found / MB:8.1f} {more:8}{'!' if name in line.missed else ' '}")
    return f"{line.title:34}{''.join(cells)} {'exact' if line.exact else 'OUTPUT DIFFERS'}"


def main() -> int:
    """Returns 1 where a figure is not what it is to be."""
    is_good = True
    for name, shape in SHAPES.items():
        for library in LIBRARIES if shape.stock else ("diffusers",):
            with tempfile.TemporaryDirectory(prefix="memory-") as folder, RankPool(Path(folder)) as pool:
                source = write_model(shape, library, Path(folder))
                measured = (measure(list(cases_of(shape, library, source, ranks)), ranks, pool) for ranks in WORLDS)
                for index, line in enumerate(chain.from_iterable(measured)):
                    if not index:
                        print(f"\n{name:34}{''.join(f'{each:18}' for each in line.figures)}")
                    print(printed(line), flush=True)
                    is_good &= line.exact and not line.missed
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
