"""How functions that nodes run inside of a model share its work. A function without a row sees all tokens and rows."""

from __future__ import annotations

import types
from typing import Any, NamedTuple

from ...worker.inside.code_files import CodeFiles, file_of
from ...worker.wire.tensors import UnsendableError

LOCALS = "<locals>"


class Facts(NamedTuple):
    """node: that the function belongs to. tokens, rows: whether it computes the right result from a part of the tokens,
    or of a call's rows. apart: whether ranks can run different calls at the same time; not if it keeps something from
    call to call."""

    node: str
    tokens: bool = False
    rows: bool = False
    apart: bool = True


def row(node: str, file: str, name: str, *, tokens: bool = False, rows: bool = True) -> tuple[str, Facts]:
    """file: without its suffix, in comfy_extras if it names no folder. name: of the function in the file; NODE stands
    for the body of the node's `execute`."""
    place = file if "/" in file else f"comfy_extras/{file}"
    return f"{place}.py:{name.replace('NODE', f'{node}.execute.{LOCALS}')}", Facts(node, tokens, rows)


KNOWN = dict(
    [
        row("SkipLayerGuidanceDiT", "nodes_slg", "NODE.skip", tokens=True),
        row("SkipLayerGuidanceDiTSimple", "nodes_slg", "NODE.skip", tokens=True),
        row("NAGuidance", "nodes_nag", "NODE.nag_attention_output_patch", tokens=True, rows=False),
        row("FluxKVCache", "nodes_flux", "KV_Attn_Input"),
        row("FluxKVCache", "nodes_flux", "NODE.model_input_patch"),
        row("PerturbedAttentionGuidance", "nodes_pag", "NODE.perturbed_attention", tokens=True),
        row("FreeU", "nodes_freelunch", "NODE.output_block_patch"),
        row("FreeU_V2", "nodes_freelunch", "NODE.output_block_patch"),
        row("PatchModelAddDownscale", "nodes_model_downscale", "NODE.input_block_patch"),
        row("PatchModelAddDownscale", "nodes_model_downscale", "NODE.output_block_patch"),
        row("QwenImageDiffsynthControlnet", "nodes_model_patch", "DiffSynthCnetPatch", tokens=True),
        row("ZImageFunControlnet", "nodes_model_patch", "ZImageControlPatch"),
        row("WanUni3CControlnetApply", "nodes_model_patch", "WanUni3CCnetPatch", tokens=True, rows=False),
        row("AnimaLLLiteApply", "comfy/ldm/anima/lllite", "AnimaLLLitePatch"),
        row("AnimaLLLiteApply", "comfy/ldm/anima/lllite", "AnimaLLLiteAttentionPatch"),
        row("AnimaLLLiteApply", "comfy/ldm/anima/lllite", "AnimaLLLiteMLPPatch"),
        row("USOStyleReference", "nodes_model_patch", "UsoStyleProjectorPatch", tokens=True),
    ]
)


def find_facts(value: Any, files: CodeFiles) -> Facts | None:
    """Returns the facts of a function or of an object's class; None if nobody has measured it."""
    target = value if isinstance(value, (types.FunctionType, type)) else type(value)
    try:
        place = files.place_of(file_of(target))
    except UnsendableError:
        return None
    return KNOWN.get(f"{place.partition('/')[2]}:{target.__qualname__}")
