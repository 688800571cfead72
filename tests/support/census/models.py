"""Tiny models of the kinds that the census of ComfyUI's nodes needs, by what ComfyUI would detect in a whole one."""

from __future__ import annotations

import torch

from tests.support.cases.files.host_cases import LTX_2
from tests.support.cases.host.audio import MINIMAX, TRIPOSPLAT
from tests.support.cases.host.flux import FLUX, FLUX2, RADIANCE
from tests.support.cases.host.image import SD3, UNET, UNET_XL_BASE
from tests.support.cases.host.ltx import LTX
from tests.support.cases.host.lumina import LUMINA, Z_IMAGE
from tests.support.cases.host.qwen import QWEN
from tests.support.cases.host.video import COSMOS
from tests.support.cases.host.wan import WAN
from tests.support.cases.stock_cases import CASES, StockCase, mask, normal, text

VIDEO = (1, 16, 5, 8, 12)
SAM3 = {"embed_dim": 64, "depth": 1, "num_heads": 16, "d_model": 64, "num_queries": 8, "global_att_blocks": ()}
SEEDVR2 = {
    "norm_eps": 1e-5, "num_layers": 2, "mlp_type": "normal", "vid_dim": 32, "heads": 2, "head_dim": 16, "mm_layers": 1,
    "rope_dim": 16,
}  # fmt: skip

CENSUS_MODELS = {
    "flux": StockCase("flux.model.Flux", FLUX, (1, 16, 14, 22), text(13, 64, pooled=normal(1, 32)), detected_as="Flux"),
    "flux-2": StockCase(
        "flux.model.Flux",
        FLUX2 | {"in_channels": 128, "out_channels": 128},
        (1, 128, 7, 11),
        text(13, 64, **{"list reference_latents": normal(1, 128, 5, 6)}),
        detected_as="Flux2",
    ),
    "pixart": CASES["pixart-alpha"],
    "sd3": StockCase(
        "modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper",
        SD3 | {"x_block_self_attn_layers": [0, 1]},
        (1, 16, 14, 22),
        text(13, 64, pooled=normal(1, 32)),
        detected_as="SD3",
    ),
    "sd35": StockCase(
        "modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper",
        SD3 | {"adm_in_channels": 2048},
        (1, 16, 14, 22),
        text(13, 64, pooled=normal(1, 2048)),
        detected_as="SD3",
    ),
    "wan": StockCase("wan.model.WanModel", WAN, VIDEO, text(13, 24), detected_as="WAN21_T2V"),
    "wan-animate2": StockCase(
        "wan.model_animate2.WanAnimate2Model",
        WAN | {"in_dim": 36, "model_type": "animate2"},
        (1, 16, 3, 8, 12),
        text(
            13,
            24,
            concat_latent_image=normal(1, 16, 3, 8, 12),
            concat_mask=normal(1, 1, 3, 8, 12),
            pose_video_latent=normal(1, 16, 2, 8, 12),
        ),
        detected_as="WAN_Animate2",
    ),
    "wan-of-80": StockCase("wan.model.WanModel", WAN | {"dim": 80}, VIDEO, text(13, 24), detected_as="WAN21_T2V"),
    "wan-causal": StockCase("wan.ar_model.CausalWanModel", WAN, VIDEO, text(13, 24), detected_as="WAN21_CausalAR_T2V"),
    "unet": StockCase(
        "modules.diffusionmodules.openaimodel.UNetModel",
        UNET
        | {
            "channel_mult": [1, 2, 4],
            "num_res_blocks": [1] * 3,
            "transformer_depth": [1] * 3,
            "transformer_depth_output": [1] * 6,
        },
        (1, 4, 16, 16),
        text(13, 24),
        detected_as="SD15",
    ),
    "xl": StockCase(
        "modules.diffusionmodules.openaimodel.UNetModel",
        UNET_XL_BASE
        | {
            "adm_in_channels": 2816,
            "model_channels": 64,
            "channel_mult": [1, 2, 2],
            "transformer_depth": [0, 0, 1, 1, 1, 1],
            "transformer_depth_output": [0, 0, 0, 1, 1, 1, 1, 1, 1],
            "transformer_depth_middle": 1,
        },
        (1, 4, 16, 16),
        text(13, 24, pooled=normal(1, 1280)),
        detected_as="SDXL",
    ),
    "anima": StockCase(
        "anima.model.Anima",
        COSMOS | {"crossattn_emb_channels": 1024, "num_blocks": 2, "image_model": "anima"},
        (1, 16, 1, 14, 22),
        text(13, 1024),
        detected_as="Anima",
    ),
    "lumina": StockCase(
        "lumina.model.NextDiT", LUMINA, (1, 16, 14, 22), text(13, 32, attention_mask=mask(13, 9)), detected_as="Lumina2"
    ),
    "zimage": StockCase(
        "lumina.model.NextDiT", Z_IMAGE, (1, 16, 14, 22), text(13, 32, attention_mask=mask(13, 9)), detected_as="ZImage"
    ),
    "radiance": StockCase(
        "chroma_radiance.model.ChromaRadiance", RADIANCE, (1, 3, 80, 112), text(13, 64), detected_as="ChromaRadiance"
    ),
    "qwen": StockCase(
        "qwen_image.model.QwenImageTransformer2DModel", QWEN, (1, 16, 1, 14, 22), text(13, 32), detected_as="QwenImage"
    ),
    # What a detector of the published size has in its blocks is there in part. Its nodes give it pictures of one size.
    "detector": StockCase(
        "rt_detr.rtdetr_v4.RTv4",
        {"enc_h": 64, "dec_h": 64, "enc_ff": 64, "dec_ff": 64, "num_queries": 10},
        (),
        text(13, 64),
        detected_as="RT_DETR_v4",
    ),
    "segmenter": StockCase(
        "sam3.detector.SAM3Model",
        SAM3 | {"patch_size": 84, "window_size": 4, "image_model": "SAM3"},
        (),
        text(13, 64),
        detected_as="SAM3",
        dtype=torch.float16,
    ),
    "tracker": StockCase(
        "sam3.detector.SAM3Model",
        SAM3 | {"mem_dim": 64, "image_model": "SAM31"},
        (),
        text(13, 64),
        detected_as="SAM31",
        dtype=torch.float16,
    ),
    "pose": StockCase(
        "modules.diffusionmodules.openaimodel.UNetModel",
        UNET | {"heatmap_head": True, "context_dim": 1024},
        (1, 4, 16, 16),
        text(13, 1024),
        detected_as="SD15",
    ),
    "triposplat": StockCase(
        "triposplat.model.LatentSeqMMFlowModel",
        TRIPOSPLAT,
        ((1, 77, 16), (1, 1, 5)),
        text(13, 32),
        detected_as="TripoSplat",
    ),
    "minimax": StockCase(
        "minimax.model.MiniMaxH3Model",
        MINIMAX | {"latents_dim": 24, "audio_latents_dim": 32},
        ((1, 24, 3, 10, 14), (1, 32, 2, 9)),
        text(13, 24),
        detected_as="MiniMaxH3",
    ),
    "seedvr2": StockCase("seedvr.model.NaDiT", SEEDVR2, (1, 16, 1, 8, 12), text(13, 24), detected_as="SeedVR2"),
    "ltxav": StockCase(
        "lightricks.av_model.LTXAVModel",
        LTX_2,
        ((1, 128, 3, 5, 7), (1, 8, 11, 16)),
        text(13, 24),
        metadata=LTX_2,
        detected_as="LTXAV",
    ),
    "ltx": StockCase(
        "lightricks.model.LTXVModel",
        LTX | {"in_channels": 128},
        (1, 128, 5, 5, 7),
        text(13, 24, attention_mask=mask(13, 9)),
        detected_as="LTXV",
    ),
}
