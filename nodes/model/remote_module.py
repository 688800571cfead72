"""Stands in for one of ComfyUI's diffusion models: its class, names and sizes, on the meta device, without weights.

The worker group computes its forward.
"""

from __future__ import annotations

import functools
import logging
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import comfy.model_base
import comfy.model_management
import torch
from comfy.patcher_extension import WrapperExecutor, WrappersMP, get_all_wrappers
from comfy_api.torch_helpers.torch_compile import TORCH_COMPILE_KWARGS

from ...parallel_backend.costs.forward import Work
from ...parallel_backend.models.spec import spec_of
from ...parallel_backend.sampling.passes import Pass
from ...worker.comfyui.call_keys import COMPILED, CONTROL, FACTS, GRAPH, OPTIONS, SAMPLING
from ...worker.comfyui.entry import leaves_by, runs_wrappers
from ...worker.comfyui.model import dtype_name
from ...worker.comfyui.patches import PREFIX, pack_patches
from ...worker.comfyui.source import SENT_METHODS, HostSource
from ...worker.errors import Explanation, NoRoom, NoWorkerGroup, OutOfMemory, RequestRefused
from ...worker.host.call_batcher import Answer, BatchedCall, CallBatcher, CallRecorded, order_branches
from ...worker.host.session import OnStep
from ...worker.wire.operations import FORGOTTEN, FORWARD, INNER, NO_KERNEL, STATE, WHOLE_STEP
from ...worker.wire.protocol import Header
from ...worker.wire.sampler_call import SamplerCall
from ...worker.wire.tensors import Tensors
from ...worker.wire.tree import unpack
from ..errors import Refused
from ..inside.controls import add_control_facts, encode_control
from ..inside.describe import Inside, list_written
from ..inside.module_guard import ModuleGuard, configs_of
from ..inside.replaced_methods import ReplacedMethods
from ..inside.sharing import compile_arguments, join
from ..plan_words import remarks_to_json
from .deferred_weight import DeferredParameter
from .local_weights import WRITTEN, LocalWeights
from .planned_module import PlannedModule
from .sampling import check_interrupt, show_on_node, warn
from .stock_model import StockModel
from .weight_changes import Patches, find_merged

NONE: Patches = {}
Patcher = Any  # a RemoteModelPatcher, whose module imports this one
BRANCHES = "cond_or_uncond"  # an option: for each part of the batch, 0 for cond and 1 for uncond
MODULE, COMPUTE_DTYPE = "diffusion_model", "manual_cast_dtype"  # attributes of ComfyUI's model
ATTRIBUTE = "parallel_module"  # a module attribute: the RemoteModule behind it
# An argument of MiniMax H3, and its entry that the model computes if it is missing. This is not sent to ranks.
PAYLOAD, COMPUTED = "minimax_payload", "layout"


class RemoteModule:
    """Sends the calls of a module to the worker group. If the class runs wrappers around `_forward` itself, this
    replaces `_forward`, so that the wrappers are called as usual, and the calls enter the ranks there.

    planned: under which plan they run. stock: runs what the ranks cannot."""

    def __init__(self, source: HostSource, planned: PlannedModule) -> None:
        self.module, self.group, self.planned = planned.module, planned.group, planned
        module = self.module
        self.batcher = CallBatcher(self.call, lambda: not self.stock.is_active and planned.shares_calls())
        self.weights = LocalWeights(module, source)
        self.stand_ins = self.methods()  # attributes of the module while the ranks run it
        vars(module).update(self.stand_ins)
        vars(module)[ATTRIBUTE] = self
        self.guard = ModuleGuard(module, [ATTRIBUTE, *self.stand_ins], self.weights.take_back_copies)
        self.weights.on_show = self.guard.expect
        self.replaced_methods = ReplacedMethods(module, self.stand_ins, lambda: self.stock.is_active)
        self.stock = StockModel(planned, self.weights, self.stand_ins, self.replaced_methods)
        self.patched: tuple[str, Patches] = ("", {})  # the running patcher's key and patches
        self.object_patches: Mapping[str, Any] = {}  # nodes' changes of the module, by path
        named = {**self.weights.parts, **configs_of(module), **self.stand_ins}
        parts = {id(part): path for path, part in named.items()}
        self.inside = Inside(module, source, parts, lambda: not self.group.settings.machines)
        self.answered: str | None = ""  # the name of the sampling of the last reply; None if a request had none
        self.compiled: Mapping[str, Any] = {}  # see `compile_arguments`
        self.begin_sampling()
        self.patcher: Callable[[], Patcher | None] = lambda: None  # the patcher that ComfyUI has loaded

    def methods(self) -> dict[str, Any]:
        """Returns the methods of the module that become requests, by name."""
        parts = {name: functools.partial(self.send_method, name) for name in SENT_METHODS if hasattr(self.module, name)}
        entry = {INNER: self.send} if leaves_by(type(self.module)) == INNER else {FORWARD: self.run_wrappers}
        return {**entry, **parts}

    def run_wrappers(self, *args: Any, **kwargs: Any) -> Any:
        """Replaces the `forward` of a class without `_forward`. Runs the nodes' wrappers if the class runs them."""
        if not runs_wrappers(type(self.module)):
            return self.send(*args, **kwargs)
        options = self.replaced_methods.name_arguments(args, kwargs).get(OPTIONS) or {}
        wrappers = get_all_wrappers(WrappersMP.DIFFUSION_MODEL, options)
        return WrapperExecutor.new_class_executor(self.send, self.module, wrappers).execute(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one call of the model in the ranks. Returns its result on the device of the latents. If nodes' functions
        inside of the model cannot run in the ranks, ComfyUI's own model runs the call here. Raises Refused for
        arguments that cannot be sent."""
        if self.stock.is_active:  # a node has put a stand-in back that it replaced before ComfyUI's own model took over
            return self.stock.run(args, kwargs)
        values: dict[str, Any] = {
            name: value.read() if isinstance(value, DeferredParameter) else value
            for name, value in self.replaced_methods.name_arguments(args, kwargs).items()
        }
        branches = (values.get(OPTIONS) or {}).get(BRANCHES) or [0]
        values[OPTIONS], reasons = self.describe(values.get(OPTIONS) or {})
        if reasons:
            self.take_over(reasons)
            return self.stock.run(args, kwargs)
        if CONTROL in values:
            values[CONTROL] = encode_control(values[CONTROL], self.inside.encoder)
            if values[CONTROL] is not None and self.planned.plan.pipefusion * self.planned.plan.patch_count > 1:
                values[OPTIONS] = add_control_facts(values[OPTIONS])
        latents, timestep = (values.pop(name) for name in list(self.replaced_methods.signature.parameters)[:2])
        like = latents[0] if isinstance(latents, (list, tuple)) else latents
        if not len(like):
            raise Refused("The latent has no images: its batch is empty.", "Give the sampler a batch of at least one.")
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                raise Refused(
                    f"ComfyUI computes this model's {name} from its weights, but these are in worker processes.",
                    "Bypass Parallelize Model.",
                )
        if isinstance(payload := values.get(PAYLOAD), dict):
            values[PAYLOAD] = {name: value for name, value in payload.items() if name != COMPUTED}
        needed = {
            each.name for each in self.replaced_methods.signature.parameters.values() if each.default is each.empty
        }
        given = {name: value for name, value in values.items() if value is not None or name in needed}
        call = BatchedCall([latents, timestep], given, branches)
        try:
            answer = self.batcher.answer(call)
        except CallRecorded:
            if not self.stock.is_active:
                raise
            return self.stock.run(args, kwargs)
        parts = [part.to(like) for part in answer]
        return parts if isinstance(latents, (list, tuple)) else parts[0]

    def describe(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Returns a call's options as they are sent to the ranks, with the changes of the module. Also returns why the
        ranks cannot run the call; empty if they can."""
        changes = self.replaced_methods.choose(self.guard.changes(self.object_patches), self.object_patches)
        encoded, reasons = self.inside.describe_call(options, *changes, self.guard.notes)
        compiled = {COMPILED: self.compiled} if self.compiled else {}
        return {**encoded, **compiled, SAMPLING: self.sampling}, self.explain_module() + reasons

    def explain_module(self) -> list[str]:
        """Returns why the ranks cannot run the module as it is; empty if they can."""
        written = [WRITTEN] if self.weights.is_changed and not self.stock.is_active else []
        return written + self.replaced_methods.explain_class()

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Makes ComfyUI's own model run this call and all later ones, if its class writes results into these options:
        then its `forward` may not come to the method by which calls leave."""
        if not self.stock.is_active and (reasons := list_written(options)):
            self.take_over(reasons)

    def take_over(self, reasons: Sequence[str], down: Explanation | None = None) -> None:
        """Makes ComfyUI's own model run the call that runs, and all later ones. Raises what `StockModel.take_over`
        raises."""
        self.stock.take_over(reasons, self.patcher(), load=True, needs_ranks=self.batcher.is_recording, down=down)

    def choose_runner(self, patcher: Patcher, options: Mapping[str, Any], needs_ranks: bool) -> None:
        """Chooses who runs a sampling: the ranks or ComfyUI's own model. needs_ranks: only they can. Raises Refused."""
        if self.stock.is_active:
            self.stock.remove_stand_ins()
        patcher.eject_clones()
        self.begin_sampling()
        reasons = self.explain_options(patcher, options) + patcher.reasons()
        if needs_ranks:
            reasons += [f"a change of its {each.name}" for each in self.replaced_methods.find()]
        if reasons and needs_ranks:
            raise Refused(f"The Parallel Sampler cannot honour {join(reasons)}.", "Use a stock sampler, or remove it.")
        if reasons:
            self.stock.take_over(reasons, patcher)
        elif (down := self.group.down) and not needs_ranks:
            self.stock.take_over([], patcher, down=down)
        elif not self.stock.give_back(patcher):
            self.stock.take_over([WRITTEN], patcher)

    def explain_options(self, patcher: Patcher, options: Mapping[str, Any]) -> list[str]:
        """Returns why the ranks cannot run a call with these options, as far as this is known before a sampling.
        Attributes that a patcher has changed do not count, because it restores them."""
        own = {name.removeprefix(PREFIX) for name in patcher.object_patches_backup}
        with self.replaced_methods.redirect(self.send):
            changes = self.replaced_methods.choose(self.guard.changes(own, self.stock.is_active), {})
            _, reasons = self.inside.describe_call(options, *changes, dict)
        here = [name for name in self.stand_ins if self.stock.is_active and name in vars(self.module)]
        return [*self.explain_module(), *(f"a change of its {name}" for name in here if name not in own), *reasons]

    def call(self, calls: list[BatchedCall]) -> list[Answer]:
        """Runs calls of the model in the ranks. If they cannot run nodes' functions, ComfyUI's own model takes over,
        and CallRecorded says that the calls have no results yet."""
        planned, options = self.planned, [call.kwargs[OPTIONS] for call in calls]
        try:
            with self.group.turn(check_interrupt):
                work = Work.of([call.size for call in calls], [call.branches for call in calls])
                planned.decide_plan(planned.count_work(work, calls[0].args, calls[0].kwargs), options)
                self.load()
                self.explain_compilation()
                indices = order_branches(calls, planned.plan.cfg)
                asked = [(calls[index].args, as_sent(calls[index].kwargs)) for index in indices]
                asked[0][1][OPTIONS] |= self.new_objects()
                method = self.replaced_methods.method
                answers = self.group.call(asked, check_interrupt, method, self.take_reply)
                return [answers[indices.index(index)] for index in range(len(calls))]
        except OutOfMemory:
            raise
        except (NoRoom, NoWorkerGroup) as error:
            self.take_over([], error.explanation)
            raise CallRecorded from error
        except RequestRefused as error:
            if not any(FACTS in each for each in options):
                raise
            self.take_over([f"what nodes run inside of it ({error.explanation.cause})"])
            raise CallRecorded from error

    def new_objects(self) -> dict[str, Any]:
        """Returns the option with those functions and objects that the ranks lack; none if they lack nothing."""
        encoder, begins = self.inside.encoder, self.inside.encoder.kept is None
        if not self.group.has_objects_of(self.answered):
            if not begins:
                self.explain_loss()
            encoder.forget_sent()
        self.answered = None
        changed, kept = encoder.changes(), encoder.kept if begins else []
        return {GRAPH: [kept, changed]} if kept or changed else {}

    def sample(self, call: SamplerCall, tensors: Tensors, passes: Sequence[Pass], on_step: OnStep) -> torch.Tensor:
        """Runs the whole sampler call, see WorkerGroup.sample. Returns the latents on the CPU."""
        rows = [len(tensors["noise"]) * len(each.branches) for each in passes]
        work = replace(Work.of(rows, [each.branches for each in passes]), loops=True)
        planned, (first, *_) = self.planned, passes
        noise = tensors["noise"].to(planned.costs.torch_dtype)
        latents = torch.cat([noise] * len(first.branches))
        if first.channels is not None:
            latents = torch.cat([latents, first.channels.to(latents)], dim=1)
        with self.group.turn(check_interrupt):
            work = planned.count_work(work, (latents, latents.new_zeros(len(latents))), first.kwargs)
            planned.decide_plan(work, [each.kwargs[OPTIONS] for each in passes])
            self.load()
            self.explain_compilation()
            sent = [each._replace(kwargs=as_sent(each.kwargs))._asdict() for each in passes]
            sent[0]["kwargs"][OPTIONS] |= self.new_objects()
            return self.group.sample(call, tensors, sent, check_interrupt, on_step, self.take_reply)

    def send_method(self, method: str, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Runs another method of the module in the ranks, one that computes with its weights."""
        try:
            with self.group.turn(check_interrupt):
                self.load()
                ((result,),) = self.group.call([(args, kwargs)], check_interrupt, method)
                return result.to(args[0].device)
        except (NoRoom, NoWorkerGroup) as error:
            self.take_over([], error.explanation)
            return getattr(self.module, method)(*args, **kwargs)

    def use_patches(self, patcher: Patcher, more: Patches = NONE, hooks: Sequence[tuple[int, float]] = ()) -> None:
        """Makes the following calls use a patcher, which ComfyUI has loaded. more: changes of weights in addition to
        its own. hooks: identify these."""
        self.patcher, objects = weakref.ref(patcher), patcher.object_patches
        own = self.weights.keep_patchable(patcher.patches)
        patches = {name: [*own.get(name, ()), *more.get(name, ())] for name in {**own, **more}}
        key = f"{patcher.patches_uuid} {[*hooks] if more else ''}" if patches else ""
        if key != self.patched[0] or not self.weights.shown:
            self.weights.show(patches)
        self.patched = key, patches
        self.compiled = compile_arguments(patcher.model_options.get(TORCH_COMPILE_KWARGS, {}))
        self.object_patches = {
            name.removeprefix(PREFIX): value for name, value in objects.items() if name.startswith(PREFIX)
        }
        cast = {"cast": dtype_name(objects[COMPUTE_DTYPE])} if COMPUTE_DTYPE in objects else {}
        self.planned.source = replace(self.weights.source, **cast)

    def load(self) -> None:
        """Makes the worker group hold this model under this plan, with the LoRA of the running patcher."""
        planned = self.planned
        plan, remarks = (planned.plan.to_json(), planned.plan.world_size), remarks_to_json(planned.decided.choice.note)
        said = self.group.load(planned.source.to_json(), *plan, check_interrupt, remarks, planned.name)
        if said:
            logging.info("[ParallelDiT] %s", said)
            show_on_node(said)
        key, patches = self.patched
        self.group.patch(key, lambda: pack_patches(patches, find_merged), check_interrupt)

    def take_reply(self, reply: Header, state: Tensors) -> None:
        """Takes over what functions of nodes changed in the ranks. Says on the node what the ranks did otherwise than
        asked. state: the tensors of its STATE."""
        self.answered = self.sampling
        device = comfy.model_management.get_torch_device()
        here = {name: tensor.to(device) for name, tensor in state.items()}  # as if the functions had run there
        self.inside.encoder.apply(unpack(reply.get(STATE, []), here))
        if why := reply.get(WHOLE_STEP):
            self.explain_whole_step(why)
        if why := reply.get(NO_KERNEL):
            self.say_once(why)

    def explain_compilation(self) -> None:
        """Says on the node that the ranks do not compile under this plan, if a node asks for compiled blocks."""
        plan, name, spec = self.planned.plan, self.planned.name, spec_of(type(self.module))
        if self.compiled and spec and spec.bands and plan.token_ways > 1:
            self.say_once(
                f"{name} runs without torch.compile: the ranks share a picture's rows, which its layers exchange."
            )

    def explain_whole_step(self, why: str) -> None:
        """Says on the node why PipeFusion ran a step whole."""
        self.say_once(f"PipeFusion runs some steps whole: {why}.")

    def explain_loss(self) -> None:
        """Says on the node what a sampling may lose if the ranks have forgotten its last step."""
        if self.planned.plan.whole_steps:
            self.explain_whole_step(FORGOTTEN)
        inside, encoder = self.inside, self.inside.encoder
        if any(map(encoder.is_known, encoder.entries)) and not all(facts.is_stateless for facts in inside.facts):
            self.say_once(f"What nodes keep inside of the model from step to step may be lost: {FORGOTTEN}.")

    def begin_sampling(self) -> None:
        """Called before a sampling. Objects that nodes run inside of the model live in the ranks for as long as it
        lasts. sampling: its name. say_once: says a text, once in it."""
        self.inside.encoder.begin_sampling()
        self.sampling, self.say_once = uuid.uuid4().hex, functools.cache(warn)


def as_sent(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a call's arguments as they go to the ranks: without the facts, by which its plan was chosen."""
    return {**kwargs, OPTIONS: {name: value for name, value in kwargs[OPTIONS].items() if name != FACTS}}


def remote_module(model: comfy.model_base.BaseModel) -> RemoteModule | None:
    """Returns the RemoteModule behind a model's module, if it has one."""
    return vars(model.diffusion_model).get(ATTRIBUTE)
