"""The axes of a plan: what each splits, and which ranks have the result. All other code reads these facts here.

A new axis needs a row in AXES, its degree in `ParallelPlan`, and the code for its split. This module imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

# What can be split. Whoever holds fewer blocks holds fewer weights too.
BATCH, BLOCKS, TOKENS = "batch", "blocks", "tokens"
# Which ranks of an axis have a forward's prediction: each rank that of its own rows, the last rank, or every rank.
OWN, LAST, EVERY = "own", "last", "every"


@dataclass(frozen=True)
class PlanAxis:
    """The facts of one axis. words: its description for the person who sets its degree."""

    name: str
    splits: str
    result: str
    words: str


# Outermost first: the order of the mesh.
AXES = (
    PlanAxis("dp", BATCH, OWN, "Groups that share the batch by images."),
    PlanAxis("cfg", BATCH, OWN, "Groups that share the batch: with 2, cond and uncond of guidance run side by side."),
    PlanAxis("pipefusion", BLOCKS, LAST, "Stages that hold a part of the blocks each. Needs the Parallel Sampler."),
    PlanAxis(
        "ring", TOKENS, EVERY, "Ranks that share one image's tokens; keys and values travel round. Any degree works."
    ),
    PlanAxis(
        "ulysses", TOKENS, EVERY, "Ranks that share one image's tokens; any number up to the model's attention heads."
    ),
)
BY_NAME = {axis.name: axis for axis in AXES}


def names_that(**facts: object) -> tuple[str, ...]:
    """Returns the axes with all these facts, outermost first."""
    return tuple(a.name for a in AXES if all(getattr(a, fact) == value for fact, value in facts.items()))


TOKEN_AXES = names_that(splits=TOKENS)
BATCH_AXES = names_that(splits=BATCH)
STAGE_AXES = names_that(splits=BLOCKS)
# The axes along which ranks compute with the same weights.
REPLICA_AXES = tuple(axis.name for axis in AXES if axis.name not in STAGE_AXES)
LAST_AXES = names_that(result=LAST)
EVERY_AXES = names_that(result=EVERY)
# Joint axes: each stands for several axes, by its joint name on the mesh.
JOINT_AXES = {"batch": BATCH_AXES, "sequence": TOKEN_AXES}
