"""Networks that ComfyUI's nodes run inside of a model: DiffSynth, Z-Image-Fun, Uni3C, InfiniteTalk, LLLite.

What they return is added to the model's tokens. So it stays on the rank that has these tokens, where they are the same.
"""

from ..spec import GATHERED, BlockList, register_class

register_class(
    "comfy_extras.nodes_model_patch.QwenImageBlockWiseControlNet",
    BlockList("controlnet_blocks", tokens={"x": "control", "y": "control"}, returns="control"),
    inside={"control": "img"},
)


def z_image(path: str) -> BlockList:
    """Blocks that refine the hint alone, or that take the image's tokens "x" beside the hint's "c"."""
    return BlockList(
        path,
        tokens={"c": "control", "x": "control"},
        returns="control",
        attention={"attention": "control"},
        sides={"freqs_cis": (1, "control")},
        whole=("x_mask", "adaln_input"),
        refused=("timestep_zero_index",),
    )


register_class(
    "comfy.ldm.lumina.controlnet.ZImage_Control",
    z_image("control_noise_refiner"),
    z_image("control_layers"),
    inside={"control": "img"},
)
# Its tokens may begin behind those of a reference. They are gathered where they are narrow, before `proj_out`.
register_class(
    "comfy.ldm.wan.uni3c.WanUni3CControlnet",
    BlockList(
        "controlnet_blocks",
        tokens={"x": "control"},
        returns="control",
        attention={"self_attn": "control"},
        sides={"freqs": (1, "control")},
        whole=("temb",),
        between=GATHERED,
    ),
    inside={},
)
# Each frame's tokens attend to that frame's audio. So each rank computes this for tokens of full length.
register_class(
    "comfy_extras.nodes_model_patch.MultiTalkModelPatch",
    BlockList(
        "blocks.*.audio_cross_attn",
        tokens={},
        returns=None,
        full_length={"": {"x": "x"}},
        whole=("x", "encoder_hidden_states", "shape", "x_ref_attn_map"),
    ),
    inside={},
)
# It runs within the model's blocks, on this rank's tokens. The hint has all tokens.
register_class(
    "comfy.ldm.anima.lllite.AnimaLLLite",
    BlockList("lllite_dit_blocks_*", tokens={}, returns=None, sides={"cond_emb": (1, "x")}, whole=("x", "strength")),
    inside={},
)
