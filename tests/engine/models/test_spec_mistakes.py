"""What people get wrong when they add a model is an error that names it: a stream, a condition, the number of heads.

Most are errors of the first forward on ranks. What a forward cannot tell is found here in every family, before ranks
run: each family's class runs in one process and is compared with its spec.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from parallel_backend.errors import PlanError, RequestError
from parallel_backend.groups.mesh import Axis, Mesh
from parallel_backend.models import ModelSpec, known_spec, model_classes
from parallel_backend.models.attention_sizes import AttentionSizes
from parallel_backend.models.checks import list_spec_mismatches
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.arguments import Parameters
from parallel_backend.seams.attention import ParallelAttention
from parallel_backend.seams.layout import TokenLayout
from tests.support.cases.families import FAMILIES, UNEVEN
from tests.support.family_model import FamilyModel
from tests.support.spec_probe import mistakes_in_family

IMAGE = {"hidden_states": "img"}
TEXT_WHOLE = ("temb", "encoder_hidden_states")
ALL_IMAGE = {"returns": "img", "attention": {"attn1": "img"}}
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
        patch.dict("parallel_backend.models.spec.SPECS", {family.model_class: spec}),
        patch.object(ParallelAttention, "__call__", lambda *args, **_: args[3]),
        patch.object(TokenLayout, "gather", side_effect=ReachedEnd),
    ):
        model = FamilyModel(family.build(), Mesh(plan, torch.device("cpu"), axes)).of(family)
        model(*family.inputs(*family.shapes[UNEVEN]))


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"tokens": IMAGE}, PlanError, "argument encoder_hidden_states, which its spec does not list"),
        ({"tokens": IMAGE, "whole": TEXT_WHOLE}, PlanError, "of transformer_blocks has the stream txt"),
        ({"tokens": IMAGE, "whole": TEXT_WHOLE, **ALL_IMAGE}, RequestError, "attends from 30 tokens, .* 23 of img"),
        (
            {"attention": {"attn1": "img"}},
            RequestError,
            "attn1 of transformer_blocks attends from 27 tokens",
        ),
        ({"returns": "img"}, RequestError, "return 23 and 4 tokens, and `returns` says img"),
        ({"returns": ("txt", "img")}, RequestError, "return 23 and 4 tokens, and `returns` says txt and img"),
    ],
    ids=[
        "an argument",
        "said to be whole",
        "all of it",
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
    (found,) = list_spec_mismatches(model)
    assert found.endswith(said)


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("sd3.5", {"returns": ("img", "txt")}, "blocks return has 7 entries, and `returns` says img, which has 35"),
        ("mochi", {"sides": {"image_rotary_emb": (0, "txt+img")}}, "has 45 entries, and `sides` says txt+img"),
        ("flux-dev", {"attention": {"attn": "img+txt"}}, "attends to: the image is where `attention`"),
    ],
)
def test_a_stream_elsewhere_than_its_spec_says_is_named(name: str, fields: dict[str, Any], said: str) -> None:
    """No forward can tell it where streams are as long as one another."""
    found = mistakes_in_family(FAMILIES[name], with_blocks(name, **fields))
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


def test_an_argument_that_is_given_twice_is_refused_as_python_does() -> None:
    def block(tokens: int, **_more: int) -> int:
        return tokens

    with pytest.raises(TypeError, match="multiple values"):
        Parameters(inspect.signature(block)).name((1,), {"tokens": 2})


def test_every_class_has_a_family() -> None:
    assert sorted({family.model_class for family in FAMILIES.values()}) == CLASSES


@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_class_attends_as_its_spec_says(name: str) -> None:
    assert mistakes_in_family(FAMILIES[name], known_spec(FAMILIES[name].model_class)) == []
