"""What people get wrong when they add a model is an error that names it: a stream, a condition, the number of heads.

Most are errors of the first forward on ranks. What a forward cannot tell is found here in every family, before ranks
run: each family's class runs in one process and is compared with its spec.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import diffusers
import pytest
import torch

from parallel_backend.errors import PlanError, RequestError
from parallel_backend.groups.mesh import Axis, Mesh
from parallel_backend.models import ModelSpec, known_spec, model_classes
from parallel_backend.models.attention_sizes import AttentionSizes
from parallel_backend.models.checks import changes_of
from parallel_backend.models.spec import BlockList
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.attention import ParallelAttention
from parallel_backend.seams.boundary import BlockBoundary
from parallel_backend.seams.layout import TokenLayout
from tests.support.cases.families import FAMILIES, UNEVEN
from tests.support.family_model import FamilyModel
from tests.support.spec_probe import mistakes_in_family

IMAGE = {"hidden_states": "img"}
TEXT_WHOLE = ("temb", "encoder_hidden_states")
# What pipelines pass to reach inside the blocks, which `parallelize` refuses; and how the class returns its sample.
INSIDE_BLOCKS = {
    "attention_kwargs", "block_controlnet_hidden_states", "controlnet_block_samples", "controlnet_blocks_repeat",
    "controlnet_single_block_samples", "cross_attention_kwargs", "joint_attention_kwargs", "return_dict", "skip_layers",
}  # fmt: skip
# By class, arguments that its pipelines do not pass, or that say in another way what its families pass.
NOT_PASSED = {
    "AllegroTransformer3DModel": {"attention_mask"},
    "BriaTransformer2DModel": {"guidance", "pooled_projections"},
    "CogVideoXTransformer3DModel": {"timestep_cond"},
    "CogView4Transformer2DModel": {"attention_mask", "image_rotary_emb"},
    "ConsisIDTransformer3DModel": {"timestep_cond"},
    "CosmosTransformer3DModel": {"attention_mask"},
    "EasyAnimateTransformer3DModel": {"control_latents", "encoder_hidden_states_t5", "timestep_cond"},
    "Flux2Transformer2DModel": {"kv_cache", "kv_cache_mode", "num_ref_tokens", "ref_fixed_timestep"},
    "HiDreamImageTransformer2DModel": {"hidden_states_masks", "img_ids", "img_sizes"},
    "Kandinsky5Transformer3DModel": {"sparse_params"},
    "LatteTransformer3DModel": {"enable_temporal_attentions", "encoder_attention_mask"},
    "PixArtTransformer2DModel": {"attention_mask", "encoder_attention_mask"},
    "QwenImageTransformer2DModel": {"additional_t_cond", "guidance"},
    "SanaTransformer2DModel": {"attention_mask"},
    "SkyReelsV2Transformer3DModel": {"enable_diffusion_forcing", "fps"},
    "ZImageTransformer2DModel": {"f_patch_size", "image_noise_mask", "patch_size", "siglip_feats"},
}
CLASSES = model_classes()


class ReachedEnd(Exception):
    """The forward is where the ranks' tokens come together."""


def with_blocks(name: str, **fields: Any) -> ModelSpec:
    """A family's spec, with other values in its blocks."""
    spec = known_spec(FAMILIES[name].model_class)
    return replace(spec, blocks=tuple(replace(each, **fields) for each in spec.blocks))


def run_first_of_two(name: str, spec: ModelSpec) -> None:
    """Runs a forward as the first of two ranks do, up to where their tokens come together. Attention gives each token
    its own query."""
    plan, family, one = ParallelPlan(ulysses=2), FAMILIES[name], Axis(None, 1, 0)
    axes = dict.fromkeys((*plan.degrees(), "batch"), one) | dict.fromkeys(("ulysses", "sequence"), Axis(None, 2, 0))
    with (
        patch.dict("parallel_backend.models.spec._SPECS", {family.model_class: spec}),
        patch.object(ParallelAttention, "__call__", lambda *args, **_: args[3]),
        patch.object(TokenLayout, "gather", side_effect=ReachedEnd),
    ):
        model = FamilyModel(family.build(), Mesh(plan, torch.device("cpu"), axes)).of(family)
        model(*family.inputs(*family.shapes[UNEVEN]))


@pytest.mark.parametrize("name", ["easyanimate", "easyanimate-inp", "sd3.5", "lumina2"])
def test_a_spec_without_mistakes_is_run(name: str) -> None:
    with pytest.raises(ReachedEnd):
        run_first_of_two(name, known_spec(FAMILIES[name].model_class))


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"tokens": IMAGE}, PlanError, "has an argument encoder_hidden_states, which its spec does not list"),
        (
            {"tokens": IMAGE, "whole": TEXT_WHOLE},
            PlanError,
            "no argument in `tokens` of transformer_blocks has the stream txt, which returns, attn1 has",
        ),
        (
            {"tokens": IMAGE, "whole": TEXT_WHOLE, "returns": "img", "attention": {"attn1": "img"}},
            RequestError,
            r"attn1 of transformer_blocks attends from 30 tokens, and `attention` says img; this rank has 23 of img",
        ),
        (
            {"attention": {"attn1": "img"}},
            RequestError,
            "Model: attn1 of transformer_blocks attends from 27 tokens, and `attention` says img; this rank has 23",
        ),
        ({"returns": "img"}, RequestError, "transformer_blocks return 23 and 4 tokens, and `returns` says img; this"),
        ({"returns": ("txt", "img")}, RequestError, "return 23 and 4 tokens, and `returns` says txt and img; this"),
    ],
    ids=[
        "an argument",
        "an argument said to be whole",
        "all of it said to be whole",
        "in attention",
        "in what returns",
        "the order of what returns",
    ],
)
def test_a_stream_forgotten_is_named(fields: dict[str, Any], error: type[RequestError], said: str) -> None:
    with pytest.raises(error, match=said):
        run_first_of_two("easyanimate", with_blocks("easyanimate", **fields))


def test_a_stream_forgotten_in_a_rotary_embedding_is_named() -> None:
    with pytest.raises(
        RequestError, match="Model: image_rotary_emb of transformer_blocks has 42 tokens, and `sides` says img; known"
    ):
        run_first_of_two("bria", with_blocks("bria", sides={"image_rotary_emb": (0, "img")}))


def test_an_item_of_no_stream_is_not_cut() -> None:
    """Such as a table of frequencies that the positions of tokens, the next item, look up."""
    boundary = object.__new__(BlockBoundary)
    boundary.owner = "Model"
    boundary.blocks = BlockList("blocks", {"x": "img"}, "img", sides={"rotary": (0, (None, "img"))})
    forward, slot = SimpleNamespace(sides={}), SimpleNamespace(sees_whole=False)
    halves: Any = SimpleNamespace(cut=lambda whole, *_: whole[: len(whole) // 2], forward=forward, slot=slot)
    boundary.layout = halves
    table, positions = (torch.zeros(6, 2), torch.ones(6, 2)), torch.arange(6)
    (cosines, sines), own = boundary.cut_side((table, positions), "rotary", boundary.blocks.sides["rotary"])
    assert cosines is table[0]
    assert sines is table[1]
    assert own.tolist() == [0, 1, 2]


def test_an_attention_forgotten_is_named() -> None:
    """No forward can tell it from attention to a text of as many tokens, and the image would be wrong."""
    spec = with_blocks("sd3.5", attention={"attn": "img+txt"})
    said = ["attn2 of transformer_blocks attends to tokens, and `attention` does not list it"]
    assert mistakes_in_family(FAMILIES["sd3.5"], spec) == said


@pytest.mark.parametrize(
    ("name", "path", "attributes", "said"),
    [
        ("easyanimate", "transformer_blocks.1.attn1", {"heads": None}, "has no number of heads that is known here"),
        ("wan-t2v", "blocks.1.attn1", {"heads": 12}, "attn1 of blocks has 12 heads, and others have 5"),
        ("lumina2", "layers.1.attn", {"inner_kv_dim": 32}, "attn of layers has 2 heads of keys, and others have 3"),
    ],
)
def test_blocks_whose_heads_differ_or_are_unknown_are_named(
    name: str, path: str, attributes: dict[str, Any], said: str
) -> None:
    model = FAMILIES[name].build()
    vars(model.get_submodule(path)).update(attributes)
    (found,) = changes_of(model)
    assert found.endswith(said)


def swapped(streams: Any) -> Any:
    """The same streams in another order."""
    return streams[::-1] if isinstance(streams, tuple) else "+".join(reversed(streams.split("+")))


def entries(blocks: BlockList) -> dict[str, Any]:
    """The arguments with an entry for each token, of blocks that have no other per-token arguments."""
    return dict(blocks.sides)


def swapped_returns(blocks: BlockList) -> dict[str, Any]:
    return {"returns": swapped(blocks.returns)}


def swapped_attention(blocks: BlockList) -> dict[str, Any]:
    return {"attention": {path: swapped(streams) for path, streams in blocks.attention.items()}}


def swapped_tokens(blocks: BlockList) -> dict[str, Any]:
    return {"tokens": {name: swapped(streams) for name, streams in blocks.tokens.items()}}


def swapped_sides(blocks: BlockList) -> dict[str, Any]:
    return {"sides": {name: (dim, swapped(streams)) for name, (dim, streams) in entries(blocks).items()}}


def sides_of_all(blocks: BlockList) -> dict[str, Any]:
    return {"sides": {name: (dim, "txt+img") for name, (dim, _) in entries(blocks).items()}}


def whole_sides(blocks: BlockList) -> dict[str, Any]:
    return {"sides": {}, "whole": (*blocks.whole, *blocks.sides)}


@pytest.mark.parametrize(
    ("change", "name", "place", "said"),
    [
        (
            swapped_returns,
            "sd3.5",
            0,
            "what transformer_blocks return has 35 entries, and `returns` says txt, which has 7",
        ),
        (swapped_returns, "flux-dev", 0, "what transformer_blocks return has 7 entries, and `returns` says img, whi"),
        (swapped_returns, "mochi", 0, "what transformer_blocks return has 45 entries, and `returns` says txt, whi"),
        (swapped_returns, "cogvideox-5b", 0, "what transformer_blocks return has 45 entries, and `returns` says txt"),
        (
            swapped_attention,
            "flux-dev",
            0,
            "what attn of transformer_blocks attends to: the image is where `attention`",
        ),
        (swapped_attention, "mochi", 0, "what attn1 of transformer_blocks attends to: the image is where `attention`"),
        (swapped_attention, "hunyuanvideo", 1, "attn of single_transformer_blocks attends to: the image is where"),
        (swapped_tokens, "flux2-dev", 1, "hidden_states of single_transformer_blocks: the image is where `tokens`, wh"),
        (swapped_tokens, "auraflow", 1, "hidden_states of single_transformer_blocks: the image is where `tokens`, wh"),
        (swapped_sides, "flux-dev", 1, "image_rotary_emb of single_transformer_blocks: the image is where `sides`, wh"),
        (swapped_sides, "bria", 0, "image_rotary_emb of transformer_blocks: the image is where `sides`, which says im"),
        (sides_of_all, "mochi", 0, "image_rotary_emb of transformer_blocks has 45 entries, and `sides` says txt+img"),
        (whole_sides, "flux-dev", 0, "image_rotary_emb of transformer_blocks has an entry for each token of img+txt"),
        (whole_sides, "wan-t2v", 0, "rotary_emb of blocks has an entry for each token of img, and `whole` lists it"),
        (whole_sides, "ltx", 0, "image_rotary_emb of transformer_blocks has an entry for each token of img, and `wh"),
    ],
)
def test_a_stream_elsewhere_than_its_spec_says_is_named(
    change: Callable[[BlockList], dict[str, Any]], name: str, place: int, said: str
) -> None:
    """No forward can tell it where streams are as long as one another."""
    blocks = [*known_spec(FAMILIES[name].model_class).blocks]
    blocks[place] = replace(blocks[place], **change(blocks[place]))
    found = mistakes_in_family(FAMILIES[name], replace(known_spec(FAMILIES[name].model_class), blocks=tuple(blocks)))
    assert any(each.startswith(f"{FAMILIES[name].model_class}: ") and said in each for each in found), found


@pytest.mark.parametrize(
    ("name", "sizes", "said"),
    [
        ("lumina2", AttentionSizes(6, 16, 2), "does not repeat 2 heads of keys"),
        ("bria", AttentionSizes(4, 4), "the largest heads have 16 dims, and 4 were read"),
        ("bria", AttentionSizes(2, 16), "has 4 heads, and 2 were read"),
    ],
)
def test_heads_that_are_read_wrong_are_named(name: str, sizes: AttentionSizes, said: str) -> None:
    """A forward sees the number of heads alone. The image would be wrong, or a kernel would not take the heads."""
    with patch("parallel_backend.models.checks.read_sizes", lambda _module: sizes):
        found = mistakes_in_family(FAMILIES[name], known_spec(FAMILIES[name].model_class))
    assert found[0].endswith(said)


def test_every_class_has_a_family() -> None:
    assert sorted({family.model_class for family in FAMILIES.values()}) == CLASSES


@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_class_attends_as_its_spec_says(name: str) -> None:
    assert mistakes_in_family(FAMILIES[name], known_spec(FAMILIES[name].model_class)) == []


@pytest.mark.parametrize("model_class", CLASSES)
def test_a_classs_arguments_are_all_passed_or_known_not_to_be(model_class: str) -> None:
    passed = set()
    for family in (each for each in FAMILIES.values() if each.model_class == model_class):
        model, signature = family.build(), inspect.signature(getattr(diffusers, model_class).forward)

        def note(model: torch.nn.Module, args: tuple, kwargs: dict, signature: Any = signature) -> None:
            given = signature.bind(model, *args, **kwargs).arguments
            passed.update(name for name, value in given.items() if value is not None)

        model.register_forward_pre_hook(note, with_kwargs=True)
        with torch.no_grad():
            family.reference(model, *family.inputs(*family.shapes[UNEVEN]))
    takes = set(inspect.signature(getattr(diffusers, model_class).forward).parameters) - {"self"}
    assert takes - passed - INSIDE_BLOCKS == NOT_PASSED.get(model_class, set())
