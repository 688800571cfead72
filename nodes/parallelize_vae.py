"""The node `Parallelize VAE`. It makes the ranks share the work of a VAE that any node has made."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import comfy.sd
import torch
from comfy_api.latest import io
from comfy_execution.utils import get_executing_context

from ..parallel_backend.plan import AUTO
from ..parallel_backend.weights.loading import DTYPES
from ..worker.errors import NoWorkerGroup, RequestRefused
from .errors import Refused
from .inside.networks import SHARED
from .model.sampling import explain_stock, show_on_node
from .parallel_plan import group_input
from .remote_vae import check_vae, remote_vae
from .workers.group import check_installed, device_count, worker_group

STOCK = "The VAE runs as stock, on ComfyUI's own device alone."


class ParallelizeVAE(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        dtype = io.Combo.Input(
            "dtype",
            options=[AUTO, *DTYPES],
            default=AUTO,
            optional=True,
            tooltip="The dtype that the VAE computes in on the ranks. auto: ComfyUI's choice for its own device.",
        )
        group = group_input()
        group.tooltip = "The worker group whose ranks share the VAE's work."
        dtype.advanced = group.advanced = True
        return io.Schema(
            node_id="ParallelDiT_ParallelizeVAE",
            display_name="Parallelize VAE",
            category="ParallelDiT",
            description="Makes all GPUs share what a VAE decodes and encodes: each has a band of the rows. It stands "
            "behind any loader. Bypassed, the workflow is stock.",
            search_aliases=["ParallelDiT", "multi gpu", "parallel", "vae", "xdit"],
            inputs=[
                io.Vae.Input("vae", tooltip="From Load VAE, a checkpoint loader, or any other node."),
                dtype,
                group,
            ],
            outputs=[io.Vae.Output(tooltip="For all that takes a VAE: VAE Decode, VAE Encode, upscalers and others.")],
        )

    @classmethod
    def execute(cls, vae: Any, dtype: str = AUTO, group: int = 1) -> io.NodeOutput:
        return io.NodeOutput(parallelize_vae(vae, DTYPES.get(dtype), group))


def parallelize_vae(vae: Any, dtype: torch.dtype | None, group: int) -> Any:
    """Returns a VAE whose work the ranks share. It is the given one if they cannot, and the node says why. dtype: None
    for the VAE's own. Raises Refused if the settings ask for an error instead."""
    check_installed()
    try:
        check_vae(vae)
    except Refused as error:
        explain_stock(error, group, STOCK)
        return vae
    if isinstance(vae, SharedVAE):
        show_on_node("The dtype and group of this node replace those of the node before it.")
    shared = SharedVAE.__new__(SharedVAE)
    vars(shared).update({**vars(vae), SHARED: Sharing(group, dtype, set())})
    return shared


class Sharing(NamedTuple):
    """How ranks share a VAE. group: their number. dtype: see `parallelize_vae`. said: what was said, on which
    node in which prompt, under which setting."""

    group: int
    dtype: torch.dtype | None
    said: set[Any]

    def run(self, vae: comfy.sd.VAE, name: str, args: Any, kwargs: Any) -> torch.Tensor:
        """Calls ComfyUI's method of this name. What the ranks cannot share, it computes on ComfyUI's device. Raises
        WorkerGroupError."""
        method, group = getattr(comfy.sd.VAE, name), worker_group(self.group)
        try:
            found = remote_vae(vae, group, group.ranks or device_count(), self.dtype, name)
            return method(found, *args, **kwargs)
        except (NoWorkerGroup, Refused, RequestRefused) as error:
            self.explain(error, vae.vae_dtype)
        return method(vae, *args, **kwargs)

    def explain(self, error: NoWorkerGroup | Refused | RequestRefused, dtype: torch.dtype) -> None:
        """Says once on the node that runs why the VAE runs as stock. dtype: that it then computes in. Raises the error
        if the settings ask for one."""
        place = (get_executing_context(), str(error), worker_group(self.group).settings.when_not_parallel)
        if place in self.said:
            return
        said = STOCK if self.dtype in (None, dtype) else f"{STOCK} It computes in {dtype}, not in {self.dtype}."
        explain_stock(error, self.group, said)
        self.said.add(place)


def share(name: str) -> Callable[..., torch.Tensor]:
    """Returns a method that the ranks share, with the signature of ComfyUI's."""

    @functools.wraps(getattr(comfy.sd.VAE, name))
    def method(vae: SharedVAE, *args: Any, **kwargs: Any) -> torch.Tensor:
        return getattr(vae, SHARED).run(vae, name, args, kwargs)

    return method


class SharedVAE(comfy.sd.VAE):
    """ComfyUI's VAE, but the ranks share what it decodes and encodes. All else is as it was: nodes may read its model,
    patch it, copy it, or put it on another device."""

    decode, decode_tiled = share("decode"), share("decode_tiled")
    encode, encode_tiled = share("encode"), share("encode_tiled")
