"""Models whose image and text attend together: HiDream I1 and O1, Lens, JoyImage, PixelDiT and PiD."""

from ..spec import BlockList, Kept, register_class, single_stream

# Every block adds some text of its own, and drops it again.
HIDREAM = (
    BlockList(
        path="double_stream_blocks",
        tokens={"image_tokens": "img", "text_tokens": "txt"},
        returns=("img", "txt"),
        attention={"block.attn1": "img+txt"},
        sides={"rope": (1, "img+txt")},
        whole=("adaln_input",),
        refused=("image_tokens_masks",),
    ),
    single_stream(
        "single_stream_blocks",
        "image_tokens",
        "block.attn1",
        stream="img+txt",
        sides={"rope": (1, "img+txt")},
        whole=("adaln_input",),
        refused=("image_tokens_masks", "text_tokens"),
    ),
)
register_class("comfy.ldm.hidream.model.HiDreamImageTransformer2DModel", *HIDREAM, image="img")

# Text attends to itself alone, so its keys are the same in all steps. The first step computes them, with all tokens.
HIDREAM_O1 = BlockList(
    path="language_model.layers",
    tokens={"x": "img"},
    returns=("img", None),
    attention={"self_attn": "img"},
    sides={"freqs_cis": (1, "img"), "past_key_value": Kept("clear_kv_cache", "img")},
    whole=("optimized_attention",),
    refused=("attention_mask",),
)
register_class(
    "comfy.ldm.hidream_o1.model.HiDreamO1Transformer",
    HIDREAM_O1,
    unsplit=("ref_pixel_values", "ref_image_grid_thw", "position_ids"),
    unstaged="it keeps the keys and values of its text from step to step",
)

LENS = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("txt", "img"),
    attention={"attn": "img+txt"},
    sides={"freqs_cis": (2, "img+txt"), "attention_mask": (3, "img+txt")},
    local_masks={"attn": ""},
    whole=("temb",),
)
register_class("comfy.ldm.lens.model.LensTransformer2DModel", LENS)

JOYIMAGE = BlockList(
    path="double_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("img", "txt"),
    attention={"attn": "img+txt"},
    sides={"image_rotary_emb": (1, "img")},
    whole=("temb",),
)
register_class("comfy.ldm.joyimage.model.JoyImageTransformer3DModel", JOYIMAGE, image="img")

# Its pixel blocks run after these, whole on every rank.
PIXELDIT = BlockList(
    path="patch_blocks",
    tokens={"x": "img", "y": "txt"},
    returns=("img", "txt"),
    attention={"attn": "txt+img"},
    sides={"pos_img": (0, "img"), "pos_txt": (0, "txt")},
    whole=("c", "attn_mask"),
)
register_class("comfy.ldm.pixeldit.model.PixDiT_T2I", PIXELDIT, also=("comfy.ldm.pixeldit.pid.PidNet",))
