"""Tiny models of the kinds that the census of ComfyUI's nodes needs, by what ComfyUI would detect in a whole one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

VIDEO, IMAGE = (1, 16, 5, 8, 12), (1, 16, 14, 22)
MASKED = {"attention_mask": mask(13, 9)}
SEEDVR2 = {
    "norm_eps": 1e-5, "num_layers": 2, "mlp_type": "normal", "vid_dim": 32, "heads": 2, "head_dim": 16, "mm_layers": 1,
    "rope_dim": 16,
}  # fmt: skip


def case(detected_as: str, module: str, config: Mapping[str, Any], latent: tuple, width: int, **more: Any) -> StockCase:
    """width: of a text of 13 tokens. more: beside the text; or fields of the case."""
    fields = {name: more.pop(name) for name in ("dtype", "metadata") if name in more}
    return StockCase(module, config, latent, text(13, width, **more), detected_as=detected_as, **fields)


def unet(detected_as: str, config: Mapping[str, Any], width: int = 24, **more: Any) -> StockCase:
    module = "modules.diffusionmodules.openaimodel.UNetModel"
    return case(detected_as, module, config, (1, 4, 16, 16), width, **more)


def sd3(pooled: int, **config: Any) -> StockCase:
    module = "modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper"
    return case("SD3", module, SD3 | config, IMAGE, 64, pooled=normal(1, pooled))


def sam3(detected_as: str, **config: Any) -> StockCase:
    sizes = {"embed_dim": 64, "depth": 1, "num_heads": 16, "d_model": 64, "num_queries": 8, "global_att_blocks": ()}
    own = {**sizes, "image_model": detected_as, **config}
    return case(detected_as, "sam3.detector.SAM3Model", own, (), 64, dtype=torch.float16)


CENSUS_MODELS = {
    "flux": case("Flux", "flux.model.Flux", FLUX, IMAGE, 64, pooled=normal(1, 32)),
    "flux-2": case(
        "Flux2", "flux.model.Flux", FLUX2 | {"in_channels": 128, "out_channels": 128}, (1, 128, 7, 11), 64,
        **{"list reference_latents": normal(1, 128, 5, 6)},
    ),
    "pixart": CASES["pixart-alpha"],
    "sd3-dual": sd3(32, x_block_self_attn_layers=[0, 1]),
    "sd35": sd3(2048, adm_in_channels=2048),
    "wan": case("WAN21_T2V", "wan.model.WanModel", WAN, VIDEO, 24),
    "wan-animate2": case(
        "WAN_Animate2", "wan.model_animate2.WanAnimate2Model", WAN | {"in_dim": 36, "model_type": "animate2"},
        (1, 16, 3, 8, 12), 24, concat_latent_image=normal(1, 16, 3, 8, 12), concat_mask=normal(1, 1, 3, 8, 12),
        pose_video_latent=normal(1, 16, 2, 8, 12),
    ),
    "wan-of-80": case("WAN21_T2V", "wan.model.WanModel", WAN | {"dim": 80}, VIDEO, 24),
    "wan-causal": case("WAN21_CausalAR_T2V", "wan.ar_model.CausalWanModel", WAN, VIDEO, 24),
    "unet": unet("SD15", UNET | {
        "channel_mult": [1, 2, 4], "num_res_blocks": [1] * 3, "transformer_depth": [1] * 3,
        "transformer_depth_output": [1] * 6,
    }),
    "xl": unet("SDXL", UNET_XL_BASE | {
        "adm_in_channels": 2816, "model_channels": 64, "channel_mult": [1, 2, 2], "transformer_depth_middle": 1,
        "transformer_depth": [0, 0, 1, 1, 1, 1], "transformer_depth_output": [0, 0, 0, 1, 1, 1, 1, 1, 1],
    }, pooled=normal(1, 1280)),
    "anima": case(
        "Anima", "anima.model.Anima",
        COSMOS | {"crossattn_emb_channels": 1024, "num_blocks": 2, "image_model": "anima"}, (1, 16, 1, 14, 22), 1024,
    ),
    "lumina": case("Lumina2", "lumina.model.NextDiT", LUMINA, IMAGE, 32, **MASKED),
    "zimage": case("ZImage", "lumina.model.NextDiT", Z_IMAGE, IMAGE, 32, **MASKED),
    "radiance": case("ChromaRadiance", "chroma_radiance.model.ChromaRadiance", RADIANCE, (1, 3, 80, 112), 64),
    "qwen": case("QwenImage", "qwen_image.model.QwenImageTransformer2DModel", QWEN, (1, 16, 1, 14, 22), 32),
    # What a detector of the published size has in its blocks is there in part. Its nodes give it pictures of one size.
    "detector": case(
        "RT_DETR_v4", "rt_detr.rtdetr_v4.RTv4",
        {"enc_h": 64, "dec_h": 64, "enc_ff": 64, "dec_ff": 64, "num_queries": 10}, (), 64,
    ),
    "segmenter": sam3("SAM3", patch_size=84, window_size=4),
    "tracker": sam3("SAM31", mem_dim=64),
    "pose": unet("SD15", UNET | {"heatmap_head": True, "context_dim": 1024}, 1024),
    "triposplat": case("TripoSplat", "triposplat.model.LatentSeqMMFlowModel", TRIPOSPLAT, ((1, 77, 16), (1, 1, 5)), 32),
    "minimax": case(
        "MiniMaxH3", "minimax.model.MiniMaxH3Model", MINIMAX | {"latents_dim": 24, "audio_latents_dim": 32},
        ((1, 24, 3, 10, 14), (1, 32, 2, 9)), 24,
    ),
    "seedvr2": case("SeedVR2", "seedvr.model.NaDiT", SEEDVR2, (1, 16, 1, 8, 12), 24),
    "ltxav": case(
        "LTXAV", "lightricks.av_model.LTXAVModel", LTX_2, ((1, 128, 3, 5, 7), (1, 8, 11, 16)), 24, metadata=LTX_2
    ),
    "ltx": case("LTXV", "lightricks.model.LTXVModel", LTX | {"in_channels": 128}, (1, 128, 5, 5, 7), 24, **MASKED),
}  # fmt: skip
