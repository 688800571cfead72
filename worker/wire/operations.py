"""The operations that ComfyUI can ask of the ranks, in one table for both sides.

Request checks, silence limits, the out-of-memory report, the status and ComfyUI's side read the table. The work itself
is a handler in `rank/operations.py`; a rank without one does not start. The editor's panel has a name for each
operation; a test compares it with this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .protocol import Header


@dataclass(frozen=True)
class Operation:
    """One row of the table.

    name: the "op" of its requests. doing: what a rank does meanwhile; the words follow "it was".
    fields: the fields of a request's header, with their JSON types. tensors: the tensors of a request.
    latents: the tensor in the shape of the latents. Operations that run the model have one.
    moves_weights: it can block a rank's other threads, so a longer silence of the heartbeat is allowed.
    drops_model: after an early end, no model is loaded.
    without_model: it does not use the loaded model and its plan.
    is_of_plan: only the ranks of the loaded plan run it; other ranks do not.
    """

    name: str
    doing: str
    fields: Mapping[str, type] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()
    latents: str = ""
    moves_weights: bool = False
    drops_model: bool = False
    without_model: bool = False
    is_of_plan: bool = False

    def header(self, **fields: Any) -> Header:
        """Builds the header of a request. Raises TypeError if the fields are not those of the operation."""
        if fields.keys() != self.fields.keys():
            raise TypeError(f"{self.name!r} takes the fields {[*self.fields]}, not {[*fields]}.")
        return {"op": self.name, **fields}


LOAD = Operation("load", "loading a model", {"source": dict, "plan": dict}, moves_weights=True, drops_model=True)
# In the reply to a load, and in the status, in words: which models stay on the devices beside this one.
BESIDE = "beside"
PATCH = Operation(
    "patch",
    "changing the weights",
    {"key": str, "patches": dict, "files": list},
    moves_weights=True,
    drops_model=True,
    is_of_plan=True,
)
# The methods at which a call enters, and which all ranks of the plan run. Any other runs on rank 0 alone.
FORWARD, INNER = ENTRIES = ("forward", "_forward")
CALL = Operation(
    "call",
    "running the model",
    {"method": str, "calls": list, "conditions": dict, "drop": list},
    latents=f"{FORWARD}.0.args.0",
    is_of_plan=True,
)
SAMPLE = Operation(
    "sample",
    "sampling",
    {"call": dict, "passes": list, "conditions": dict, "drop": list},
    ("noise",),
    latents="noise",
    is_of_plan=True,
)
# In the replies to these, if there is anything to say: what functions of nodes changed, packed, see `Decoder.changes`;
# in words, why PipeFusion ran a step whole, and why the ranks do not attend by the kernel that a node chose.
STATE, WHOLE_STEP, NO_KERNEL = "state", "whole_step", "no_kernel"
FORGOTTEN = "another model took a turn, or memory was freed"  # why a sampling that goes on has nothing from before
# The tensors of a VAE request beside its input: the prefix of its weights, and a random state. LACKING is in the reply
# if ComfyUI has to send the weights.
VAE_WEIGHTS, RANDOM, LACKING = "weights.", "random", "lacking"
VAE = Operation(
    "vae",
    "running the VAE",
    {"vae": dict, "direction": str},
    ("input",),
    moves_weights=True,
    without_model=True,
)
PARK = Operation("park", "parking the model", moves_weights=True)
FREED = "freed"  # in the reply to a trim: the bytes of its accelerator that rank 0 gave back
TRIM = Operation("trim", "giving back cached memory")
UNLOAD = Operation("unload", "unloading the model", moves_weights=True)
TRACE = Operation("trace", "gathering the trace")
MEASURED = "measured"  # in the reply: the figures
MEASURE = Operation("measure", "measuring devices and links", {"dtype": str}, without_model=True)

OPERATIONS: Mapping[str, Operation] = {
    each.name: each for each in (LOAD, PATCH, CALL, SAMPLE, VAE, PARK, TRIM, UNLOAD, TRACE, MEASURE)
}


def operation_of(header: Header) -> Operation:
    """Returns the operation of a request. For an unknown one, returns a row that has only its name."""
    name = header.get("op")
    known = OPERATIONS.get(name) if isinstance(name, str) else None
    return known or Operation(str(name), "reading a request")
