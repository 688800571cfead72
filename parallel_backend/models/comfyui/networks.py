"""Networks that ComfyUI's nodes run inside of a model: DiffSynth, Z-Image-Fun, Uni3C, InfiniteTalk, LLLite.

What they return is added to the model's tokens. So it stays on the rank that has these tokens, where they are the same.
"""

from ..spec import BlockList, comfyui_spec, register


def register_network(model_class: str, *blocks: BlockList, starts: str = "", **others: str) -> None:
    """starts: the model's stream whose first tokens are those of the stream "control"."""
    began = {"control": starts} if starts else {}
    beside = "it runs inside of the model, which has the stages"
    register(comfyui_spec(model_class, *blocks, inside=True, starts=began, unstaged=beside, **others))


register_network(
    "comfy_extras.nodes_model_patch.QwenImageBlockWiseControlNet",
    BlockList("controlnet_blocks", tokens={"x": "control", "y": "control"}, returns="control"),
    starts="img",
)


def z_image(path: str) -> BlockList:
    """Blocks that refine the hint alone, or that take the image's tokens "x" beside the hint's "c"."""
    return BlockList(
        path,
        tokens={"c": "control", "x": "control"},
        returns="control",
        optional=("c",),
        attention={"attention": "control"},
        sides={"freqs_cis": (1, "control")},
        whole=("x_mask", "adaln_input"),
        refused=("timestep_zero_index",),
    )


register_network(
    "comfy.ldm.lumina.controlnet.ZImage_Control",
    z_image("control_noise_refiner"),
    z_image("control_layers"),
    starts="img",
    heads="control_layers.0.attention.n_local_heads",
    head_dim="control_layers.0.attention.head_dim",
    kv_heads="control_layers.0.attention.n_local_kv_heads",
)
# Its tokens may begin behind those of a reference. They are gathered where they are narrow, before `proj_out`.
register_network(
    "comfy.ldm.wan.uni3c.WanUni3CControlnet",
    BlockList(
        "controlnet_blocks",
        tokens={"x": "control"},
        returns="control",
        attention={"self_attn": "control"},
        sides={"freqs": (1, "control")},
        whole=("temb",),
        gathered=True,
    ),
    heads="controlnet_blocks.0.self_attn.num_heads",
    head_dim="controlnet_blocks.0.self_attn.head_dim",
)
# Each frame's tokens attend to that frame's audio. So each rank computes this for tokens of full length.
register_network(
    "comfy_extras.nodes_model_patch.MultiTalkModelPatch",
    BlockList(
        "blocks.*.audio_cross_attn",
        tokens={},
        returns=None,
        full_length={"": {"x": "x"}},
        whole=("x", "encoder_hidden_states", "shape", "x_ref_attn_map"),
    ),
)
# It runs within the model's blocks, on this rank's tokens. The hint has all tokens.
register_network(
    "comfy.ldm.anima.lllite.AnimaLLLite",
    BlockList("lllite_dit_blocks_*", tokens={}, returns=None, sides={"cond_emb": (1, "x")}, whole=("x", "strength")),
)
