"""Latte (https://arxiv.org/abs/2401.03048), whose blocks attend within a frame and through the frames in turn: only
rows of the batch can be shared."""

from .adapter import register_adapter, usual_spec

register_adapter(
    usual_spec(
        "LatteTransformer3DModel",
        head=None,
        image="",
        unshared="its blocks attend within a frame and through the frames in turn",
    )
)
