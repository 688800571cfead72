"""CogView4 (https://github.com/THUDM/CogView4)."""

from dataclasses import replace

from . import cogvideox
from .adapter import register_adapter, usual_spec
from .rotary import rotary_on_device

register_adapter(
    usual_spec("CogView4Transformer2DModel", replace(cogvideox.BLOCKS, refused=("attention_mask",))),
    prepare=rotary_on_device("rope"),
)
