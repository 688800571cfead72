"""Stands in for one of ComfyUI's diffusion models: its class, names and sizes, on the meta device, without weights.

The worker group computes what the module would compute.
"""

from __future__ import annotations

import functools
import inspect
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import comfy.model_base
import torch
from comfy.patcher_extension import WrapperExecutor, WrappersMP, get_all_wrappers

from ...parallel_backend.axes import BATCH_AXES
from ...parallel_backend.costs.auto import PlanOfRun, Work
from ...parallel_backend.costs.choose import allows
from ...parallel_backend.models import spec_of
from ...parallel_backend.models.checks import check_module
from ...parallel_backend.plan import ParallelPlan
from ...parallel_backend.sampling.caches import NONE as NO_CACHE
from ...worker.comfyui.model import dtype_name
from ...worker.comfyui.patched_options import ATTRIBUTES, COMPILED, RUN
from ...worker.comfyui.patches import pack_patches
from ...worker.comfyui.source import METHODS, HostSource
from ...worker.errors import RequestRefused
from ...worker.host.call_batcher import Answer, CallBatcher, ModelCall
from ...worker.host.client import WorkerGroup
from ...worker.host.runs import RunPlan
from ...worker.host.session import OnStep
from ...worker.wire.sampler_call import SamplerCall, SamplerPass
from ...worker.wire.tensors import Tensors, UnsendableError
from ...worker.wire.tree import pack
from ..compat import replace_inner_forward
from ..costs.machine import measure
from ..costs.plans import ModelCosts, is_covered, pick_usual_step
from ..errors import Refused
from ..plan_words import Remark, join_remarks
from .module_guard import ModuleGuard, replace_weights
from .own_schedule import Schedule
from .patches import check_inside, check_plan, encode_options, find_allowed_sharing
from .remote_weights import Patches, RemoteWeights, check_interrupt

ONE_DEVICE = ParallelPlan()
BRANCHES = "cond_or_uncond"  # an option: for each part of the batch, 0 for cond and 1 for uncond
MODULE, COMPUTE_DTYPE = "diffusion_model", "manual_cast_dtype"  # attributes of ComfyUI's model
ATTRIBUTE = "parallel_module"  # attribute that marks a stand-in module


class Sampling:
    """One sampling. Objects that nodes run inside of the model live in the ranks for as long as it lasts."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self.objects: list[Any] = []
        self.residuals = 0  # the most bytes of ControlNets that went to the ranks with a step

    def record_residuals(self, control: Any) -> bool:
        """Records how much of ControlNets goes to the ranks with a step. Returns whether it is more than before."""
        tensors: Tensors = {}
        pack(control, "control", tensors)
        before, self.residuals = self.residuals, max(self.residuals, sum(each.nbytes for each in tensors.values()))
        return self.residuals > before

    def name_object(self, value: Any) -> str:
        """Names an object, and keeps it for the run. Otherwise a new object could get the same name."""
        for place, known in enumerate(self.objects):
            if known is value:
                return str(place)
        self.objects.append(value)
        return str(len(self.objects) - 1)


class RemoteModule(RemoteWeights):
    """Sends the calls of a module to the worker group. If the class runs wrappers around `_forward` itself, this
    replaces `_forward`, so that the wrappers are called as usual."""

    def __init__(
        self,
        group: WorkerGroup,
        source: HostSource,
        plan: ParallelPlan,
        costs: ModelCosts,
        note: tuple[Remark, ...] = (),
        auto: PlanOfRun[tuple[Remark, ...]] | None = None,
        name: str = "",
        schedule: Schedule | None = None,
    ) -> None:
        """costs: of the module's plans.
        auto: decides the plan by the work of a call; None if the plan does not depend on it.
        name: of the model, as the user chose it.
        schedule: the schedule that a diffusers folder states, if it does."""
        super().__init__(group, source.to_json(), plan, costs.sizes, note, name)
        self.auto = auto
        self.costs = costs
        self.schedule = schedule
        self.last_work: Work | None = None  # of the last request
        self.module = module = costs.module
        self.batcher = CallBatcher(self.call, self.shares_calls)
        self.signature = inspect.signature(module.forward)
        spec = spec_of(type(module))
        self.computed = spec.computed if spec else {}
        if not replace_inner_forward(module, self.send):
            module.forward = self.run_wrappers
        for method in METHODS:
            if hasattr(module, method):
                module.__dict__[method] = functools.partial(self.send_method, method)
        module.__dict__[ATTRIBUTE] = self
        replace_weights(module)
        self.module_guard = ModuleGuard(module)
        self.own_source = self.source
        self.attributes: dict[str, Any] = {}  # set by nodes on the module, by path
        self.compiled: Mapping[str, Any] = {}  # see `compile_settings`
        self.sampling = Sampling()

    def run_wrappers(self, *args: Any, **kwargs: Any) -> Any:
        """Calls a class in which our call has no place inside of the wrappers."""
        options = self.name_arguments(args, kwargs).get("transformer_options") or {}
        wrappers = get_all_wrappers(WrappersMP.DIFFUSION_MODEL, options)
        return WrapperExecutor.new_class_executor(self.send, self.module, wrappers).execute(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one call of the model in the ranks. Returns its result on the device of the latents. Raises Refused for
        what would have to run inside of the model, and for what cannot be sent."""
        values = self.name_arguments(args, kwargs)
        latents, timestep = (values.pop(name) for name in list(self.signature.parameters)[:2])
        options = encode_options(values.get("transformer_options") or {}, self.sampling.name_object)
        values["transformer_options"] = {
            **options,
            RUN: self.sampling.name,
            ATTRIBUTES: self.attributes,
            **({COMPILED: self.compiled} if self.compiled else {}),
        }
        like = latents[0] if isinstance(latents, (list, tuple)) else latents
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                raise Refused(
                    f"The {name} of this model is computed in ComfyUI with its weights, which are in worker processes.",
                    "Use the stock loader.",
                )
        for name, parts in self.computed.items():
            if isinstance(whole := values.get(name), dict):
                values[name] = {part: value for part, value in whole.items() if part not in parts}
        given = {name: value for name, value in values.items() if value is not None}
        branches = values["transformer_options"].get(BRANCHES) or [0]
        if self.recording:
            if isinstance(latents, (list, tuple)):
                raise Refused(
                    "The Parallel Sampler takes no latent of several parts, such as video with sound.",
                    "Use a stock KSampler for it, with a plan without PipeFusion.",
                )
            return self.recording.add(latents, timestep, given, branches)
        parts = [part.to(like) for part in self.batcher.answer(ModelCall([latents, timestep], given, branches))]
        if self.sampling.record_residuals(given.get("control")):
            size = self.sampling.residuals
            self.group.runs.sent_residuals(size)
            logging.info("[ParallelDiT] With each step go %.1f MB of ControlNet residuals to the ranks.", size / 1e6)
        return parts if isinstance(latents, (list, tuple)) else parts[0]

    def call(self, calls: list[ModelCall]) -> list[Answer]:
        """Runs calls of the model in the ranks."""
        with self.group.turn(check_interrupt):
            work = Work.of([call.size for call in calls], [call.branches for call in calls])
            self.decide_plan(self.count_work(work, calls[0].args, calls[0].kwargs), [call.kwargs for call in calls])
            self.load()
            found = self.group.call([(call.args, call.kwargs) for call in calls], check_interrupt)
            self.learn_steps()
            return found

    def sample(
        self, call: SamplerCall, tensors: Tensors, passes: Sequence[SamplerPass], on_step: OnStep
    ) -> torch.Tensor:
        """Runs the whole sampler call, see WorkerGroup.sample. Returns the latents on the CPU."""
        rows = [len(tensors["noise"]) * len(each.branches) for each in passes]
        work = Work.of(rows, [each.branches for each in passes])
        noise, (first, *_) = tensors["noise"].to(self.costs.torch_dtype), passes
        latents = torch.cat([noise] * len(first.branches))
        if first.channels is not None:
            latents = torch.cat([latents, first.channels.to(latents)], dim=1)
        work = self.count_work(work, (latents, latents.new_zeros(len(latents))), first.kwargs)
        self.decide_plan(work, [each.kwargs for each in passes])
        with self.group.turn(check_interrupt):
            self.load()
            found = self.group.sample(call, tensors, passes, check_interrupt, on_step)
        if call.cache == NO_CACHE:  # with a cache, some steps run only some of the blocks
            self.learn_steps()
        return found

    def count_work(self, work: Work, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Work:
        """Returns the work with the cost of one of its parts, counted from one of its calls. If the plan is still to be
        decided, the ranks measure their speed first."""
        if self.auto and self.auto.is_open:
            measure(self.group, self.costs.dtype, check_interrupt)
        return replace(work, forward=self.costs.count_call(args, kwargs))

    def learn_steps(self) -> None:
        """Corrects the predictions of this plan by the run's steps."""
        run, work = self.group.runs.current, self.last_work
        if work and work.forward and is_covered(self.plan) and run and (steps := run.of_plan):
            self.costs.learn(work, self.plan, *pick_usual_step(steps))

    def shares_calls(self) -> bool:
        """Whether the ranks run the calls of one request at the same time, or may."""
        return bool(self.auto and self.auto.is_open) or self.plan.ways(BATCH_AXES) > 1

    def begin_run(self) -> RunPlan | None:
        """Called when a sampling begins. Returns its plan; None if the plan depends on the work."""
        if self.auto is None:
            return describe_plan(self.plan)
        self.auto.begin()
        return None

    def decide_plan(self, work: Work, arguments: Sequence[Mapping[str, Any]]) -> None:
        """Decides an automatic plan by the work. The ranks keep the weights. arguments: of the calls. Raises Refused
        if nodes ask for something that the plan does not allow."""
        options = [each.get("transformer_options", {}) for each in arguments]
        work = replace(work, **find_allowed_sharing(options))
        self.follow_work(work)
        self.report_prediction(work)
        for each in options:
            check_plan(each, self.plan)

    def report_prediction(self, work: Work) -> None:
        """Reports the predicted time of a step, also on one device, once for each plan and size."""
        if work == self.last_work and not self.group.runs.is_new:
            return
        self.last_work = work
        if work.forward and self.plan.world_size > 1:
            alone = self.costs.predict(work, ONE_DEVICE)
            has_run = self.costs.has_run(work, ONE_DEVICE)
            self.group.runs.compared(alone.seconds, has_run, self.costs.is_measured)
        if work.forward and is_covered(self.plan):
            predicted = self.costs.predict(work, self.plan)
            self.group.runs.predicted(predicted.seconds, self.costs.is_measured)

    def follow_work(self, work: Work) -> None:
        """Changes an automatic plan if this work decides it."""
        if self.auto is None or not self.auto.follow(work):
            return
        self.plan = self.auto.plan
        self.note = tuple(self.auto.why)
        logging.info("[ParallelDiT] %s: %s. %s", self.source["model_class"], self.plan, join_remarks(self.note))
        self.group.runs.planned(describe_plan(self.plan))

    def send_method(self, method: str, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Runs another method of the module in the ranks, one that computes with its weights."""
        with self.group.turn(check_interrupt):
            self.load()
            ((result,),) = self.group.call([(args, kwargs)], check_interrupt, method)
            return result.to(args[0].device)

    def name_arguments(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments of a call by name."""
        values = dict(self.signature.bind(*args, **kwargs).arguments)
        rest = next((p.name for p in self.signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")
        more = values.pop(rest, {})
        return {**values, **more}

    def use_patches(
        self, key: str | None, patches: Patches, objects: Mapping[str, Any], compiled: Mapping[str, Any]
    ) -> None:
        """Makes the following calls those of a patcher, with its changes of the weights, and what it replaces.

        key: tells these changes from others.
        objects: of ComfyUI's model, by path.
        compiled: see `compile_settings`.
        """
        self.patched, self.compiled = (key, patches), compiled
        prefix = f"{MODULE}."
        self.attributes = {
            name.removeprefix(prefix): value for name, value in objects.items() if name.startswith(prefix)
        }
        cast = {"cast": dtype_name(objects[COMPUTE_DTYPE])} if COMPUTE_DTYPE in objects else {}
        self.source = {**self.own_source, **cast}

    def allows(self, plan: ParallelPlan) -> bool:
        """Whether the model can run under this plan."""
        return allows(functools.partial(check_module, model=self.module), plan)

    def adapt(self, key: str | None, patches: Patches) -> None:
        def build() -> tuple[list, dict]:
            try:
                found, tensors = pack_patches(patches)
            except UnsendableError as error:
                raise RequestRefused(*error.explanation) from error
            return [patch.to_json() for patch in found], tensors

        self.group.patch(key, build, check_interrupt)

    def begin_sampling(self, options: Mapping[str, Any]) -> None:
        """Called before a sampling, with what nodes ask for. Raises Refused for what cannot be honoured."""
        self.module_guard.check(self.attributes)
        check_inside(options)
        if self.auto is None:
            check_plan(options, self.plan)
        self.sampling = Sampling()


def remote_module(model: comfy.model_base.BaseModel) -> RemoteModule | None:
    """Returns the RemoteModule behind a model's module, if it has one."""
    return vars(model.diffusion_model).get(ATTRIBUTE)


def describe_plan(plan: ParallelPlan) -> RunPlan:
    """Returns the plan in the form in which runs report it."""
    return RunPlan(str(plan), plan.to_json(), plan.world_size)
