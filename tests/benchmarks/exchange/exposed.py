"""What of an exchange each family's blocks hide, and behind what: the tables of docs/dev/14-overlap.md.

COMFYUI_PATH=… python -m tests.benchmarks.exchange.exposed [--write]

It runs nothing on ranks and measures nothing: it asks the code. For each of ComfyUI's families it builds a tiny model
with each list of blocks. "beside attention" is what `BlockList.parallel_mlp` lets `mlp_overlap` defer, with the weight
formats of which ComfyUI's can be split at the published width (`quantised_rows.STEPS`). "compiled" is what the pass of
`compiled_overlap` moves into attention, in the graph that torch makes of such a block. The shares of an exchange are
those of `costs.predict.EXCHANGES`, which predictions go by. "left" is what these predict for models of published sizes
on links as `profiles` has them: the seconds of an exchange in which a rank has nothing to compute.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from parallel_backend.costs.forward import Cost, ForwardCost
from parallel_backend.costs.machine import Link, Machine, Speed
from parallel_backend.costs.predict import EXCHANGES, predict
from parallel_backend.hooks import Hooks
from parallel_backend.models.checks import attention_paths, modules_at
from parallel_backend.models.parallel_mlp import attention_rows, submodules
from parallel_backend.models.spec import BlockList, spec_named
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.attention import install_attention
from parallel_backend.seams.attention_op import plain_attention
from parallel_backend.seams.compiled import CompiledBlocks
from parallel_backend.seams.compiled_overlap import arguments_of, is_attention, list_products
from parallel_backend.seams.forward import ForwardSlot
from tests.support.cases.host import CASES
from tests.support.fakes.measure import import_comfyui
from tests.support.links.profiles import CARD_ITEMSIZE, PROFILES, Profile
from tests.support.pages import write_table

# By family, the row of `CASES`, and the published width of all heads.
FAMILIES = {
    "Flux.1": ("flux-dev", 3072),
    "Flux.2": ("flux2", 6144),
    "Chroma": ("chroma", 3072),
    "HunyuanVideo": ("hunyuanvideo", 3072),
    "Qwen-Image": ("qwen-image", 3072),
    "SD3": ("sd3", 1536),
    "AuraFlow": ("auraflow", 3072),
    "Z-Image": ("zimage", 3840),
    "Lumina 2": ("lumina2", 2304),
    "PixArt": ("pixart", 1152),
    "HunyuanDiT": ("hunyuandit", 1408),
    "Wan": ("wan-t2v", 5120),
    "LTX": ("ltxv", 2048),
    "LTX 2": ("ltx2", 4096),
    "CogVideoX": ("cogvideox", 3072),
    "Cosmos Predict 2": ("cosmos-predict2", 2048),
}
NOTHING = "–"


class Published(NamedTuple):
    """A model of a published size. tokens: of a picture or video, and of text that its blocks have beside it. weights:
    of a block, by the square of a token's width. mlp: the MLP's width beside attention, by that of a token. beside: the
    share of its blocks with such an MLP."""

    name: str
    tokens: int
    hidden: int
    heads: int
    blocks: int
    weights: float
    mlp: float = 0.0
    beside: float = 0.0


PUBLISHED = (
    Published("Flux.1, 1024²", 4608, 3072, 24, 57, 12, 4, 38 / 57),
    Published("Wan 14B, 81 frames, 832 × 480", 32760, 5120, 40, 40, 11.4),
    Published("Z-Image, 1024²", 4224, 3840, 30, 30, 12),
)
LINKS = ("PCIe 4.0 x16", "PCIe 4.0 x16, peer-to-peer")
RANKS = 4
PIECES = (1, 2, 3)
LATENCY = 2e-5  # seconds, of an exchange over PCIe
LAYER = re.compile(r"(?<=modules_)(.+?)(?=_modules_|_parameters_)")


class Overlap(NamedTuple):
    """What a list of blocks computes while tokens travel. deferred: layers, in blocks that run as they are; if a layer
    has a number, its rows from there on. compiled: layers, in compiled blocks. splits: whether each format of
    quantised weights can be split there."""

    path: str
    deferred: tuple[str, ...]
    compiled: tuple[str, ...]
    splits: bool


def find_overlaps(row: str, width: int) -> list[Overlap]:
    """Returns what each list of blocks of a case that attends over the ranks computes meanwhile. width: the published
    one."""
    case = CASES[row]
    spec, steps = spec_named(case.model_class), importlib.import_module("worker.comfyui.quantised_rows").STEPS
    assert spec
    found, seen = [], set()
    for blocks in spec.blocks:
        model = case.build()
        block = next((each for each in list_blocks(model, blocks) if attention_paths(each, blocks)), None)
        if block is None or blocks.path in seen:
            continue
        seen.add(blocks.path)
        layers = submodules(block, blocks.parallel_mlp)
        rows = {path: attention_rows(blocks.parallel_mlp[path], width) for path in layers}
        linear = [path for path, layer in layers.items() if isinstance(layer, torch.nn.Linear)]
        deferred = tuple(f"{path}[{rows[path]}:]" if rows[path] else path for path in linear)
        splits = all(rows[path] % step == 0 for path in linear for step in steps.values())
        found.append(Overlap(blocks.path, deferred, trace_products(model, block, blocks, case.inputs()), splits))
    return found


def list_blocks(model: torch.nn.Module, blocks: BlockList) -> list[torch.nn.Module]:
    try:
        return modules_at(model, blocks.path)
    except AttributeError:
        return []


@torch.no_grad()
def trace_products(model: torch.nn.Module, block: torch.nn.Module, blocks: BlockList, call: Any) -> tuple[str, ...]:
    """Compiles one block of a model, and returns the layers that attention would compute."""
    found: list[str] = []
    hooks, slot = Hooks(), ForwardSlot()
    for path in attention_paths(block, blocks):
        install_attention(block, path, [plain_attention], hooks, slot)

    def backend(module: torch.fx.GraphModule, _inputs: Sequence[Any], **_: Any) -> Any:
        for attention in [node for node in module.graph.nodes if is_attention(node)]:
            for layer, _, first in list_products(module.graph, attention):
                name = name_layer(str(arguments_of(layer)[1]))
                found.append(f"{name}[n:]" if first else name)
        return module.forward

    torch.compiler.reset()
    args, kwargs = call
    kwargs.setdefault("transformer_options", {})
    with CompiledBlocks([block], torch.device("cpu")).running({"backend": backend}):
        model(*args, **kwargs)
    hooks.remove()
    return tuple(dict.fromkeys(found))


def name_layer(weight: str) -> str:
    """Returns a layer's path, from torch's name of its weight in a graph."""
    return ".".join(LAYER.findall(weight)) or weight


def shares_table() -> str:
    """What of an exchange can hide, whatever the family: the parts of its bytes on each rank."""
    lines = ["| axis | behind attention | first wait | last part, always exposed |", "|---|---|---|---|"]
    ulysses = EXCHANGES["ulysses"]
    first = 1 - ulysses.covered - ulysses.last
    lines.append(f"| `ulysses` | {ulysses.covered:.0%} | {first:.0%} | {ulysses.last:.0%} |")
    lines.append("| `ring`, N ranks | each hop, up to 1/N of attention's time | the first hop's rest | none |")
    return "\n".join(lines) + "\n"


def families_table() -> str:
    lines = [
        "| family | blocks | beside attention | as quantised rows | in compiled blocks |",
        "|---|---|---|---|---|",
    ]
    for family, (row, width) in FAMILIES.items():
        for each in find_overlaps(row, width):
            beside, compiled = (", ".join(f"`{name}`" for name in names) or NOTHING for names in each[1:3])
            quantised = NOTHING if not each.deferred else "all formats" if each.splits else "formats without tiles"
            lines.append(f"| {family} | `{each.path}` | {beside} | {quantised} | {compiled} |")
    return "\n".join(lines) + "\n"


def left_table() -> str:
    pieces = " | ".join(f"left in {each} pieces" if each > 1 else "left" for each in PIECES)
    lines = [
        f"| of a block, in ms | attention | exchange | {pieces} | exchange, peer-to-peer | {pieces} |",
        f"|---|---|{'---|' * 2 * (1 + len(PIECES))}",
    ]
    for model in PUBLISHED:
        cells = [model.name]
        for link in LINKS:
            found = [estimate_left(model, RANKS, PROFILES[link], each) for each in PIECES]
            cells += [f"{found[0].exchange:.1f}", *(f"{each.share:.0%}" for each in found)]
        lines.append(f"| {' | '.join([cells[0], f'{found[0].attention:.1f}', *cells[1:]])} |")
    return "\n".join(lines) + "\n"


class Left(NamedTuple):
    """Milliseconds of a block's exchange and of its attention on a rank, and the share of the exchange that nothing
    hides."""

    exchange: float
    attention: float
    share: float


def estimate_left(model: Published, ranks: int, profile: Profile, pieces: int = 1) -> Left:
    activation = model.tokens * model.hidden * CARD_ITEMSIZE
    attention = 4.0 * model.tokens**2 * model.hidden * model.blocks
    overlap = 2.0 * model.tokens * model.hidden**2 * model.mlp * model.blocks * model.beside
    linear = 2.0 * model.tokens * model.hidden**2 * model.weights * model.blocks
    blocks = Cost(linear=linear, attention=attention, overlap=overlap)
    forward = ForwardCost(blocks, Cost(), model.blocks, activation, 0, 0, model.heads, 0, parallel=model.beside)
    free = Speed("", profile.card, profile.card, math.inf, 0.0, math.inf, math.inf, math.inf)
    link, plan = Link(profile.link, LATENCY), ParallelPlan(ulysses=ranks, pieces=pieces)
    waiting = predict(forward, 1, plan, Machine((free,) * ranks, link, link, link, link)).waiting - link.latency
    ulysses = EXCHANGES["ulysses"]
    needed = link.seconds(ulysses.sent(activation, ranks, 1.0), ulysses.times(ranks))
    computing = attention / model.blocks / ranks / profile.card
    return Left(1000 * needed, 1000 * computing, waiting / model.blocks / needed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    import_comfyui()
    for name, made in (("shares", shares_table()), ("left", left_table()), ("overlap", families_table())):
        print(made)
        if options.write:
            write_table(name, made)


if __name__ == "__main__":
    main()
