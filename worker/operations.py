"""What a rank can be asked: load a model, add to its weights, run a forward or a whole sampler call, run a VAE.

Every rank executes all.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from parallel_backend.adapters import Addition
from parallel_backend.denoiser import Denoiser, Stopped
from parallel_backend.errors import RequestError
from parallel_backend.loading import ModelSource
from parallel_backend.mesh import Mesh, build_mesh, world_axis
from parallel_backend.plan import ParallelPlan
from parallel_backend.transformer import ParallelTransformer
from parallel_backend.vae import ParallelVAE
from parallel_backend.vae_files import load_vae

from .protocol import Header
from .sampler_call import SAMPLER_TENSORS, SamplerCall
from .sampling import first_latents, inpainting_of, stepper_of
from .tensors import Tensors
from .watch import Emit, JobWatch

Result = TypeVar("Result")


class Cancelled(Exception):
    """The request was given up by ComfyUI, and ended early on every rank alike."""


class Operations:
    """The state of one rank between requests: the mesh, the model, and the conditioning sent so far."""

    def __init__(self, device: torch.device, control_group: dist.ProcessGroup, emit: Emit) -> None:
        """emit: sends an event of the running request to ComfyUI; called on rank 0 alone."""
        self.device = device
        self.control_group = control_group
        self.mesh: Mesh | None = None
        self.transformer: ParallelTransformer | None = None
        self.conditions: Tensors = {}
        self.emit = emit
        self.running: str | None = None
        self.job: int | None = None
        self.cancelled_job: int | None = None
        self.step: tuple[int, int] | None = None  # of how many, in a sampler call
        self.vae: tuple[tuple[str, str], ParallelVAE] | None = None
        self.operations = {
            "load": self.load,
            "adapt": self.adapt,
            "forward": self.forward,
            "sample": self.sample,
            "vae": self.run_vae,
        }
        self.counts = dict.fromkeys(self.operations, 0)
        self.seconds = dict.fromkeys(self.operations, 0.0)
        self.loaded: dict[str, Any] = {}
        pids = [torch.empty(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(pids, torch.tensor([os.getpid()]), group=control_group)
        self.pids = [int(pid) for pid in pids]

    def execute(self, header: Header, tensors: Tensors) -> Tensors | None:
        """Runs one request; the reply's tensors are rank 0's.

        Raises RequestError, on every rank alike, if it cannot be served as asked.
        """
        operation = header.get("op")
        if operation not in self.operations:
            raise RequestError(f"The worker group knows no operation {operation!r}; restart ComfyUI.")
        self.running, self.job = operation, header.get("id")
        started = time.perf_counter()
        try:
            results = self.operations[operation](header, tensors)
        finally:
            self.running = self.step = None
        self.counts[operation] += 1
        self.seconds[operation] += time.perf_counter() - started
        return results

    def status(self) -> dict[str, Any]:
        """What the control channel reports; read from another thread while a job runs."""
        return {
            "state": "busy" if self.running else "ready",
            "operation": self.running,
            "step": self.step,
            "device": self.device.type,
            "pids": self.pids,
            "counts": dict(self.counts),
            "seconds": dict(self.seconds),
            **self.loaded,
        }

    def cancel(self, job: int) -> None:
        """Ends that job at its next step, if it still runs then; called from another thread, on rank 0."""
        self.cancelled_job = job

    def load(self, header: Header, _tensors: Tensors) -> None:
        """Replaces the model and the plan. After a refusal, no model is loaded."""
        source = ModelSource.from_json(header["source"])
        plan = ParallelPlan.from_json(header["plan"])
        self.transformer, self.loaded = None, {}
        self.conditions.clear()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.mesh is None or self.mesh.plan != plan:
            if self.mesh:
                self.mesh.close()
            self.mesh = build_mesh(plan, self.device)
        self.transformer = self.agree(lambda: ParallelTransformer.load(source, self.mesh))
        self.loaded = {"model": source.model_class, "files": list(source.files), "plan": plan.to_json()}
        logging.info("loaded %s (%s) under %s", source.model_class, source.dtype, plan)

    def adapt(self, header: Header, tensors: Tensors) -> None:
        """Gives the weights these additions in place of those that they had. After a refusal, no model is loaded."""
        transformer = self.loaded_transformer()
        additions = [Addition.from_json(fields) for fields in header["additions"]]
        try:
            self.agree(lambda: transformer.adapt(additions, tensors))
        except RequestError:
            self.transformer, self.loaded = None, {}
            raise
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
            self.control_group, len(stepper), call.previews, lambda: self.cancelled_job == self.job, self.tell
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
            raise Cancelled from stopped
        finally:
            watch.close()
        return {"latents": latents.cpu()} if dist.get_rank() == 0 else None

    def run_vae(self, header: Header, tensors: Tensors) -> Tensors | None:
        """Decodes latents or encodes images by the VAE in a file, which stays loaded until another is asked for."""
        wanted = (header["path"], header["dtype"])
        if self.vae is None or self.vae[0] != wanted:
            self.vae = None
            model = self.agree(lambda: load_vae(*wanted).to(self.device))
            self.vae = (wanted, ParallelVAE(model, world_axis()))
        run = {"decode": self.vae[1].decode, "encode": self.vae[1].encode}[header["direction"]]
        result = run(tensors["input"])
        return None if result is None else {"result": result.cpu()}

    def tell(self, event: Header, tensors: Tensors) -> None:
        self.step = (event["step"] + 1, event["steps"])
        self.emit({"id": self.job, **event}, tensors)

    def loaded_transformer(self) -> ParallelTransformer:
        if self.transformer is None:
            raise RequestError("No model is loaded in the worker group; queue the prompt again.")
        return self.transformer

    def take_conditions(self, header: Header, tensors: Tensors, *names: str) -> list[Tensors]:
        """Keeps the conditions that came along, and returns those that the header names by key."""
        for key in header["drop"]:
            self.conditions.pop(key, None)
        self.conditions.update({key: tensor.clone() for key, tensor in tensors.items()})  # they outlive the frame
        return [{name: self.conditions[key] for name, key in header[kind].items()} for kind in names]

    def agree(self, action: Callable[[], Result]) -> Result:
        """Runs what may fail on one rank alone (disk, memory); if any rank fails, every rank raises RequestError.

        The action must run no collectives.
        """
        world, rank = dist.get_world_size(), dist.get_rank()
        result, failure = None, b""
        try:
            result = action()
        except Exception as error:  # whatever it is, the other ranks must hear of it before this one goes on
            if not isinstance(error, RequestError):
                logging.exception("rank %d failed", rank)
            failure = (str(error) if isinstance(error, RequestError) else f"{type(error).__name__}: {error}").encode()
        first = torch.tensor([rank if failure else world])
        dist.all_reduce(first, dist.ReduceOp.MIN, group=self.control_group)
        if int(first) == world:
            return result
        length = torch.tensor([len(failure)])
        dist.broadcast(length, int(first), group=self.control_group)
        text = torch.zeros(int(length), dtype=torch.uint8)
        if rank == int(first):
            text = torch.frombuffer(bytearray(failure), dtype=torch.uint8)
        dist.broadcast(text, int(first), group=self.control_group)
        raise RequestError(bytes(text.tolist()).decode())
