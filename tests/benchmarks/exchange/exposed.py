"""What of an exchange each family's blocks hide, and behind what: the table of docs/dev/03-exchange.md.

COMFYUI_PATH=… python -m tests.benchmarks.exchange.exposed [--write]

It runs nothing on ranks and measures nothing: it asks the code. For each of ComfyUI's families it builds a tiny model
with each list of blocks. "beside attention" is what `BlockList.parallel_mlp` lets `mlp_overlap` defer, with the weight
formats of which ComfyUI's can be split at the published width (`quantised_rows.STEPS`). "compiled" is what the pass of
`compiled_overlap` moves into attention, in the graph that torch makes of such a block.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from parallel_backend.hooks import Hooks
from parallel_backend.models.checks import attention_paths, modules_at
from parallel_backend.models.parallel_mlp import attention_rows, submodules
from parallel_backend.models.spec import BlockList, spec_named
from parallel_backend.seams.attention import install_attention
from parallel_backend.seams.attention_op import plain_attention
from parallel_backend.seams.compiled import CompiledBlocks
from parallel_backend.seams.compiled_overlap import arguments_of, is_attention, list_products
from parallel_backend.seams.forward import ForwardSlot
from tests.support.cases.host import CASES
from tests.support.fakes.measure import import_comfyui
from tests.support.pages import show_table

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


def main() -> None:
    torch.set_num_threads(1)
    import_comfyui()
    show_table("overlap", families_table())


if __name__ == "__main__":
    main()
