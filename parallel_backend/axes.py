"""The axes of a plan, and what each splits.

docs/dev/09-recipes.md has the steps for a new axis. This module imports no torch.
"""

from __future__ import annotations

# Each axis with its description for the person who sets its degree. Outermost first: the order of the mesh.
AXES = {
    "dp": "Groups that share the batch by images.",
    "cfg": "Groups that share the batch: with 2, cond and uncond of guidance run side by side.",
    "pipefusion": "Stages that hold a part of the blocks each. Changes the image a little.",
    "ring": "Ranks that share one image's tokens; keys and values travel round. Any degree works.",
    "ulysses": "Ranks that share one image's tokens; any number up to the model's attention heads.",
}
# What the axes split: the batch, the blocks, the tokens. This also says which ranks have a forward's prediction. If the
# batch is split, each rank has that of its own rows; if the blocks are, the last stage; if the tokens are, every rank.
BATCH_AXES, STAGE_AXES, TOKEN_AXES = ("dp", "cfg"), ("pipefusion",), ("ring", "ulysses")
# The axes along which ranks compute with the same weights: stages share out the weights.
REPLICA_AXES = (*BATCH_AXES, *TOKEN_AXES)
# The axes along which ranks work on the same pictures.
PICTURE_AXES = tuple(axis for axis in AXES if axis != "dp")
# By its name on the mesh, the axes that an axis stands for: joint axes for several, the others for themselves.
JOINT_AXES = {"batch": BATCH_AXES, "sequence": TOKEN_AXES}
MESH_AXES: dict[str, tuple[str, ...]] = {axis: (axis,) for axis in AXES} | JOINT_AXES
