"""One of ComfyUI's own diffusion models without its weights: its class, its names and its sizes are there, on the meta
device, and what it computes is computed by the worker group."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import comfy.model_base
import torch
from comfy.patcher_extension import WrapperExecutor, WrappersMP, get_all_wrappers

from ...parallel_backend.compat import hooks_of
from ...parallel_backend.plan import ParallelPlan
from ...worker.comfyui.patches import packed
from ...worker.comfyui.source import PARTS, HostSource
from ...worker.errors import RequestRefused
from ...worker.host.client import WorkerGroup
from ...worker.wire.operations import PATCH
from ...worker.wire.tensors import UnsendableError
from ...worker.wire.tree import pack
from ..compat import replace_inner_forward
from ..errors import Refused
from .remote_weights import Patches, RemoteWeights, check_interrupt

ATTRIBUTE = "parallel_module"  # of the module that stands there, by which it is known
# Of the options, what other nodes have run in ComfyUI's process by now, or what is of no use elsewhere.
KEPT_HERE = ("wrappers", "callbacks", "uuids", "patches", "patches_replace", "prefetch_dynamic_vbars")
BRANCHES = "cond_or_uncond"  # of the options: of each part of the batch, 0 for cond and 1 for uncond
INSIDE = ("patches", "patches_replace")
# Those that the class writes its own results into, for its next call.
WRITTEN_BY_CLASSES = {"ar_state": "sampling frame by frame (autoregressive)"}
# Of an argument that is a dict, what the class makes anew where it lacks.
MADE_ANEW = {"minimax_payload": ("layout",)}
# Those that ComfyUI's classes read and that may be more than data. What other nodes put there beside is for wrappers of
# their own, which run here.
READ_BY_CLASSES = {
    "optimized_attention_override": "an attention override",
    "model_patch_data": "a model patch's data",
    "x_ref_attn_map": "a map of attention to references",
}


class RemoteModule(RemoteWeights):
    """Sends the calls of a module to the worker group.

    Where the class runs wrappers around `_forward` itself, that is what is replaced, so that they are called as ever.
    """

    def __init__(
        self,
        group: WorkerGroup,
        source: HostSource,
        plan: ParallelPlan,
        module: torch.nn.Module,
        weight_bytes: int,
        note: str = "",
    ) -> None:
        super().__init__(group, source.to_json(), plan, weight_bytes, note)
        self.module = module
        self.signature = inspect.signature(module.forward)
        if not replace_inner_forward(module, self.send):
            module.forward = self.run_wrappers
        for method in PARTS:
            if hasattr(module, method):
                module.__dict__[method] = functools.partial(self.send_part, method)
        module.__dict__[ATTRIBUTE] = self
        self.own = dict(vars(module))

    def run_wrappers(self, *args: Any, **kwargs: Any) -> Any:
        """The call of a class that has no place for a call of ours inside of the wrappers."""
        options = self.named(args, kwargs).get("transformer_options") or {}
        wrappers = get_all_wrappers(WrappersMP.DIFFUSION_MODEL, options)
        return WrapperExecutor.new_class_executor(self.send, self.module, wrappers).execute(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> Any:
        """One call of the model in the ranks: what it returns, where its latents are.

        Raises Refused for what would have to run inside of it, and for what cannot be sent.
        """
        values = self.named(args, kwargs)
        latents, timestep = (values.pop(name) for name in list(self.signature.parameters)[:2])
        values["transformer_options"] = sendable(values.get("transformer_options") or {})
        like = latents[0] if isinstance(latents, (list, tuple)) else latents
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                raise Refused(
                    f"The {name} of this model is computed in ComfyUI with its weights, which are in worker processes.",
                    "Use the stock loader.",
                )
        for name, parts in MADE_ANEW.items():
            if isinstance(whole := values.get(name), dict):
                values[name] = {part: value for part, value in whole.items() if part not in parts}
        given = {name: value for name, value in values.items() if value is not None}
        if self.recording:
            if isinstance(latents, (list, tuple)):
                raise Refused(
                    "The Parallel Sampler takes no latent of several parts, such as video with sound.",
                    "Use a stock KSampler for it, with a plan without PipeFusion.",
                )
            return self.recording.note(latents, timestep, given, values["transformer_options"][BRANCHES])
        with self.group.turn(check_interrupt):
            self.load()
            parts = [part.to(like) for part in self.group.call([latents, timestep], given, check_interrupt)]
        return parts if isinstance(latents, (list, tuple)) else parts[0]

    def send_part(self, method: str, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Another method of the module, which computes with its weights, in the ranks."""
        with self.group.turn(check_interrupt):
            self.load()
            return self.group.part(method, args, kwargs, check_interrupt).to(args[0].device)

    def named(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name."""
        values = dict(self.signature.bind(*args, **kwargs).arguments)
        rest = next((p.name for p in self.signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")
        more = values.pop(rest, {})
        return {**values, **more}

    def adapt(self, key: str | None, patches: Patches) -> None:
        def build() -> tuple[list, dict]:
            try:
                found, tensors = packed(patches)
            except UnsendableError as error:
                raise RequestRefused(*error.explanation) from error
            return [patch.to_json() for patch in found], tensors

        self.group.adapt(key, build, check_interrupt, PATCH)

    def check_untouched(self) -> None:
        """Raises Refused for what a node has put on the module, which would be without effect."""
        found = [name for name, value in vars(self.module).items() if self.own.get(name, value) is not value]
        found += [name for name, value in vars(self.module).items() if name not in self.own and callable(value)]
        hooked = [name or "the model" for name, part in self.module.named_modules() if any(hooks_of(part))]
        if found or hooked:
            raise Refused(
                f"The parallel model cannot honour a change of its {', '.join([*found, *hooked][:3])}: its inside runs "
                "in worker processes.",
                "Remove that node, or use the stock loader.",
            )


def sendable(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that are data. Raises Refused for what would run inside of the model, naming it."""
    asked = [f"the model patch {name!r}" for key in INSIDE for name, value in options.get(key, {}).items() if value]
    found = {}
    for name, value in options.items():
        if name in KEPT_HERE:
            continue
        if name in WRITTEN_BY_CLASSES:
            asked.append(WRITTEN_BY_CLASSES[name])
            continue
        try:
            pack(value, name, {})
        except UnsendableError:
            if name in READ_BY_CLASSES:
                asked.append(READ_BY_CLASSES[name])
            continue
        found[name] = value
    if asked:
        raise Refused(
            f"The parallel model cannot honour {', '.join(asked)}: its inside runs in worker processes.",
            "Remove that node, or use the stock loader.",
        )
    return found


def remote_module(model: comfy.model_base.BaseModel) -> RemoteModule | None:
    """What stands behind a model's module, if it is one of these."""
    return vars(model.diffusion_model).get(ATTRIBUTE)
