"""How functions that nodes run inside of a model share its work. A function without a row sees all tokens and rows."""

from __future__ import annotations

import types
from typing import Any, NamedTuple

import torch

from ...parallel_backend.models import spec_named
from ...parallel_backend.models.checks import differences
from ...worker.inside.code_files import CodeFiles, file_of
from ...worker.wire.tensors import UnsendableError

LOCALS = "<locals>"


class Facts(NamedTuple):
    """node: that the function belongs to. tokens, rows: whether it computes the right result from a part of the tokens,
    or of a call's rows. apart: whether ranks can run different calls at the same time; not if it keeps something from
    call to call. by_network: whether it computes from a part of the tokens only if its network does. reads_pack:
    whether it may read variables of a node pack, and options that only the pack reads. between: whether it runs where
    the ranks can have all tokens, such as between the blocks."""

    node: str
    tokens: bool = False
    rows: bool = False
    apart: bool = True
    by_network: bool = False
    reads_pack: bool = False
    between: bool = False


def row(
    node: str, file: str, name: str, *, tokens: bool = False, rows: bool = True, by_network: bool = False
) -> tuple[str, Facts]:
    """file: without its suffix, in comfy_extras if it names no folder. name: of the function in the file; NODE stands
    for the body of the node's `execute`."""
    place = file if "/" in file else f"comfy_extras/{file}"
    return f"{place}.py:{name.replace('NODE', f'{node}.execute.{LOCALS}')}", Facts(
        node, tokens or by_network, rows, by_network=by_network
    )


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
        row("QwenImageDiffsynthControlnet", "nodes_model_patch", "DiffSynthCnetPatch", by_network=True),
        row("ZImageFunControlnet", "nodes_model_patch", "ZImageControlPatch", by_network=True),
        row("WanUni3CControlnetApply", "nodes_model_patch", "WanUni3CCnetPatch", rows=False, by_network=True),
        row("AnimaLLLiteApply", "comfy/ldm/anima/lllite", "AnimaLLLitePatch", by_network=True),
        row("AnimaLLLiteApply", "comfy/ldm/anima/lllite", "AnimaLLLiteAttentionPatch", by_network=True),
        row("AnimaLLLiteApply", "comfy/ldm/anima/lllite", "AnimaLLLiteMLPPatch", by_network=True),
        row(
            "WanInfiniteTalkToVideo", "comfy/ldm/wan/model_multitalk", "MultiTalkCrossAttnPatch", rows=False,
            by_network=True,
        ),
        # With two speakers: each token is compared with the keys of the whole first frame, and with all other tokens.
        row("WanInfiniteTalkToVideo", "comfy/ldm/wan/model_multitalk", "MultiTalkGetAttnMapPatch", rows=False),
        row("USOStyleReference", "nodes_model_patch", "UsoStyleProjectorPatch", tokens=True),
    ]
)  # fmt: skip
SHARES = "paralleldit_shares_tokens"  # attribute of a network


def find_facts(value: Any, files: CodeFiles) -> Facts | None:
    """Returns the facts of ComfyUI's function, or of an object's class; None if nobody has measured it."""
    target, place = find_place(value, files)
    facts = KNOWN.get(f"{place}:{target.__qualname__}")
    if facts and facts.by_network and not shares_tokens(network_of(value), files):
        return facts._replace(tokens=False)
    return facts


def find_place(value: Any, files: CodeFiles) -> tuple[types.FunctionType | type, str]:
    """Returns a function, or an object's class, and the place of its file in ComfyUI's folder or in that of the packs;
    empty if it is in neither."""
    function = getattr(value, "__func__", value)
    target = function if isinstance(function, (types.FunctionType, type)) else type(value)
    try:
        return target, files.place_of(file_of(target)).partition("/")[2]
    except UnsendableError:
        return target, ""


def network_of(patch: Any) -> torch.nn.Module:
    """Returns the network of one of ComfyUI's patches, or of the patch that it is a part of."""
    return getattr(patch, "patch", patch).model_patch.model


def shares_tokens(network: torch.nn.Module, files: CodeFiles) -> bool:
    """Whether the ranks know how to share the tokens of a network inside of the model."""
    kept = vars(network)
    if SHARES not in kept:
        try:
            place = files.place_of(file_of(type(network)))
        except UnsendableError:
            return False
        module = place.partition("/")[2].removesuffix(".py").replace("/", ".")
        spec = spec_named(f"{module}.{type(network).__qualname__}")
        kept[SHARES] = spec is not None and spec.inside is not None and not any(differences(network, spec))
    return kept[SHARES]
