"""What the ranks can be asked for: one table of operations, read on both sides of the wire.

The request checks, the limits of silence, the out-of-memory report, the status and ComfyUI's side know an operation
from here alone. What it does is a handler in `rank/operations.py`, without which no rank starts; the editor's panel
names it, which a test ties to this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .protocol import Header


@dataclass(frozen=True)
class Operation:
    """One row.

    name: the "op" of its requests. doing: what a rank does meanwhile, as the words after "it was". fields: that a
    request's header has, with their types in JSON. tensors: that come with it. latents: the one of them in the shape of
    the latents, if one is. moves_weights: it can hold up a rank's other threads, so that a longer silence of the
    heartbeat is borne. drops_model: where it ends early, no model is loaded. brings_model: its request has the source
    and the plan of another model. without_model: the loaded model and its plan have no part in it. is_step: it is one
    step of a sampling, and its reply tells how long that took. is_of_plan: the ranks of the loaded plan alone run it,
    where there are more.
    """

    name: str
    doing: str
    fields: Mapping[str, type] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()
    latents: str = ""
    moves_weights: bool = False
    drops_model: bool = False
    brings_model: bool = False
    without_model: bool = False
    is_step: bool = False
    is_of_plan: bool = False

    def header(self, **fields: Any) -> Header:
        """The header of a request for it. Raises TypeError for other fields than it has."""
        if fields.keys() != self.fields.keys():
            raise TypeError(f"{self.name!r} takes the fields {[*self.fields]}, not {[*fields]}.")
        return {"op": self.name, **fields}


LOAD = Operation(
    "load", "loading a model", {"source": dict, "plan": dict}, moves_weights=True, drops_model=True, brings_model=True
)
ADAPTED = "adapted"  # what comes back where the weights have the additions still that they had
ADAPT = Operation(
    "adapt", "adding to the weights", {"additions": list}, moves_weights=True, drops_model=True, is_of_plan=True
)
PATCH = Operation(
    "patch", "changing the weights", {"patches": list}, moves_weights=True, drops_model=True, is_of_plan=True
)
CALL = Operation(
    "call",
    "running the model",
    {"calls": list, "conditions": dict, "drop": list},
    latents="calls.0.args.0",
    is_step=True,
    is_of_plan=True,
)
PART = Operation("part", "running a part of the model", {"method": str, "args": list, "kwargs": dict}, is_of_plan=True)
FORWARD = Operation(
    "forward",
    "running the model",
    {"conditions": dict, "drop": list, "steps": int},
    ("latents", "timestep"),
    latents="latents",
    is_step=True,
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
# Of a VAE: what comes with a request beside its input: weights, named so, and a random state; and
# what comes back where its weights are to be sent.
WEIGHTS, RANDOM, LACKING = "weights.", "random", "lacking"
VAE = Operation(
    "vae",
    "running the VAE",
    {"vae": dict, "direction": str},
    ("input",),
    moves_weights=True,
    without_model=True,
)
PARK = Operation("park", "parking the model", moves_weights=True)
FREED = "freed"  # what comes back of a trim: how many bytes of its accelerator rank 0 gave back
TRIM = Operation("trim", "giving back cached memory")
UNLOAD = Operation("unload", "unloading the model", moves_weights=True)
TRACE = Operation("trace", "gathering the trace")
MEASURED = "measured"  # what comes back: the figures as JSON, byte by byte
MEASURE = Operation("measure", "measuring devices and links", {"dtype": str}, without_model=True)

OPERATIONS: Mapping[str, Operation] = {
    each.name: each
    for each in (LOAD, ADAPT, PATCH, CALL, PART, FORWARD, SAMPLE, VAE, PARK, TRIM, UNLOAD, TRACE, MEASURE)
}


def operation_of(header: Header) -> Operation:
    """What a request asks for; of one that asks for nothing in the table, a row that knows its name alone."""
    name = header.get("op")
    known = OPERATIONS.get(name) if isinstance(name, str) else None
    return known or Operation(str(name), "reading a request")
