"""Networks that nodes add to the model. They are ComfyUI's own. Ranks share their tokens as they share the model's.

A ControlNet runs together with the model. ComfyUI's process prepares its hint and conditions, and sends the arguments
with which it would call the network (`nodes/inside/controls.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from parallel_backend.compat import tree_map_only
from parallel_backend.errors import PlanError
from parallel_backend.hooks import Hooks
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.seams.forward import Forward

from ...comfyui import call_keys as keys
from ...inside.decoder import Decoder

Residuals = dict[str, list[torch.Tensor | None]]  # ControlNets' residuals, in ComfyUI's form


class AddedNetworks:
    """The networks beside the model and inside of it, and how each runs under the plan."""

    def __init__(self, model: Any, parallel: ParallelModel) -> None:
        """model: ComfyUI's. parallel: the same on the mesh."""
        self.model, self.parallel = model, parallel
        self.running: dict[Any, ParallelModel | None] = {}  # by ComfyUI's ControlNet; None where each rank runs all
        self.inside: dict[Any, Hooks] = {}  # by ComfyUI's patcher

    def clear(self) -> None:
        """Removes the plan from all networks."""
        for network in filter(None, self.running.values()):
            network.remove()
        for hooks in self.inside.values():
            hooks.close()
        self.running.clear()
        self.inside.clear()

    def share_inside(self, patchers: Sequence[Any]) -> None:
        """Applies the plan to networks that run inside of the model."""
        for patcher in patchers:
            if patcher not in self.inside:
                self.inside[patcher] = self.parallel.share_inside(patcher.model, self.parallel.dtype)

    def complete(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Replaces the call of a network among the model's arguments by what it returns for this rank's rows."""
        control: Any = kwargs.get(keys.CONTROL)
        return {**kwargs, keys.CONTROL: self.compute(control, *args[:2])} if keys.is_network_call(control) else kwargs

    def compute(self, call: Mapping[str, Any], latents: torch.Tensor, timesteps: torch.Tensor) -> Residuals | None:
        """Returns what a ControlNet adds, and those before it, merged by ComfyUI's code. None if none is at work.

        latents, timesteps: that the model gets.
        """
        previous, own = call[keys.PREVIOUS], call[keys.GIVEN]
        if keys.is_network_call(previous):
            previous = self.compute(previous, latents, timesteps)
        if keys.RANGE in call:
            if not is_within(float(timesteps[0]), *call[keys.RANGE]):
                return previous
            own = {**own, keys.LATENTS: latents[:, : call[keys.CHANNELS]], keys.TIMESTEPS: timesteps}
        control = call[keys.NETWORK]
        if control not in self.running:
            self.running[control] = self.share(control)
        dtype = dtype_of(control)
        cast = lambda each: each.to(dtype) if each.is_floating_point() else each  # noqa: E731
        given = tree_map_only(torch.Tensor, cast, own)
        found = self.run(control, {**given, **control.extra_args})
        control.strength = call[keys.STRENGTH]
        return control.control_merge(found, previous, None)

    def share(self, control: Any) -> ParallelModel | None:
        """Applies the plan to a ControlNet's network. Returns None if its class does not allow the plan. Then each rank
        runs all of it."""
        control.pre_run(self.model, lambda percent: percent)  # some take weights of the model
        try:
            return ParallelModel(control.control_model, self.parallel.mesh, dtype_of(control))
        except PlanError:
            return None

    def run(self, control: Any, given: dict[str, Any]) -> Residuals:
        network = self.running[control]
        if network is None:
            return control.control_model(**given)
        return network.run((), given, Forward(network.slot.every_patch()))


def is_within(timestep: float, start: float, stop: float) -> bool:
    """Whether a timestep is within a range, from the first step on. Rounding puts none outside."""
    slack = 1e-5 * timestep
    return stop - slack <= timestep <= start + slack


def decode_control(decoder: Decoder, control: Any) -> Any:
    """Returns what ControlNets return, or the calls of their networks, with the networks that they name."""
    if not keys.is_network_call(control):
        return control
    previous = decode_control(decoder, control[keys.PREVIOUS])
    return {**control, keys.NETWORK: decoder.decode(control[keys.NETWORK]), keys.PREVIOUS: previous}


def dtype_of(control: Any) -> torch.dtype:
    """Returns the dtype in which ComfyUI has a ControlNet compute on this device."""
    return control.manual_cast_dtype or control.control_model.dtype
