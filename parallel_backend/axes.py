"""The axes of a plan, and what each splits.

A new axis needs a row in AXES, its degree in `ParallelPlan`, and the code for its split. This module imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

# What can be split. This also says which ranks have a forward's prediction. If the batch is split, each rank has that
# of its own rows; if the blocks are, the last stage; if the tokens are, every rank. Stages also share out the weights.
BATCH, BLOCKS, TOKENS = "batch", "blocks", "tokens"


@dataclass(frozen=True)
class PlanAxis:
    """The facts of one axis. words: its description for the person who sets its degree."""

    name: str
    splits: str
    words: str


# Outermost first: the order of the mesh.
AXES = (
    PlanAxis("dp", BATCH, "Groups that share the batch by images."),
    PlanAxis("cfg", BATCH, "Groups that share the batch: with 2, cond and uncond of guidance run side by side."),
    PlanAxis("pipefusion", BLOCKS, "Stages that hold a part of the blocks each. Changes the image a little."),
    PlanAxis("ring", TOKENS, "Ranks that share one image's tokens; keys and values travel round. Any degree works."),
    PlanAxis("ulysses", TOKENS, "Ranks that share one image's tokens; any number up to the model's attention heads."),
)
BY_NAME = {axis.name: axis for axis in AXES}


def axes_of(splits: str) -> tuple[str, ...]:
    """Returns the axes that split this, outermost first."""
    return tuple(axis.name for axis in AXES if axis.splits == splits)


TOKEN_AXES = axes_of(TOKENS)
BATCH_AXES = axes_of(BATCH)
STAGE_AXES = axes_of(BLOCKS)
# The axes along which ranks compute with the same weights.
REPLICA_AXES = tuple(axis.name for axis in AXES if axis.name not in STAGE_AXES)
# The axes along which ranks work on the same pictures.
PICTURE_AXES = tuple(axis.name for axis in AXES if axis.name != "dp")
# Joint axes: each stands for several axes, by its joint name on the mesh.
JOINT_AXES = {"batch": BATCH_AXES, "sequence": TOKEN_AXES}
