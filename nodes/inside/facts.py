"""How functions that nodes run inside of a model share its work, as somebody has measured it.

A function without a row sees all tokens and rows. A node pack's row holds for the text that was read: a function with
another text has none, until it is read again.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ...parallel_backend.models import spec_named
from ...parallel_backend.models.checks import differences
from ...worker.inside.code_files import CodeFiles, file_of
from ...worker.wire.tensors import UnsendableError

LOCALS = "<locals>"
PACK = "PACK"  # the folder of a node pack, in the table


class Facts(NamedTuple):
    """node: that the function belongs to. splits_tokens, splits_rows: whether it computes the right result from a part
    of the tokens, or of a call's rows. is_stateless: whether it keeps nothing from call to call, so that ranks can run
    different calls at the same time. by_network: whether it computes from a part of the tokens only if its network
    does. reads_pack: whether it may read variables of a node pack, and options that only the pack reads. between:
    whether it runs where the ranks can have all tokens, such as between the blocks. place: where it runs, in words."""

    node: str
    splits_tokens: bool = False
    splits_rows: bool = False
    is_stateless: bool = True
    by_network: bool = False
    reads_pack: bool = False
    between: bool = False
    place: str = ""


# A function or class that somebody has read, and compared with stock: its facts, and see `row`.
Known = tuple[Facts, str, tuple[str, ...], Callable[[Any], bool]]


def row(
    node: str, file: str, name: str, helpers: tuple[str, ...] = (), text: str = "",
    holds: Callable[[Any], bool] = lambda _value: True, splits_rows: bool = True, **columns: bool,
) -> tuple[str, Known]:  # fmt: skip
    """Returns where a function or class is, and what is known of it. node: for the user. file: without its suffix,
    in comfy_extras if it names no folder. name: in the file; NODE stands for the body of the node's `execute`. text:
    the hash of a pack's text, with that of helpers: functions and classes of the same file that it uses. holds: whether
    the facts hold for it as it is set up."""
    file = file if "/" in file else f"comfy_extras/{file}"
    facts = Facts(node, splits_rows=splits_rows, place="", **{"reads_pack": bool(text), **columns})
    where = f"{file}.py:{name.replace('NODE', f'{node}.execute.{LOCALS}')}"
    return where, (facts, text, helpers, holds)


def has_no_mask(patch: Any) -> bool:
    """Whether IPAdapter's functions alone see all tokens alike."""
    are_its_own = all(each.__qualname__ == "ipadapter_attention" for each in patch.callback)
    return are_its_own and all(each["mask"] is None for each in patch.kwargs)


KJ_MODELS, KJ_LTXV = f"{PACK}/nodes/model_optimization_nodes", f"{PACK}/nodes/ltxv_nodes"
BOUND = f"__get__.{LOCALS}"  # where these make a function of a module
# By the file and the name in it.
KNOWN = dict((
    row("SkipLayerGuidanceDiT", "nodes_slg", "NODE.skip", splits_tokens=True),
    row("SkipLayerGuidanceDiTSimple", "nodes_slg", "NODE.skip", splits_tokens=True),
    row("NAGuidance", "nodes_nag", "NODE.nag_attention_output_patch", splits_tokens=True, splits_rows=False),
    row("FluxKVCache", "nodes_flux", "KV_Attn_Input", is_stateless=False),
    row("FluxKVCache", "nodes_flux", "NODE.model_input_patch"),
    row("PerturbedAttentionGuidance", "nodes_pag", "NODE.perturbed_attention", splits_tokens=True),
    row("FreeU", "nodes_freelunch", "NODE.output_block_patch"),
    row("FreeU_V2", "nodes_freelunch", "NODE.output_block_patch"),
    row("PatchModelAddDownscale", "nodes_model_downscale", "NODE.input_block_patch"),
    row("PatchModelAddDownscale", "nodes_model_downscale", "NODE.output_block_patch"),
    row("QwenImageDiffsynthControlnet", "nodes_model_patch", "DiffSynthCnetPatch", by_network=True),
    row("ZImageFunControlnet", "nodes_model_patch", "ZImageControlPatch", by_network=True),
    row("WanUni3CControlnetApply", "nodes_model_patch", "WanUni3CCnetPatch", splits_rows=False, by_network=True),
    row("AnimaLLLiteApply", "comfy/ldm/anima/lllite", "AnimaLLLitePatch", by_network=True),
    row("AnimaLLLiteApply", "comfy/ldm/anima/lllite", "AnimaLLLiteAttentionPatch", by_network=True),
    row("AnimaLLLiteApply", "comfy/ldm/anima/lllite", "AnimaLLLiteMLPPatch", by_network=True),
    row(
        "WanInfiniteTalkToVideo", "comfy/ldm/wan/model_multitalk", "MultiTalkCrossAttnPatch", splits_rows=False,
        by_network=True,
    ),
    # With two speakers: each token is compared with the keys of the whole first frame, and with all other tokens.
    row("WanInfiniteTalkToVideo", "comfy/ldm/wan/model_multitalk", "MultiTalkGetAttnMapPatch", splits_rows=False),
    row("USOStyleReference", "nodes_model_patch", "UsoStyleProjectorPatch", splits_tokens=True),
    row(
        "PerturbedAttention", f"{PACK}/guidance_utils", "perturbed_attention", text="cf1ee8c8b77ff234",
        splits_tokens=True,
    ),
    row(
        "SmoothedEnergyGuidanceAdvanced", f"{PACK}/guidance_utils", f"seg_attention_wrapper.{LOCALS}.seg_attention",
        ("gaussian_blur_2d",), text="eb3e56ae11e8c5b5",
    ),
    row(
        "IPAdapter", f"{PACK}/CrossAttentionPatch", "Attn2Replace", ("ipadapter_attention",), text="fa015b51a2f0daa6",
        splits_tokens=True, splits_rows=False, holds=has_no_mask,
    ),
    row(
        "WanVideoNAG", KJ_MODELS, f"WanCrossAttentionPatch.{BOUND}.wrapped_attention", (
            "wan_crossattn_forward_nag", "wan_i2v_crossattn_forward_nag", "wan_nag_attention",
            "_wan_compute_attention", "normalized_attention_guidance",
        ), text="ded48d16908374d7", splits_tokens=True, splits_rows=False,
    ),
    row(
        "WanChunkFeedForward", KJ_MODELS, f"WanffnChunkPatch.{BOUND}.wrapped_forward", ("wan_ffn_chunked_forward",),
        text="072b0d2a844519cc", splits_tokens=True,
    ),
    row(
        "LTXVChunkFeedForward", KJ_LTXV, f"LTXVffnChunkPatch.{BOUND}.wrapped_forward", ("ffn_chunked_forward",),
        text="f7455ce52a8988e2", splits_tokens=True,
    ),
    row(
        "LTX2_NAG", KJ_LTXV, f"LTXVCrossAttentionPatch.{BOUND}.wrapped_attention", (
            "ltxv_crossattn_forward_nag", "nag_attention", "normalized_attention_guidance",
        ), text="abaa7cc9d97c0c41", splits_tokens=True, splits_rows=False,
    ),
    # It wraps the blocks of all UNets where the pack is installed.
    row(
        "layerdiffuse", f"{PACK}/lib_layerdiffusion/attention_sharing", "BasicTransformerBlock.forward",
        text="0abb8be26815ece2", splits_tokens=True, reads_pack=False,
    ),
))  # fmt: skip
SHARES = "paralleldit_shares_tokens"  # attribute of a network


def find_facts(value: Any, files: CodeFiles) -> Facts | None:
    """Returns the facts of a function, or of an object's class; None if nobody has measured it as it is. Raises what
    `shares_tokens` raises."""
    function = getattr(value, "__func__", value)
    target = function if isinstance(function, (types.FunctionType, type)) else type(value)
    try:
        number, _, relative = files.relative_path(file_of(target)).partition("/")
    except UnsendableError:
        return None
    relative = relative if number == "0" else f"{PACK}/{relative.partition('/')[2]}"
    known = KNOWN.get(f"{relative}:{target.__qualname__}")
    if known is None:
        return None
    facts, text, helpers, holds = known
    if text and (hash_text(target, helpers) != text or not holds(value)):
        return None
    if facts.by_network:  # of one of ComfyUI's patches, or of the patch that it is a part of
        network = getattr(value, "patch", value).model_patch.model
        return facts._replace(splits_tokens=shares_tokens(network, files))
    return facts


def shares_tokens(network: torch.nn.Module, files: CodeFiles) -> bool:
    """Whether the ranks know how to share the tokens of a network inside of the model. Raises UnsendableError for a
    class that they cannot have."""
    kept = vars(network)
    if SHARES not in kept:
        relative = files.relative_path(file_of(type(network)))
        module = relative.partition("/")[2].removesuffix(".py").replace("/", ".")
        spec = spec_named(f"{module}.{type(network).__qualname__}")
        kept[SHARES] = spec is not None and spec.inside is not None and not any(differences(network, spec))
    return kept[SHARES]


@functools.cache
def hash_text(target: types.FunctionType | type, helpers: tuple[str, ...]) -> str:
    """Returns the hash of a function's or class's text, and of its helpers'; empty if one is not there."""
    module = sys.modules.get(target.__module__)
    try:
        parts = [target, *(getattr(module, name) for name in helpers)]
        # A function that functools.wraps has named after another is found by its code.
        texts = [inspect.getsource(getattr(each, "__code__", each)) for each in parts]
    except (AttributeError, OSError, TypeError):
        return ""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
