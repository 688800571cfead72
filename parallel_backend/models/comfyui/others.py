"""Classes of which it is known why they cannot be shared in every way."""

from ..spec import ModelSpec, register

register(
    ModelSpec(
        "comfy.ldm.modules.diffusionmodules.openaimodel.UNetModel",
        coupled="they are the frames of one video",
        coupled_where="use_temporal_resblocks",
        unshared="it convolves over the image",
    )
)
register(
    ModelSpec(
        "comfy.ldm.seedvr.model.NaDiT",
        coupled="it exchanges the halves of the batch",
        unshared="it attends within windows, whose tokens lie elsewhere in every second block",
    )
)
register(
    ModelSpec(
        "comfy.ldm.hidream_o1.model.HiDreamO1Transformer",
        unshared="it keeps the keys and values of its text from step to step",
    )
)
