"""Stands in for one of ComfyUI's diffusion models: its class, names and sizes, on the meta device, without weights.

The worker group computes what the module would compute.
"""

from __future__ import annotations

import functools
import inspect
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import comfy.model_base
import comfy.model_management
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
from ...worker.comfyui.patched_options import ATTRIBUTES, COMPILED, OPTIONS, RUN
from ...worker.comfyui.patches import pack_patches
from ...worker.comfyui.source import METHODS, HostSource
from ...worker.errors import RequestRefused
from ...worker.host.call_batcher import Answer, CallBatcher, ModelCall
from ...worker.host.client import WorkerGroup
from ...worker.host.runs import RunPlan
from ...worker.host.session import OnStep
from ...worker.settings import REFUSE
from ...worker.wire.sampler_call import SamplerCall, SamplerPass
from ...worker.wire.tensors import Tensors, UnsendableError
from ..compat import has_inner_forward, inner_forward
from ..costs.machine import measure
from ..costs.plans import ModelCosts, is_covered, pick_usual_step
from ..errors import Refused
from ..plan_words import Remark, join_remarks
from .local_weights import DeferredParameter, LocalWeights, StandInPatcher
from .module_guard import ModuleGuard
from .own_schedule import Schedule
from .patches import encode_options, find_allowed_sharing, join, reasons_inside, reasons_of_plan
from .remote_weights import Patches, RemoteWeights, check_interrupt
from .sampling import Sampling, show_on_node

SHOWN = 3  # of the changes of a module
ONE_DEVICE = ParallelPlan()
BRANCHES = "cond_or_uncond"  # an option: for each part of the batch, 0 for cond and 1 for uncond
MODULE, COMPUTE_DTYPE = "diffusion_model", "manual_cast_dtype"  # attributes of ComfyUI's model
ATTRIBUTE = "parallel_module"  # attribute that marks a stand-in module


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
        self.weights = LocalWeights(module, source)
        self.stand_ins = self.methods()  # attributes of the module while the ranks run it
        vars(module).update(self.stand_ins)
        vars(module)[ATTRIBUTE] = self
        self.guard = ModuleGuard(module, [ATTRIBUTE, *self.stand_ins])
        self.own_source = self.source
        self.attributes: dict[str, Any] = {}  # set by nodes on the module, by path
        self.compiled: Mapping[str, Any] = {}  # see `compile_settings`
        self.sampling = Sampling()
        self.runs_here = False
        self.why_here = ""  # why ComfyUI's own model runs in place of the ranks
        self.patcher: Callable[[], StandInPatcher | None] = lambda: None  # the one that ComfyUI has loaded

    def methods(self) -> dict[str, Any]:
        """Returns the methods of the module that become requests, by name."""
        parts = {name: functools.partial(self.send_method, name) for name in METHODS if hasattr(self.module, name)}
        if has_inner_forward(self.module):
            return {"_forward": self.send, **parts}
        return {"forward": self.run_wrappers, **parts}

    def run_wrappers(self, *args: Any, **kwargs: Any) -> Any:
        """Calls a class in which our call has no place inside of the wrappers."""
        options = self.name_arguments(args, kwargs).get(OPTIONS) or {}
        wrappers = get_all_wrappers(WrappersMP.DIFFUSION_MODEL, options)
        return WrapperExecutor.new_class_executor(self.send, self.module, wrappers).execute(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one call of the model in the ranks. Returns its result on the device of the latents. What has to run
        inside of the model, and cannot in the ranks, makes ComfyUI's own model run it here. Raises Refused for what
        cannot be sent."""
        values: dict[str, Any] = {
            name: value.read() if isinstance(value, DeferredParameter) else value
            for name, value in self.name_arguments(args, kwargs).items()
        }
        if reasons := self.reasons(values.get(OPTIONS) or {}):
            return self.run_here(reasons, args, kwargs)
        latents, timestep = (values.pop(name) for name in list(self.signature.parameters)[:2])
        options = encode_options(values.get(OPTIONS) or {}, self.sampling.name_object)
        values[OPTIONS] = {
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
        branches = values[OPTIONS].get(BRANCHES) or [0]
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

    def reasons(self, options: Mapping[str, Any]) -> list[str]:
        """Returns why the ranks cannot run a call with these options; empty if they can."""
        changes = [f"a change of its {name}" for name in self.guard.changes(self.attributes)[:SHOWN]]
        return [*changes, *reasons_inside(options)]

    def check_call(self, options: Mapping[str, Any]) -> None:
        """Lets ComfyUI's own model take a call with these options, and all after it, if the ranks cannot run it."""
        if not self.runs_here and (reasons := self.reasons(options)):
            self.take_over(reasons, self.patcher(), load=True)

    def run_here(self, reasons: Sequence[str], args: tuple, kwargs: dict[str, Any]) -> Any:
        """Runs one call, and all after it, on ComfyUI's own model. The wrappers of nodes are around it already."""
        self.take_over(reasons, self.patcher(), load=True)
        if "_forward" in self.stand_ins:
            return inner_forward(self.module)(*args, **kwargs)
        bound = self.signature.bind(*args, **kwargs)
        for given in (bound.arguments, bound.kwargs):
            if OPTIONS in given:
                wrappers = {**given[OPTIONS].get("wrappers", {}), WrappersMP.DIFFUSION_MODEL: {}}
                given[OPTIONS] = {**given[OPTIONS], "wrappers": wrappers}
        return self.module.forward(*bound.args, **bound.kwargs)

    def choose_place(self, patcher: StandInPatcher, options: Mapping[str, Any], needs_ranks: bool) -> None:
        """Called before a sampling. Lets ComfyUI's own model run it if the ranks cannot, and the ranks otherwise.

        needs_ranks: whether it can run in the ranks alone. Raises Refused.
        """
        patcher.eject_clones()
        reasons = [f"a change of its {name}" for name in self.changes_for(patcher)[:SHOWN]]
        reasons += reasons_inside(options) + patcher.reasons()
        if self.auto is None:
            reasons += reasons_of_plan(options, self.plan)
        if reasons and needs_ranks:
            raise Refused(f"The Parallel Sampler cannot honour {join(reasons)}.", "Use a stock sampler, or remove it.")
        if reasons or self.weights.is_changed:
            self.take_over(reasons or ["weights that a node has written over"], patcher)
        else:
            self.give_back(patcher)

    def changes_for(self, patcher: StandInPatcher) -> list[str]:
        """Returns the changes of the module that do not come from a patcher, which takes its own off again."""
        own = [name.removeprefix(f"{MODULE}.") for name in patcher.object_patches_backup]
        found = self.guard.changes(own, self.weights.is_here)
        here = [name for name in self.stand_ins if self.runs_here and name in vars(self.module)]
        return [*found, *(name for name in here if name not in own)]

    def take_over(self, reasons: Sequence[str], patcher: StandInPatcher | None, load: bool = False) -> None:
        """Lets ComfyUI's own model of the file compute from here on: the stand-in becomes it.

        patcher: of the calls that follow. load: whether ComfyUI has loaded it, without weights until now. Raises
        Refused if the operator wants an error instead, and ModelFileError.
        """
        why = join(reasons)
        if self.recording or self.group.settings.when_not_parallel == REFUSE:
            raise Refused(
                f"The parallel model cannot honour {why}: its inside runs in worker processes.",
                "Remove that node, or use the stock loader.",
            )
        said = f"{self.name} runs as stock, on ComfyUI's own device alone: the worker processes cannot run {why}."
        if why != self.why_here:
            logging.warning("[ParallelDiT] %s", said)
        self.why_here = why
        show_on_node(said)
        if self.runs_here:
            return
        self.free()
        self.weights.bring()
        self.runs_here = True
        for name, method in self.stand_ins.items():
            if vars(self.module).get(name) is method:
                del vars(self.module)[name]
        if patcher:
            patcher.forget_load()
            if load:
                comfy.model_management.load_models_gpu([patcher])

    def give_back(self, patcher: StandInPatcher) -> None:
        """Lets the ranks compute from here on."""
        if not self.runs_here:
            return
        patcher.unload_here()
        self.weights.drop()
        self.runs_here = False
        vars(self.module).update(self.stand_ins)
        self.why_here = ""

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
        return not self.runs_here and (bool(self.auto and self.auto.is_open) or self.plan.ways(BATCH_AXES) > 1)

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
            if reasons := reasons_of_plan(each, self.plan):
                raise Refused(f"The parallel model cannot honour {join(reasons)}.", "Use plan: auto.")

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
        self,
        patcher: StandInPatcher,
        key: str | None,
        patches: Patches,
        objects: Mapping[str, Any],
        compiled: Mapping[str, Any],
    ) -> None:
        """Makes the following calls those of a patcher, with its changes of the weights, and what it replaces.

        key: tells these changes from others.
        objects: of ComfyUI's model, by path.
        compiled: see `compile_settings`.
        """
        self.patcher = weakref.ref(patcher)
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

    def begin_sampling(self) -> None:
        """Called before a sampling."""
        self.sampling = Sampling()


def remote_module(model: comfy.model_base.BaseModel) -> RemoteModule | None:
    """Returns the RemoteModule behind a model's module, if it has one."""
    return vars(model.diffusion_model).get(ATTRIBUTE)


def describe_plan(plan: ParallelPlan) -> RunPlan:
    """Returns the plan in the form in which runs report it."""
    return RunPlan(str(plan), plan.to_json(), plan.world_size)
