"""ConsisID (https://arxiv.org/abs/2411.17440): CogVideoX from an image, with a face that its video keeps."""

from dataclasses import replace

from .adapter import register_adapter, usual_spec
from .cogvideox import BLOCKS

# Between blocks the image's tokens attend to the face, each for itself. So they stay local there, too.
register_adapter(
    usual_spec("ConsisIDTransformer3DModel", replace(BLOCKS, whole=("temb",)), head=None), frames_first=True
)
