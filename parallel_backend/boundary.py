"""Seam 1, the token boundary: blocks see this rank's share of every token stream and per-token side input.

Before the first local block the streams are cut, or come from the stage before; after the last local block the image
stream is whole again for the model's head, or goes to the next stage.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from .layout import TOKEN_DIM, TokenLayout
from .models.spec import ModelSpec
from .stages import StageLink


def install_token_boundary(
    blocks: list[torch.nn.Module], spec: ModelSpec, layout: TokenLayout, link: StageLink | None = None
) -> None:
    """Hooks the local blocks, in the order in which they run. link: to the stages before and after, if there are any.

    With a link, `StageExit` leaves the model's forward on every stage but the last.
    """
    signature = inspect.signature(blocks[0].forward)

    def enter(_block: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        bound = signature.bind(*args, **kwargs)
        layout.begin({stream: bound.arguments[stream].shape[TOKEN_DIM] for stream in spec.streams})
        if link and not link.is_first:
            bound.arguments.update(link.receive(layout, like=bound.arguments[spec.streams[0]]))
        else:
            for stream in spec.streams:
                bound.arguments[stream] = layout.take(bound.arguments[stream], stream)
        return bound.args, bound.kwargs

    def leave(_block: torch.nn.Module, _args: tuple, output: torch.Tensor | tuple) -> torch.Tensor | tuple:
        streams = output if isinstance(output, tuple) else (output,)
        if link and not link.is_last:
            link.send(dict(zip(spec.returned, streams, strict=True)))
        place = spec.returned.index(spec.streams[0])
        whole = layout.restore(streams[place])
        return (*streams[:place], whole, *streams[place + 1 :]) if isinstance(output, tuple) else whole

    blocks[0].register_forward_pre_hook(enter, with_kwargs=True)
    if spec.side_inputs:
        _install_side_inputs(blocks, spec, layout)
    blocks[-1].register_forward_hook(leave)


def _install_side_inputs(blocks: list[torch.nn.Module], spec: ModelSpec, layout: TokenLayout) -> None:
    """Every block gets the same side inputs; each is cut once a forward."""
    cut: dict[str, tuple[Any, list[int], Any]] = {}

    def hook_for(block: torch.nn.Module) -> Any:
        signature = inspect.signature(block.forward)

        def cut_sides(_block: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            bound = signature.bind(*args, **kwargs)
            for side in spec.side_inputs:
                whole = bound.arguments.get(side.name)
                if whole is None:
                    continue
                held = cut.get(side.name)
                if held is None or held[0] is not whole or held[1] != layout.running:
                    cut[side.name] = held = (whole, list(layout.running), layout.take_side_input(whole, side))
                bound.arguments[side.name] = held[2]
            return bound.args, bound.kwargs

        return cut_sides

    for block in blocks:
        block.register_forward_pre_hook(hook_for(block), with_kwargs=True)
