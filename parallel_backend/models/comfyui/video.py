"""CogVideoX, Mochi, Kandinsky 5."""

from ..spec import BlockList, register_class, single_stream

COGVIDEOX = BlockList(
    path="blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("img", "txt"),
    attention={"": "txt+img"},
    sides={"image_rotary_emb": (0, "img")},
    whole=("temb",),
)
register_class("comfy.ldm.cogvideo.model.CogVideoXTransformer3DModel", COGVIDEOX, image="img")

MOCHI = BlockList(
    path="blocks",
    tokens={"x": "img", "y": "txt"},
    returns=("img", "txt"),
    attention={"attn": "img+txt"},
    sides={"rope_cos": (0, "img"), "rope_sin": (0, "img")},
    # The text's padding is left out. Then the block crops nothing.
    converters={"y": lambda text, values: text[:, : values["crop_y"]]},
    whole=("c", "crop_y"),
)
register_class("comfy.ldm.genmo.joint_model.asymm_models_joint.AsymmDiTJoint", MOCHI, image="img")

KANDINSKY = single_stream(
    "visual_transformer_blocks",
    "visual_embed",
    "self_attention",
    sides={"freqs": (1, "x")},
    whole=("text_embed", "time_embed"),
)
register_class("comfy.ldm.kandinsky5.model.Kandinsky5", KANDINSKY, image="x")
