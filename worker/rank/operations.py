"""Runs a rank's operations: load and change a model, run it, run a VAE, park, unload, trace, measure.

Every rank gets every request. A rank outside of the plan skips those of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from parallel_backend.errors import RequestError, is_out_of_memory
from parallel_backend.groups.calls import Call, tensors_of
from parallel_backend.plan import ON, ParallelPlan
from parallel_backend.rates import measure_ranks
from parallel_backend.sampling.denoiser import LoopStopped, denoise
from parallel_backend.seams.compiled import BY_PLAN, check_compiler
from parallel_backend.weights.host_memory import agree_on_memory
from parallel_backend.weights.loading import DTYPES
from parallel_backend.weights.parking import Parking
from parallel_backend.weights.placement import describe_weights, place_model

from ..comfyui.call_keys import COMPILED, GRAPH, KERNEL, OPTIONS
from ..comfyui.patches import MergedFile
from ..comfyui.source import HostSource, VaeSource
from ..wire import operations as ops
from ..wire.job_channel import RankChannel
from ..wire.sampler_call import SAMPLER_TENSORS, SamplerCall
from ..wire.tensors import Tensors
from ..wire.tree import PREDICTION, pack, unpack
from .agreement import DONE, REFUSED, JobEnded
from .job import Cancelled, Job, ModelFailed
from .memory.device_memory import own_bytes, release_memory
from .model.copied_file import bring_copy
from .model.host_model import HostModel
from .request_checks import parse_field
from .sampling import build_inpainting, build_stepper, unpack_passes
from .state import RankState
from .step_watch import JobWatch
from .trace import gather_trace

Output = TypeVar("Output")


@dataclass(eq=False)
class Operations:
    """The handlers, by operation. Each takes the job and its tensors, which it may empty, and returns rank 0's tensors,
    if any; what else it has to say is in `Job.told`. channel: to ComfyUI, for events; None on ranks other than 0."""

    state: RankState
    channel: RankChannel | None

    def load(self, job: Job, _tensors: Tensors) -> None:
        """Replaces the model and the plan. If that fails, no model is in use.

        If every rank of the new plan needs the weights that it has, they stay with their patches. Ranks outside of the
        plan release their weights. The last model stays beside the new one if both fit, and the reply says which models
        stay or are released.
        """
        source = HostSource.from_json(job.header["source"])
        plan = ParallelPlan.from_json(job.header["plan"])
        if plan.world_size > dist.get_world_size():
            raise RequestError(
                f"The plan {plan} has more ranks than the group's {dist.get_world_size()}.", "Restart ComfyUI."
            )
        if plan.compile == ON:
            job.all_or_none(lambda: check_compiler(BY_PLAN, self.state.device))
        held = self.state.copies.get(source.path)  # so that it does not go with the model
        self.state.choose_model(source, plan)
        kept = self.state.find_reusable_model(source, plan) if dist.get_rank() < plan.world_size else None
        if kept is None:
            self.state.drop_model()
        # Build all groups before one rank alone can run out of memory, because building waits for all ranks.
        job.control.set_plan_ranks(plan.world_size)
        mesh = job.groups.build_plan(plan)
        if not job.leave_to_plan():
            return
        if kept:
            model = kept
            self.state.conditions.clear()
            if (model.mesh.plan, model.mesh.groups()) != (plan, mesh.groups()):
                job.without_collectives(lambda: kept.replan(mesh))
        else:
            copy = bring_copy(job, source, held)
            model = job.all_or_none(lambda: HostModel.build(source, mesh, job.check))
            model.copy = copy
        self.state.keep_model(model)
        self.place_weights(job, model)
        job.told[ops.BESIDE] = self.state.loaded.get(ops.BESIDE, "")

    def place_weights(self, job: Job, model: HostModel, working: int = 0) -> None:
        """Puts the weights where the plan keeps them, see `place_model`. If that fails, no model is loaded. Parked
        weights come back to the device first. If it has no room for them, they stay parked."""
        self.unpark(job, model.parking)
        self.state.make_way(job, model, working)
        self.state.before = own_bytes(self.state.device)
        try:
            place_model(job, model, working)
        except JobEnded:
            self.state.drop_model()
            raise
        self.state.loaded = {**self.state.loaded, "weights": describe_weights(job, model)}
        self.state.publish()

    def make_room(self, job: Job, model: HostModel, working: int) -> None:
        """Frees weights before forwards that need more bytes than any before."""
        if working <= model.working_bytes:
            return
        if model.fetched.blocks:
            self.place_weights(job, model, working)
        else:
            self.state.make_way(job, model, working)
            job.all_or_none(lambda: model.load_onto_device(working))

    def patch(self, job: Job, tensors: Tensors) -> None:
        """Applies these changes to the file's weights, in place of the earlier changes. If that fails, no model is
        loaded."""
        model = self.get_model(job)
        sources = map(HostSource.from_json, job.header["files"])
        files = [MergedFile(source, bring_copy(job, source)) for source in sources]
        own = {name: tensor.clone() for name, tensor in tensors.items()}  # the request's memory is used again
        job.without_collectives(lambda: model.patch(job.header["patches"], own, files))
        model.patched = job.header["key"]

    def call(self, job: Job, tensors: Tensors) -> Tensors | None:
        """Runs calls of a method of the model. The request brings the tensors that were not sent before."""
        model, given = self.get_model(job), self.state.take_conditions(job.header, tensors)
        calls = parse_field(lambda values: unpack_calls(values, given), job.header["calls"], "calls")
        if (method := job.header["method"]) in ops.ENTRIES:
            self.prepare_options(job, model, calls[0].kwargs)
            self.make_room(job, model, job.without_collectives(lambda: model.estimate_working_of_calls(calls)))
            outputs = run_model_code(
                lambda: model.call(calls, method), model.refuses_alike([call.size for call in calls])
            )
        else:
            outputs = run_model_code(lambda: model.call_method(method, calls), refuses_alike=True)
        changed = add_state(job, model)
        if why := model.parallel.pipeline.why:
            job.told[ops.WHOLE_STEP] = why
        if outputs is None:
            return None
        found = {
            f"{PREDICTION}.{call}.{index}": part
            for call, output in enumerate(outputs)
            for index, part in enumerate(tensors_of(output))
        }
        return {**found, **changed}

    def prepare_options(self, job: Job, model: HostModel, kwargs: Mapping[str, Any]) -> None:
        """Raises JobEnded on all ranks if one of them cannot compile blocks as a node asks, or lacks the code that a
        node runs inside of the model. The ranks attend by the kernel that a node chose if all of them can."""
        options = parse_field(lambda given: dict(given.get(OPTIONS) or {}), kwargs, "options")
        if options.get(GRAPH):  # functions or objects that are not here yet
            job.all_or_none(lambda: model.take_objects(kwargs[OPTIONS]))
            if networks := model.decoder.networks:
                lacking = sum(each.model_size() - each.loaded_size() for each in networks)
                self.state.make_way(job, model, model.working_bytes, lacking)
                job.all_or_none(lambda: model.load_onto_device(model.working_bytes))
        asked = options.get(COMPILED)
        if asked and asked != model.parallel.compiled.compiled_for:
            job.all_or_none(lambda: check_compiler(asked, self.state.device))
        if name := options.get(KERNEL):
            self.agree_on_kernel(job, model, str(name))

    def agree_on_kernel(self, job: Job, model: HostModel, name: str) -> None:
        """Makes calls that name an attention kernel use it, if all ranks can. If not, the reply says why, and which
        kernel they use."""
        if name not in model.kernels:
            kernel, outcome = job.attempt(lambda: model.choose_kernel(name))
            if outcome.kind not in (DONE, REFUSED):
                raise JobEnded(outcome)
            model.kernels[name] = kernel if kernel and outcome.kind == DONE else outcome.said.cause
        if not model.kernel_of(name):
            job.told[ops.NO_KERNEL] = f"{model.kernels[name]} The ranks attend by {model.describe_kernel()}."

    def sample(self, job: Job, tensors: Tensors) -> Tensors | None:
        """Runs a whole sampler call, see `SamplerCall`. Raises Cancelled if ComfyUI has cancelled it."""
        model = self.get_model(job)
        own = {name: tensors.pop(name) for name in SAMPLER_TENSORS if name in tensors}
        noise = own["noise"]
        given = self.state.take_conditions(job.header, tensors)
        call = SamplerCall(**job.header["call"])
        stepper = build_stepper(call, noise, model.parallel)
        passes = parse_field(lambda values: unpack_passes(values, given), job.header["passes"], "passes")
        sizes = [len(each.branches) * len(noise) for each in passes]
        shape = (max(sizes), *noise.shape[1:])
        working = job.without_collectives(lambda: model.estimate_working(shape))
        kept = model.parallel.stale_bytes([(rows, *shape[1:]) for rows in sizes])
        self.make_room(job, model, working + kept)
        self.prepare_options(job, model, passes[0].kwargs)
        passes, context = model.prepare(passes)

        watch = JobWatch(job, len(stepper), call.previews, self.channel)

        def run() -> torch.Tensor | None:
            return denoise(
                model.parallel,
                stepper.initial(noise, own.get("original", torch.zeros_like(noise))),
                stepper,
                passes,
                call.guidance,
                timestep_scale=call.timestep_scale,
                inpainting=build_inpainting(own),
                watch=watch,
            )

        try:
            with model.apply_context(context):
                latents = run_model_code(run, model.refuses_alike(sizes))
        except Cancelled:
            watch.close()
            raise
        watch.close()
        changed = add_state(job, model)
        return None if latents is None or dist.get_rank() else {"latents": latents, **changed}

    def vae(self, job: Job, tensors: Tensors) -> Tensors | None:
        """Decodes latents or encodes pictures with a VAE, which stays loaded until another is needed. If the ranks lack
        its weights, the answer says so, and a second request brings them."""
        from .vae.vae_job import load_rank_vae, run_rank_vae

        state, source = self.state, VaeSource.from_json(job.header["vae"])
        state.forget_steps()
        if state.vae is None or state.vae_source != source:
            state.vae = None
            release_memory(state.device)
            state.vae, state.vae_source = load_rank_vae(source, tensors, job), source
            if state.vae is None:
                job.told[ops.LACKING] = True
                return None
        self.unpark(job, state.vae.parking)
        try:
            return run_rank_vae(state.vae, job.header["direction"], job, tensors)
        except (RequestError, JobEnded):  # all ranks raise it
            raise
        except Exception as error:
            raise ModelFailed(error) from error

    def park(self, job: Job, _tensors: Tensors) -> None:
        """Moves the weights of model and VAE to host memory until their next use. Releases models that were set aside,
        and conditions. Raises RequestError."""
        self.state.release(self.state.aside)
        self.state.loaded = {**self.state.loaded, ops.BESIDE: "", "aside": []}
        self.state.conditions.clear()
        if vae := self.state.vae:  # the VAE first, because all ranks have it; some may have no part of the model
            self.park_weights(job, vae.parking, ())
        if job.leave_to_plan() and (model := self.state.model):
            model.begin_sampling("")
            model.fetched.await_fetches()  # a refused forward may still fetch into this memory
            axis = model.fetched.store and model.fetched.store.axis
            self.park_weights(job, model.parking, (model.mesh["pipefusion"].index, axis.index if axis else 0))
        release_memory(self.state.device)

    def park_weights(self, job: Job, parking: Parking, coordinates: Sequence[int]) -> None:
        """Moves weights to host memory. Raises JobEnded if a rank has too little memory; then no rank has moved any.
        coordinates: on the axes along which ranks hold different weights."""
        if parking.is_parked:
            return
        memory = agree_on_memory((coordinates, parking.layout()), parking.size, job.control_group, parking.memory)
        try:
            job.all_or_none(lambda: parking.copy(memory))
        except JobEnded:
            parking.end()
            raise
        parking.free_device()

    def trim(self, job: Job, _tensors: Tensors) -> None:
        """Frees unused memory, and what PipeFusion keeps from step to step. The reply says how many bytes of the
        accelerator."""
        self.state.publish()
        before = self.state.figures["accelerator"]
        self.state.forget_steps()
        release_memory(self.state.device)
        self.state.publish()
        job.told[ops.FREED] = before - self.state.figures["accelerator"]

    def unpark(self, job: Job, parking: Parking) -> None:
        """Puts parked weights back. Raises JobEnded if a rank has too little memory; then they stay parked on all
        ranks."""
        if not parking.is_parked:
            return

        def fill() -> None:
            try:
                parking.fill_device()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise RequestError(
                    f"Rank {dist.get_rank()} has no room on its device for the weights that are parked in RAM: {error}"
                ) from error

        try:
            _, outcome = job.attempt(fill)
            if outcome.kind != DONE:
                parking.free_device()  # on the ranks that had enough memory
                raise JobEnded(outcome)
            parking.end()
        finally:
            release_memory(self.state.device)

    def unload(self, job: Job, _tensors: Tensors) -> None:
        """Releases model, VAE and conditions, and frees their memory."""
        self.state.drop_all()

    def trace(self, job: Job, _tensors: Tensors) -> Tensors | None:
        """Returns every rank's timeline as a Chrome trace in JSON, as bytes."""
        trace = gather_trace(job.groups.timeline, job.control_group)
        return None if trace is None else {"trace": trace}

    def measure(self, job: Job, _tensors: Tensors) -> None:
        """Measures the speed of all ranks and their links. Raises RequestError on a single rank."""
        if dist.get_world_size() == 1:
            raise RequestError("One rank has no links to measure.", "Use a plan of several ranks.")
        ranks, dtype = job.groups.world_axis(), DTYPES[job.header["dtype"]]
        job.told[ops.MEASURED] = measure_ranks(ranks, self.state.device, dtype, job.control_group)
        release_memory(self.state.device)

    def get_model(self, job: Job) -> HostModel:
        """Returns the model in use, on its device. Raises RequestError if there is none."""
        if (model := self.state.model) is None:
            raise RequestError("No model is loaded in the worker group.", "Queue the prompt again.")
        self.unpark(job, model.parking)
        return model


def unpack_calls(calls: Sequence[dict], tensors: Tensors) -> list[Call]:
    """Raises ValueError, KeyError or TypeError if their description is malformed."""
    found = [Call(**unpack(each, tensors)) for each in calls]
    if not all(isinstance(args, tuple) and isinstance(kwargs, dict) for args, kwargs in found):
        raise TypeError("a call has a tuple and a dict of arguments")
    return found


def add_state(job: Job, model: HostModel) -> Tensors:
    """Puts into the reply what nodes' functions changed. Returns the tensors among it, on any device."""
    tensors: Tensors = {}
    if changes := model.decoder.changes():
        job.told[ops.STATE] = pack(changes, ops.STATE, tensors)
    return tensors


def run_model_code(run: Callable[[], Output], refuses_alike: bool) -> Output:
    """Runs the model's own code, and returns its result. Turns an exception of it into ModelFailed. Raises Cancelled if
    the watch has stopped the loop. A RequestError passes through only if all ranks raise it alike, because otherwise a
    rank may wait for one that has refused."""
    try:
        return run()
    except LoopStopped as stopped:
        raise Cancelled from stopped
    except Exception as error:
        if isinstance(error, RequestError) and refuses_alike:
            raise
        raise ModelFailed(error) from error
