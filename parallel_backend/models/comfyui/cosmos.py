"""Cosmos 1, Cosmos Predict 2, and Anima, which is a Cosmos model."""

from ..spec import BlockList, ByFrame, register_class, single_stream

COSMOS = single_stream(
    "blocks",
    "x",
    "blocks.0.block.attn",
    sides={"rope_emb_L_1_1_D": (0, "x")},
    whole=("emb_B_D", "crossattn_emb", "crossattn_mask", "adaln_lora_B_3D"),
    dim=0,
)
register_class("comfy.ldm.cosmos.model.GeneralDIT", COSMOS, unstaged="they are kept by name")

PREDICT_2 = BlockList(
    path="blocks",
    tokens={"x_B_T_H_W_D": "x", "extra_per_block_pos_emb": "x"},
    returns="x",
    attention={"self_attn": "x"},
    sides={
        "rope_emb_L_1_1_D": (1, "x"),
        "emb_B_T_D": ByFrame(3, "x"),
        "adaln_lora_B_T_3D": ByFrame(3, "x"),
    },
    whole=("crossattn_emb",),
)
register_class("comfy.ldm.cosmos.predict2.MiniTrainDIT", PREDICT_2, also=("comfy.ldm.anima.model.Anima",))
