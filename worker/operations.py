"""What a rank can be asked: load a model, add to its weights, run a forward or a whole sampler call, run a VAE, park or
unload what it holds, tell what it did.

Every rank executes all.
"""

from __future__ import annotations

import gc
import logging
import os
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from parallel_backend.adapters import Addition
from parallel_backend.denoiser import Denoiser, Stopped
from parallel_backend.errors import RequestError, is_out_of_memory
from parallel_backend.loading import ModelSource
from parallel_backend.parking import Parking
from parallel_backend.plan import ParallelPlan
from parallel_backend.timeline import Timeline
from parallel_backend.transformer import ParallelTransformer
from parallel_backend.vae import ParallelVAE
from parallel_backend.vae_files import load_vae

from .agreement import BROKEN, CANCELLED, DONE, MEMORY, REFUSED, Ended, Outcome, agree
from .errors import unforeseen
from .job_groups import GroupsError, JobGroups
from .memory import Room, asked
from .protocol import Header
from .pulse import SETTLE_SECONDS, Pulse
from .release import release_memory
from .request_checks import check_request
from .sampler_call import SAMPLER_TENSORS, SamplerCall
from .sampling import first_latents, inpainting_of, stepper_of
from .shortage import Shortage, latents_of, plan_of
from .tensors import Tensors
from .torchrun import machine_prefix
from .trace import gather_trace
from .watch import Emit, JobWatch

Result = TypeVar("Result")


class Cancelled(Exception):
    """The request was given up by ComfyUI, and ended early."""


class Operations:
    """The state of one rank between requests: the model, the VAE, and the conditioning sent so far."""

    def __init__(
        self,
        device: torch.device,
        control_group: dist.ProcessGroup,
        groups: JobGroups,
        pulse: Pulse,
        timeline: Timeline,
        emit: Emit,
    ) -> None:
        """control_group: over which nothing goes but what holds the ranks together. groups: for all else.

        emit: sends an event of the running request to ComfyUI; called on rank 0 alone.
        """
        self.device = device
        self.control_group = control_group
        self.groups = groups
        self.pulse = pulse
        self.timeline = timeline
        self.transformer: ParallelTransformer | None = None
        self.conditions: Tensors = {}
        self.emit = emit
        self.request: Header = {}
        self.latents: torch.Size | None = None  # the shape of the request's, which has given them away by its end
        self.running: str | None = None
        self.job = 0
        self.step: tuple[int, int] | None = None  # of how many, in a sampler call
        self.vae: tuple[tuple[str, str], ParallelVAE] | None = None
        self.operations = {
            "load": self.load,
            "adapt": self.adapt,
            "forward": self.forward,
            "sample": self.sample,
            "vae": self.run_vae,
            "park": self.park,
            "unload": self.unload,
            "trace": self.trace,
        }
        self.counts = dict.fromkeys(self.operations, 0)
        self.seconds = dict.fromkeys(self.operations, 0.0)
        self.loaded: dict[str, Any] = {}
        pids = [torch.empty(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(pids, torch.tensor([os.getpid()]), group=control_group)
        self.pids = [int(pid) for pid in pids]

    def execute(self, header: Header, tensors: Tensors) -> tuple[Header, Tensors | None]:
        """Runs one request: the reply's fields, and rank 0's tensors. All ranks agree on how it ended.

        Raises what the group cannot survive.
        """
        self.request, self.latents = header, latents_of(tensors)
        self.running = str(header.get("op"))
        self.job = self.groups.job = header["id"] if type(header.get("id")) is int else 0
        started = time.perf_counter()
        with self.timeline.request(self.running):
            results, outcome = self.attempt(lambda: self.operation(header, tensors)(header, tensors))
        if outcome.kind == DONE:
            self.counts[self.running] += 1
            self.seconds[self.running] += time.perf_counter() - started
        else:
            self.undo(outcome)
        self.running = self.step = None
        self.pulse.ended = self.job
        if outcome.kind != DONE:
            return outcome.reply(), None
        return {**outcome.reply(), **self.timing(header)}, results

    def timing(self, header: Header) -> Header:
        """Of a forward, what events tell of the steps of a loop: its seconds, and those of its communication."""
        if header["op"] != "forward":
            return {}
        lengths, waits = zip(*self.timeline.steps, strict=True)
        return {"seconds": sum(lengths) / 1e9, "communication": sum(waits) / 1e9}

    def operation(self, header: Header, tensors: Tensors) -> Callable[[Header, Tensors], Tensors | None]:
        """What was asked for. Raises RequestError for what cannot be."""
        check_request(header, tensors)
        if header["op"] not in self.operations:
            raise RequestError(f"The worker group knows no operation {header['op']!r}; restart ComfyUI.")
        return self.operations[header["op"]]

    def attempt(self, action: Callable[[], Result]) -> tuple[Result | None, Outcome]:
        """Runs what may fail on one rank alone: this rank's result, and how it ended for all ranks."""
        result, own = None, Outcome()
        try:
            result = action()
        except Ended as ended:
            return None, ended.outcome
        except Exception as error:
            own = self.judge(error)
        return result, agree(own, self.control_group)

    def together(self, action: Callable[[], Result]) -> Result:
        """Runs what may fail on one rank alone, before collectives follow. Raises Ended on all if it fails on any."""
        result, outcome = self.attempt(action)
        if outcome.kind != DONE:
            raise Ended(outcome)
        return result

    def alone(self, action: Callable[[], Result]) -> Result:
        """Runs what has no collectives, in which nobody waits for this rank: whatever fails there can be refused."""
        try:
            return action()
        except (RequestError, Cancelled):
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            logging.exception("%s failed", self.running)
            raise RequestError(str(unforeseen(error, dist.get_rank()))) from error

    def judge(self, error: Exception) -> Outcome:
        """How the request ended on this rank. Raises the error again if it is none that the group survives."""
        if isinstance(error, Cancelled):
            return Outcome(CANCELLED)
        if isinstance(error, RequestError):
            return Outcome(REFUSED, f"{machine_prefix()}{error}")
        if isinstance(error, GroupsError) or not self.groups.can_be_cut:
            raise error
        if not is_out_of_memory(error):
            if not self.pulse.is_broken(self.job):
                raise error
            self.cut()  # the rank that broke off is missing here, and this one may be missed elsewhere
            return Outcome(BROKEN)
        full = Room.now(self.device)
        self.pulse.break_off(self.job)
        self.cut()
        logging.error("out of memory", exc_info=error)
        traceback.clear_frames(error.__traceback__)  # they hold what the request had got so far
        gc.collect()
        model = plan_of(self.request, self.latents, self.transformer)
        empty = Room.now(self.device)
        short = Shortage(dist.get_rank(), self.running, asked(error), full, empty, **model)
        return Outcome(MEMORY, str(short))

    def cut(self) -> None:
        """Ends the job's communication, once what was on its way has arrived."""
        time.sleep(SETTLE_SECONDS)
        self.groups.cut(self.job)

    def status(self) -> dict[str, Any]:
        """What the control channel reports; read from another thread while a job runs."""
        held = [part.parking for part in (self.transformer, self.vae and self.vae[1]) if part]
        parked = bool(held) and all(parking.is_parked for parking in held)
        return {
            "state": "busy" if self.running else "parked" if parked else "ready",
            "operation": self.running,
            "step": self.step,
            "device": self.device.type,
            "pids": self.pids,
            "counts": dict(self.counts),
            "seconds": dict(self.seconds),
            "last_run": self.timeline.last_run,
            **self.pulse.status(),
            **self.loaded,
        }

    def cancel(self, job: int) -> None:
        """Ends that job at its next step or tensor, if it still runs then; called from another thread, on rank 0."""
        self.pulse.cancel(job)

    def check(self) -> None:
        """Raises Cancelled if ComfyUI has given up the running job; not at the same moment on all ranks."""
        if self.pulse.cancelled == self.job:
            raise Cancelled

    def load(self, header: Header, _tensors: Tensors) -> None:
        """Replaces the model and the plan. If that fails, no model is loaded."""
        source = ModelSource.from_json(header["source"])
        plan = ParallelPlan.from_json(header["plan"])
        if plan.world_size != dist.get_world_size():
            raise RequestError(
                f"The plan {plan} is not for the group's {dist.get_world_size()} ranks; restart ComfyUI."
            )
        self.drop_model()
        # All groups are built here, before one rank alone can lack memory for something: building waits for all ranks.
        mesh, _ = self.groups.mesh_of(plan), self.groups.whole()
        self.transformer = self.alone(lambda: ParallelTransformer.load(source, mesh, self.check))
        self.loaded = {"model": source.model_class, "files": list(source.files), "plan": plan.to_json()}
        logging.info("loaded %s (%s) under %s", source.model_class, source.dtype, plan)

    def adapt(self, header: Header, tensors: Tensors) -> None:
        """Gives the weights these additions in place of those that they had. If that fails, no model is loaded."""
        transformer = self.loaded_transformer()
        additions = [Addition.from_json(fields) for fields in header["additions"]]
        self.alone(lambda: transformer.adapt(additions, tensors, self.check))
        logging.info("the weights have %d additions", len(additions))

    def forward(self, header: Header, tensors: Tensors) -> Tensors | None:
        """One forward of the loaded model; conditions are named by key, those not sent before come along."""
        transformer = self.loaded_transformer()
        latents, timestep_B = tensors.pop("latents"), tensors.pop("timestep")
        (conditions,) = self.take_conditions(header, tensors, "conditions")
        prediction = transformer(latents, timestep_B, conditions)
        return None if prediction is None else {"prediction": prediction.cpu()}

    def sample(self, header: Header, tensors: Tensors) -> Tensors | None:
        """A whole sampler call, see `SamplerCall`. Raises Cancelled where ComfyUI has given it up."""
        transformer = self.loaded_transformer()
        own = {name: tensors.pop(name) for name in SAMPLER_TENSORS if name in tensors}
        conditions, negative = self.take_conditions(header, tensors, "conditions", "negative")
        call = SamplerCall.from_json(header["call"])
        stepper = stepper_of(call, own["noise"], transformer)
        watch = JobWatch(
            self.groups.whole().group,
            self.timeline,
            len(stepper),
            call.previews,
            lambda: self.pulse.cancelled == self.job,
            self.tell,
        )
        try:
            latents = Denoiser(transformer).sample(
                first_latents(call, stepper, own),
                stepper,
                conditions,
                negative or None,
                call.guidance,
                inpainting=inpainting_of(own),
                watch=watch,
                to_first=True,
            )
        except Stopped as stopped:
            watch.close()
            raise Cancelled from stopped
        watch.close()
        return {"latents": latents.cpu()} if dist.get_rank() == 0 else None

    def run_vae(self, header: Header, tensors: Tensors) -> Tensors | None:
        """Decodes latents or encodes images by the VAE in a file, which stays loaded until another is asked for."""
        wanted = (header["path"], header["dtype"])
        if self.vae is None or self.vae[0] != wanted:
            self.vae = None
            model = self.together(lambda: self.alone(lambda: load_vae(*wanted, self.check).to(self.device)))
            self.vae = (wanted, ParallelVAE(model, self.groups.whole()))
        self.unpark(self.vae[1].parking)
        run = {"decode": self.vae[1].decode, "encode": self.vae[1].encode}[header["direction"]]
        result = run(tensors["input"])
        return None if result is None else {"result": result.cpu()}

    def park(self, _header: Header, _tensors: Tensors) -> None:
        """Has the weights of model and VAE wait in host memory for their next use. Raises RequestError."""
        if self.transformer:
            self.together(self.transformer.park)
        if self.vae:
            self.together(self.vae[1].parking.take)
        release_memory(self.device)

    def unpark(self, parking: Parking) -> None:
        """Puts parked weights back. Raises Ended where a rank has no room for them; they stay parked then."""
        if not parking.is_parked:
            return

        def restore() -> None:
            try:
                parking.restore()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise RequestError(
                    f"Rank {dist.get_rank()} has no room for the weights that wait in RAM: {error}"
                ) from error

        try:
            self.together(restore)
        except Ended:
            self.together(parking.take)  # on the ranks that had room for them
            raise
        finally:
            release_memory(self.device)

    def unload(self, _header: Header, _tensors: Tensors) -> None:
        """Lets go of model, VAE and conditions, and gives their memory back."""
        self.vae = None
        self.drop_model()

    def trace(self, _header: Header, _tensors: Tensors) -> Tensors | None:
        """What every rank's timeline holds, as a Chrome trace in JSON, byte by byte."""
        trace = gather_trace(self.timeline, self.control_group)
        return None if trace is None else {"trace": trace}

    def tell(self, event: Header, tensors: Tensors) -> None:
        self.step = (event["step"] + 1, event["steps"])
        self.emit({"id": self.job, **event}, tensors)

    def loaded_transformer(self) -> ParallelTransformer:
        if self.transformer is None:
            raise RequestError("No model is loaded in the worker group; queue the prompt again.")
        self.unpark(self.transformer.parking)
        return self.transformer

    def take_conditions(self, header: Header, tensors: Tensors, *names: str) -> list[Tensors]:
        """Keeps the conditions that came along, and returns those that the header names by key."""
        for key in header["drop"]:
            self.conditions.pop(key, None)
        self.conditions.update({key: tensor.clone() for key, tensor in tensors.items()})  # they outlive the frame
        unknown = [key for kind in names for key in header[kind].values() if key not in self.conditions]
        if unknown:
            raise RequestError(f"The worker group does not hold {', '.join(unknown):.100}; load the model again.")
        return [{name: self.conditions[key] for name, key in header[kind].items()} for kind in names]

    def undo(self, outcome: Outcome) -> None:
        """Drops what a request that ended early may have left half done; after a lack of memory, all that there is."""
        if outcome.kind == MEMORY:
            self.vae = None
            self.drop_model()
            self.groups.cut(self.job)
            self.groups.close()
        elif self.running in ("load", "adapt"):
            self.drop_model()

    def drop_model(self) -> None:
        """Gives the model's memory back."""
        self.transformer, self.loaded = None, {}
        self.conditions.clear()
        release_memory(self.device)
