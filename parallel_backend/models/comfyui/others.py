"""Classes that cannot be shared in every way, with the reasons; and our own DiT class."""

from ..spec import BlockList, register_class, single_stream

register_class(
    "comfy.ldm.seedvr.model.NaDiT",
    coupled="it exchanges the halves of the batch",
    unshared="it attends within windows, whose tokens lie elsewhere in every second block",
)

# The two stages of Stable Cascade that denoise.
for stage in ("stage_b.StageB", "stage_c.StageC"):
    register_class(f"comfy.ldm.cascade.{stage}", unshared="its norms and its conditions are of all rows")

# The class-conditional DiT of `worker/comfyui/dit/`, which ComfyUI lacks.
register_class(
    "paralleldit.DiT",
    single_stream(
        "transformer_blocks",
        "x",
        "",
        whole=("timestep_B", "label_B"),
    ),
    head=BlockList("proj_out_2", tokens={"0": "x"}, returns="x"),
    image="x",
    shared=("transformer_blocks.0.norm1.emb",),
)
