"""Audio models: Stable Audio and ACE-Step; and MiniMax H3, which makes video with it."""

from ..spec import Last, Places, register_class, single_stream

STABLE_AUDIO = single_stream(
    "transformer.layers",
    "x",
    "self_attn",
    sides={"rotary_pos_emb": (0, "x"), "local_add_cond": Last(1, "x")},
    whole=("context", "global_cond", "context_mask"),
    refused=("mask",),
)
register_class("comfy.ldm.audio.dit.AudioDiffusionTransformer", STABLE_AUDIO)

ACE_STEP = single_stream(
    "decoder.layers",
    "hidden_states",
    "self_attn",
    sides={"position_embeddings": (0, "x")},
    local_masks={"self_attn": "sliding_window"},
    whole=("temb", "encoder_hidden_states", "encoder_attention_mask"),
    refused=("attention_mask",),
)
register_class(
    "comfy.ldm.ace.ace_step15.AceStepConditionGenerationModel",
    ACE_STEP,
    coupled="it gives the sound of every row's reference to the first",
)
register_class(
    "comfy.ldm.ace.model.ACEStepTransformer2DModel",
    unshared="its attention is linear, and it convolves along its tokens",
)

MINIMAX = single_stream(
    "blocks", "x", "attn", sides={"rope_freqs": (1, "x"), "mod_segments": Places("x")}, whole=("t_emb",), dim=0
)
register_class("comfy.ldm.minimax.model.MiniMaxH3Model", MINIMAX)
