"""CogView4 (https://github.com/THUDM/CogView4)."""

from dataclasses import replace

from . import cogvideox
from .adapter import Adapter, register_adapter, usual_spec
from .rotary import rotary_on_device

register_adapter(
    Adapter(
        usual_spec("CogView4Transformer2DModel", replace(cogvideox.BLOCKS, refused=("attention_mask",))),
        conditions=("encoder_hidden_states", "original_size", "target_size", "crop_coords"),
        widths={"encoder_hidden_states": "text_embed_dim"},
        prepare=rotary_on_device("rope"),
    )
)
