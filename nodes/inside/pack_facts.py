"""How functions of node packs share a model's work, as somebody has read and measured them.

A row holds for the text that was read. A function with another text sees all tokens and rows, until it is read again.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from ...worker.inside.code_files import CodeFiles
from .facts import Facts, find_place


class Read(NamedTuple):
    """helpers: functions and classes of the same file that the function uses. text: see `hash_text`. holds: whether the
    facts hold for a function or object as it is set up."""

    facts: Facts
    helpers: tuple[str, ...]
    text: str
    holds: Callable[[Any], bool]


def row(
    node: str,
    name: str,
    text: str,
    *helpers: str,
    tokens: bool = False,
    rows: bool = False,
    reads: bool = True,
    holds: Callable[[Any], bool] = lambda _value: True,
) -> tuple[str, Read]:
    """node: for the user. name: of the file in the pack, without its suffix, and of the function or class there. reads:
    whether it may read variables of its pack."""
    file, _, path = name.partition(":")
    return f"{file}.py:{path}", Read(Facts(node, tokens, rows, reads_pack=reads), helpers, text, holds)


def has_no_mask(patch: Any) -> bool:
    """Whether IPAdapter's functions alone see all tokens alike."""
    are_its_own = all(each.__qualname__ == "ipadapter_attention" for each in patch.callback)
    return are_its_own and all(each["mask"] is None for each in patch.kwargs)


KJ_MODELS, KJ_LTXV = "nodes/model_optimization_nodes", "nodes/ltxv_nodes"
BOUND = "__get__.<locals>"  # where these make a function of a module
READ: dict[str, Read] = dict(
    [
        row("PerturbedAttention", "guidance_utils:perturbed_attention", "cf1ee8c8b77ff234", tokens=True, rows=True),
        row(
            "SmoothedEnergyGuidanceAdvanced", "guidance_utils:seg_attention_wrapper.<locals>.seg_attention",
            "eb3e56ae11e8c5b5", "gaussian_blur_2d", rows=True,
        ),
        row(
            "IPAdapter", "CrossAttentionPatch:Attn2Replace", "fa015b51a2f0daa6", "ipadapter_attention", tokens=True,
            holds=has_no_mask,
        ),
        row(
            "WanVideoNAG", f"{KJ_MODELS}:WanCrossAttentionPatch.{BOUND}.wrapped_attention", "ded48d16908374d7",
            "wan_crossattn_forward_nag", "wan_i2v_crossattn_forward_nag", "wan_nag_attention",
            "_wan_compute_attention", "normalized_attention_guidance", tokens=True,
        ),
        row(
            "WanChunkFeedForward", f"{KJ_MODELS}:WanffnChunkPatch.{BOUND}.wrapped_forward", "072b0d2a844519cc",
            "wan_ffn_chunked_forward", tokens=True, rows=True,
        ),
        row(
            "LTXVChunkFeedForward", f"{KJ_LTXV}:LTXVffnChunkPatch.{BOUND}.wrapped_forward", "f7455ce52a8988e2",
            "ffn_chunked_forward", tokens=True, rows=True,
        ),
        row(
            "LTX2_NAG", f"{KJ_LTXV}:LTXVCrossAttentionPatch.{BOUND}.wrapped_attention", "abaa7cc9d97c0c41",
            "ltxv_crossattn_forward_nag", "nag_attention", "normalized_attention_guidance", tokens=True,
        ),
        # It wraps the blocks of all UNets where the pack is installed.
        row(
            "layerdiffuse", "lib_layerdiffusion/attention_sharing:BasicTransformerBlock.forward", "0abb8be26815ece2",
            tokens=True, rows=True, reads=False,
        ),
    ]
)  # fmt: skip


def find_read(value: Any, files: CodeFiles) -> Facts | None:
    """Returns the facts of a node pack's function, or of an object's class; None if nobody has read it as it is."""
    target, place = find_place(value, files)
    read = READ.get(f"{place.partition('/')[2]}:{target.__qualname__}")
    if read is None or hash_text(target, read.helpers) != read.text or not read.holds(value):
        return None
    return read.facts


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
