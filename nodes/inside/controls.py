"""Lets ControlNets compute in the ranks, and not on ComfyUI's device while the ranks wait.

ComfyUI's ControlNet prepares its hint and its conditions here, as always. It is given a network that only returns its
arguments. The ranks call ComfyUI's network with them, see `added_networks.py` there.
"""

from __future__ import annotations

import logging
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import comfy.controlnet
import comfy.model_base
import comfy.model_management
import torch

from ...worker.comfyui import call_keys as keys
from ...worker.inside.encoder import Encoded, Encoder, Scope
from ...worker.wire.tensors import UnsendableError
from ..errors import Refused
from .facts import Facts

CONTROLS = Facts("the prompt", splits_tokens=True, splits_rows=True, place="a ControlNet")  # how ControlNets share

ControlNet = comfy.controlnet.ControlNet
# ComfyUI's classes that make what they return of one call of their network. A pack's class may do anything.
CLASSES = (ControlNet, comfy.controlnet.ControlNetSD35, comfy.controlnet.QwenFunControlNet)
Cond = dict[str, Any]
STOCK = "Use a stock KSampler."


@dataclass(eq=False)
class ControlCall(UserDict):
    """What a ControlNet returns in a step, not computed yet. The ranks compute it; ComfyUI's device does as soon as
    somebody here reads it.

    control: ComfyUI's, with its network. model: that is sampled. given: the arguments of the network. previous: what
    the ControlNets before it return. noise_range: if the call stands for all steps, the noise levels between which the
    ControlNet is at work."""

    control: ControlNet
    model: comfy.model_base.BaseModel
    given: Mapping[str, Any]
    strength: float
    previous: Any
    noise_range: tuple[float, float] | None = None

    @cached_property
    def data(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        control: Any = self.control
        loaded = comfy.model_management.loaded_models(only_currently_used=True)
        comfy.model_management.load_models_gpu([*loaded, control.control_model_wrapped])
        before, control.strength = control.strength, self.strength
        with comfy.controlnet.ControlIsolation(control):  # those before it are at work with ranges of their own
            control.pre_run(self.model, lambda percent: percent)
            try:
                found = control.control_model(**{**self.given, **control.extra_args})
                return control.control_merge(found, self.previous, None)
            finally:
                control.strength = before
                control.cleanup()


class RecordedControlNet(ControlNet):
    """A ControlNet whose network runs in the ranks, in front of ComfyUI's class among the bases."""

    whole: ControlNet
    noise_range: tuple[float, float] | None = None
    model: comfy.model_base.BaseModel

    def get_models(self) -> list[Any]:
        return [] if self.previous_controlnet is None else self.previous_controlnet.get_models()

    def pre_run(self, model: comfy.model_base.BaseModel, percent_to_timestep_function: Any) -> None:
        """The ranks do what a class does beside this with the model's weights."""
        ControlNet.pre_run(self, model, percent_to_timestep_function)
        self.model = model

    def control_merge(self, control: Any, control_prev: Any, output_dtype: Any) -> Any:
        return ControlCall(self.whole, self.model, control, self.strength, control_prev, self.noise_range)


def record(control: Any) -> Any:
    """Returns a ControlNet, and those before it, with networks that return their arguments, up to the first that may do
    more than call its network."""
    if type(control) not in CLASSES:
        return control
    cls: Any = type(type(control).__name__, (RecordedControlNet, type(control)), {})
    found = cls.__new__(cls)
    vars(found).update(vars(control))
    network: Any = partial(dict)
    network.dtype = control.control_model.dtype
    found.control_model, found.whole = network, control
    found.extra_args = {**control.extra_args}
    found.previous_controlnet = record(control.previous_controlnet)
    return found


def record_all(conds: Mapping[str, Iterable[Cond]]) -> dict[str, list[Cond]]:
    """Returns a sampling's conditions with ControlNets that run in the ranks. One of several conditions stays one."""
    done: dict[int, Any] = {}

    def replaced(cond: Cond) -> Cond:
        control = cond.get(keys.CONTROL)
        return {**cond, keys.CONTROL: done.setdefault(id(control), record(control))}

    return {name: [replaced(cond) if keys.CONTROL in cond else cond for cond in each] for name, each in conds.items()}


def chain_of(control: Any) -> list[Any]:
    """Returns a condition's ControlNet, and those before it."""
    return [] if control is None else [control, *chain_of(getattr(control, "previous_controlnet", None))]


def recorded_in(conds: Mapping[str, Iterable[Cond]]) -> Iterator[RecordedControlNet]:
    """Yields the ControlNets of conditions whose networks run in the ranks."""
    found = (each for conditions in conds.values() for cond in conditions for each in chain_of(cond.get(keys.CONTROL)))
    return (each for each in found if isinstance(each, RecordedControlNet))


def computes_here(control: Any) -> bool:
    """Whether a ControlNet of a condition, or one before it, computes on ComfyUI's device."""
    return not all(isinstance(each, RecordedControlNet) for each in chain_of(control))


def record_for_all_steps(conds: Mapping[str, Iterable[Cond]]) -> None:
    """Has the ControlNets of a prepared sampling return calls that stand for all steps, also outside of their range."""
    for control in recorded_in(conds):
        if control.timestep_range is not None:
            control.noise_range, control.timestep_range = control.timestep_range, None


def encode_control(control: Any, encoder: Encoder) -> Encoded:
    """Returns what ControlNets return as the ranks get it: the call of a network, or tensors."""
    if not isinstance(control, ControlCall):
        return control
    if "data" in vars(control):  # it is computed
        return dict(control.data)
    try:
        with encoder.look(Scope()):
            network = encoder.encode(control.control)
    except UnsendableError as error:
        logging.info("[ParallelDiT] ComfyUI's own device computes a ControlNet: %s", error)
        return dict(control.data)
    timestep = control.model.model_sampling.timestep
    limits = control.noise_range and [float(timestep(torch.tensor(float(each)))) for each in control.noise_range]
    return {
        **({keys.RANGE: limits} if limits else {}),
        keys.NETWORK: network,
        keys.GIVEN: control.given,
        keys.STRENGTH: control.strength,
        keys.PREVIOUS: encode_control(control.previous, encoder),
    }


def take_latents_from_steps(control: Mapping[str, Any], latents: torch.Tensor, timesteps: torch.Tensor) -> Encoded:
    """Removes the latents and timesteps of the recorded step from an encoded call, so that it stands for all steps.

    control: from `encode_control`. latents, timesteps: what the model got in that step. Raises Refused if a ControlNet
    gets others, or was computed here."""
    if not keys.is_network_call(control):
        raise Refused("The Parallel Sampler cannot honour a ControlNet whose network the ranks cannot have.", STOCK)
    given, previous = dict(control[keys.GIVEN]), control[keys.PREVIOUS]
    x, t = given.pop(keys.LATENTS), given.pop(keys.TIMESTEPS)
    own = latents[:, : x.shape[1]]
    if x.shape != own.shape or not is_near(x, own) or not is_near(t, timesteps):
        raise Refused(
            "The Parallel Sampler cannot honour a ControlNet that gets other latents or timesteps than the model.",
            STOCK,
        )
    before = None if previous is None else take_latents_from_steps(previous, latents, timesteps)
    return {**control, keys.GIVEN: given, keys.CHANNELS: x.shape[1], keys.PREVIOUS: before}


def add_control_facts(options: dict[str, Any]) -> dict[str, Any]:
    """Returns a call's options with the facts of its ControlNets: they see all blocks, so they allow no stages."""
    return {**options, keys.FACTS: [*options.get(keys.FACTS, []), CONTROLS]}


def is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal but for the rounding of their dtypes."""
    return torch.allclose(one.float(), other.to(one.device).float(), rtol=1e-2, atol=1e-2)
