"""What most of diffusers' classes have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..hooks import Hooks
from .spec import LOCAL, BlockList, ModelSpec, register

# Blocks in which image and text attend together, as several classes have them. Others take both in one tensor.
JOINT = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("txt", "img"),
    attention={"attn": "txt+img"},
    whole=("temb", "joint_attention_kwargs"),
    between=LOCAL,
)
JOINED = replace(JOINT, path="single_transformer_blocks", tokens={"hidden_states": "txt+img"}, returns="txt+img")
# The last layer of most classes, up to which the model works token by token.
PROJ_OUT = BlockList("proj_out", tokens={"input": "img"}, returns="img", between=LOCAL)


def register_usual(model_class: str, *blocks: BlockList, head: BlockList | None = PROJ_OUT, **others: Any) -> None:
    """Adds one of diffusers' classes, with the head and the image's stream that most have."""
    register(ModelSpec(model_class, blocks, head=head, **{"image": "img", **others}))


def replace_processors(processor: Callable[..., Any]) -> Callable[[Any, Hooks], None]:
    """Returns what makes a function of ours the processor of the blocks' `attn1`."""

    def prepare(model: Any, hooks: Hooks) -> None:
        for block in model.transformer_blocks:
            if attention := getattr(block, "attn1", None):  # other stages' blocks have none
                hooks.replace(attention, "processor", processor)

    return prepare
