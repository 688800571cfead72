"""Stable Audio, ACE-Step, MiniMax H3; and TripoSplat, whose latents are two as well."""

from __future__ import annotations

import torch

from tests.support.cases.host.base import BATCH, TEXT, HostCase, always, latents, rows, text, with_

STABLE_AUDIO = {
    "io_channels": 16, "embed_dim": 256, "cond_token_dim": 64, "project_cond_tokens": False, "global_cond_dim": 32,
    "depth": 3, "num_heads": 4,
}  # fmt: skip
# Its sound to keep has no entries for the tokens that the model puts before those of the latents.
STABLE_AUDIO_3 = STABLE_AUDIO | {
    "global_cond_type": "adaLN", "global_cond_shared_embed": True, "local_add_cond_dim": 17, "num_memory_tokens": 5,
    "attn_kwargs": {"qk_norm": "rms", "differential": True}, "norm_type": "rms_norm", "timestep_features_type": "expo",
}  # fmt: skip
ACE_STEP = {
    "num_layers": 2, "inner_dim": 64, "attention_head_dim": 16, "num_attention_heads": 4, "speaker_embedding_dim": 16,
    "text_embedding_dim": 24, "ssl_latent_dims": [8, 8], "lyric_encoder_vocab_size": 50, "lyric_hidden_size": 1024,
}  # fmt: skip
ACE_STEP_15 = {
    "in_channels": 48, "hidden_size": 64, "text_hidden_dim": 24, "timbre_hidden_dim": 16,
    "audio_acoustic_hidden_dim": 16, "num_dit_layers": 4, "num_lyric_layers": 1, "num_timbre_layers": 1,
    "num_tokenizer_layers": 1, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "intermediate_size": 96,
    "sliding_window": 8, "fsq_dim": 64, "encoder_hidden_size": 64, "encoder_intermediate_size": 96,
    "encoder_num_heads": 4,
}  # fmt: skip
MINIMAX = {
    "hidden_size": 64, "num_layers": 3, "token_refiner_num_layers": 1, "num_attention_heads": 4,
    "attention_head_dim": 16, "ffn_hidden_size": 96, "latents_dim": 8, "audio_latents_dim": 8, "text_dim": 24,
    "timestep_input_dim": 16, "time_embed_hidden_size": 32, "time_embed_dim": 16, "rope_inv_freq_len": 2,
}  # fmt: skip
TRIPOSPLAT = {
    "q_token_length": 77, "in_channels": 16, "model_channels": 64, "cond_channels": 32, "out_channels": 16,
    "num_blocks": 3, "num_refiner_blocks": 2, "num_head_channels": 16, "cond2_channels": None,
}  # fmt: skip


def shorten_lyrics(model):
    """Leaves the encoder of lyrics two of its six layers."""
    del model.lyric_encoder.encoders[2:]


def minimax(**masks: tuple[int, ...]) -> HostCase:
    """masks: by name, the shapes of those of what is kept."""

    def request(random):
        parts, context = [random(1, 8, 3, 10, 14), random(1, 8, 2, 9)], random(1, TEXT, 24)
        masked = {name: random(*shape).sigmoid() for name, shape in masks.items()}
        return (parts, torch.tensor([700.0])), {"context": context, **masked}

    return HostCase("comfy.ldm.minimax.model.MiniMaxH3Model", MINIMAX, request)


CASES: dict[str, HostCase] = {
    "stable-audio": HostCase(
        "comfy.ldm.audio.dit.AudioDiffusionTransformer",
        STABLE_AUDIO,
        with_(latents(16, 77), text(64, global_embed=rows(32))),
    ),
    "stable-audio-3": HostCase(
        "comfy.ldm.audio.dit.AudioDiffusionTransformer",
        STABLE_AUDIO_3,
        with_(latents(16, 77), text(64, global_embed=rows(32), local_add_cond=rows(17, 77))),
    ),
    "ace-step": HostCase(
        "comfy.ldm.ace.model.ACEStepTransformer2DModel",
        ACE_STEP,
        with_(
            latents(8, 16, 40),
            text(
                24,
                speaker_embeds=rows(16),
                lyric_token_idx=lambda _random: torch.arange(BATCH * 9).reshape(BATCH, 9),
                lyric_mask=always(torch.ones(BATCH, 9)),
            ),
        ),
        shorten=shorten_lyrics,
    ),
    "ace-step-15": HostCase(
        "comfy.ldm.ace.ace_step15.AceStepConditionGenerationModel",
        ACE_STEP_15,
        with_(latents(16, 60), text(24, lyric_embed=rows(9, 24), refer_audio=rows(16, 60))),
    ),
    "minimax-h3": minimax(),
    # Parts of both are kept, each token in a measure of its own; ComfyUI's class reads the masks since 0.33.
    "minimax-h3-masks": minimax(denoise_mask=(1, 1, 3, 10, 14), audio_denoise_mask=(1, 1, 2, 9)),
    "triposplat": HostCase(
        "comfy.ldm.triposplat.model.LatentSeqMMFlowModel",
        TRIPOSPLAT,
        lambda random: (
            ([random(BATCH, 77, 16), random(BATCH, 1, 5)], torch.full((BATCH,), 0.7)),
            {"context": random(BATCH, TEXT, 32)},
        ),
    ),
}
