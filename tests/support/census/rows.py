"""What becomes of every node of ComfyUI that takes a MODEL, if *Parallelize Model* has made it and it runs by ComfyUI's
own class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


class Given(str):
    """A value that the program makes, by its kind."""


@dataclass(frozen=True)
class Row:
    """model: of `models`. inputs: beside the node's defaults. words: of the error, which stock raises too; None if
    it equals stock's result. ignored: whether stock's model ignores it. masked: whether a part of the latent is
    kept. costly: whether stock's model without the node stands for that with it. samples: whether the model can be
    sampled from. latent: its shape, if not the model's. plan: of ours; empty is auto. node: if the row has a name of
    its own. does: what is done in place of running a node. steps: of each sampling; more than one for what a node
    keeps from step to step, or does to the schedule. dtype: of the weights, as the loader names it. form: of
    `formats.py`, in which the file's blocks are. as_stock: whether ComfyUI's own model takes a sampling, in
    ComfyUI's process. numbers: what inputs of numbers get in place of their default. ours: whether the error is of
    ours alone. shared: the plan that the first call ran under, if it matters. said: on the node, about attention.
    rounded: whether a last bit becomes a step of the
    quantised activations, so that an error up to the quantisation's own is allowed. last: whether *Parallelize
    Model*, which makes ComfyUI's model ours, stands right before the sampler and not behind the loader."""

    model: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    words: str | None = None
    ignored: bool = False
    masked: bool = False
    costly: bool = False
    samples: bool = True
    latent: tuple[int, ...] = ()
    cfg: float = 3.0
    plan: Mapping[str, Any] = field(default_factory=lambda: {"ulysses": 2})
    node: str = ""
    does: Callable[..., Any] | None = None
    steps: int = 1
    dtype: str = "default"
    form: str = ""
    as_stock: bool = False
    numbers: float | None = None
    ours: bool = False
    shared: str = ""
    less: str = ""
    said: str = ""
    rounded: bool = False
    last: bool = False


def equal(model: str = "flux", **inputs: Any) -> Row:
    return Row(model, inputs)


def ignored(model: str = "flux", **inputs: Any) -> Row:
    return replace(equal(model, **inputs), ignored=True)


def as_stock(model: str = "flux", **inputs: Any) -> Row:
    """ComfyUI's own model gives it, in ComfyUI's process."""
    return replace(equal(model, **inputs), as_stock=True)


def detects(model: str, kind: str, **inputs: Any) -> Row:
    """A model that is not sampled from. kind: what ComfyUI's configuration of it is called."""
    return replace(as_stock(model, **inputs), samples=False, said=DETECTOR.format(model, kind))


def over_steps(row: Row) -> Row:
    return replace(row, steps=3)


def habit(row: Row, does: Callable[..., Any], *given: Any, steps: int = 2, **fields: Any) -> Row:
    """The row with what is done in place of running a node, and other fields. given: to `does`, behind the model."""
    return replace(row, does=lambda *args: does(*args, *given), steps=steps, **fields)


def one_rank(row: Row) -> Row:
    return replace(row, plan={"cfg": 1}, shared="one rank")


def refused(words: str, model: str = "flux", **inputs: Any) -> Row:
    return replace(equal(model, **inputs), words=words)


ON_ONE_RANK = "on one rank: "  # begins the names of rows that agree to the bit
DETECTOR = (
    "{0}.safetensors runs as stock, on ComfyUI's own device alone. {0}.safetensors holds a detector ({1}), which has "
    "no steps that ranks could share."
)
ALWAYS = {"start_percent": 0.0, "end_percent": 1.0}
STEPS = {"steps": 3}
TWICE = {"q": 2.0, "out": 1.5}
PATCH = {"model_patch": Given("model_patch"), "vae": Given("vae"), "image": Given("image")}
DIFFSYNTH = {"model_patch": Given("diffsynth"), "vae": Given("video_vae"), "image": Given("image")}
FUN = {"model_patch": Given("fun"), "vae": Given("image_vae"), "image": Given("image")}
WINDOWS = {"context_length": 9, "context_overlap": 5}
MODEL_SPECIFIC = (
    "Auraflow", "Cosmos14B", "Cosmos7B", "CosmosPredict2_14B", "CosmosPredict2_2B", "Flux1", "Krea2", "LTXV",
    "MochiPreview", "QwenImage", "SD2", "SD35_Large", "SD3_2B", "WAN2_1",
)  # fmt: skip
# Numbers of their own for some blocks of a UNet.
SD1_BLOCKS = {"time_embed.": 0.2, "input_blocks.1.": 0.9, "middle_block.1.": 0.5, "output_blocks.3.": 0.7, "out.": 0.0}
SDXL_BLOCKS = {"label_emb.": 0.2, "input_blocks.4": 0.9, "middle_block.1": 0.5, "output_blocks.2": 0.7, "out.": 0.0}

MERGED = replace(equal(), shared="ulysses=2")

ROWS: dict[str, Row] = {
    # Sampling, guiders, schedules.
    "KSampler": over_steps(equal(**STEPS)),
    "KSamplerAdvanced": over_steps(equal(**STEPS)),
    "SamplerCustom": over_steps(equal()),
    "SamplerSASolver": over_steps(equal()),
    "BasicGuider": equal(),
    "CFGGuider": equal(),
    "DualCFGGuider": equal(),
    "DualModelGuider": equal(negative=Given("negative")),
    "PerpNegGuider": equal(empty_conditioning=Given("other")),
    "AddNoise": equal(),
    "BasicScheduler": equal(),
    "BetaSamplingScheduler": equal(),
    "SDTurboScheduler": equal("unet"),
    "SamplingPercentToSigma": equal(),
    # What changes the sampling.
    "APG": over_steps(equal()),
    "CFGNorm": equal(),
    "CFGOverride": over_steps(equal()),
    "CFGZeroStar": equal(),
    "DifferentialDiffusion": over_steps(replace(equal(), masked=True)),
    "Epsilon Scaling": over_steps(equal()),
    "FreSca": equal(freq_cutoff=3),
    "LatentApplyOperationCFG": equal(operation=Given("operation")),
    "Mahiro": equal(),
    "PerpNeg": equal(empty_conditioning=Given("other")),
    "RenormCFG": equal("lumina"),
    "RescaleCFG": equal(),
    "TCFG": equal(),
    "TemporalScoreRescaling": over_steps(equal()),
    "VideoLinearCFGGuidance": equal("unet"),
    "VideoTriangleCFGGuidance": equal("unet"),
    "HiDreamO1PatchSeamSmoothing": replace(equal("lumina", **ALWAYS), latent=(1, 16, 72, 72)),
    "LTXVReferenceAudio": ignored("ltx", reference_audio=Given("audio"), audio_vae=Given("audio_vae")),
    # What changes the model's scales and schedules.
    "MiniMaxH3SigmaShift": over_steps(equal()),
    "ModelNoiseScale": over_steps(equal("sd3-dual", noise_scale=2.0)),
    "ModelSamplingAuraFlow": over_steps(equal()),
    "ModelSamplingContinuousEDM": over_steps(equal("unet")),
    "ModelSamplingContinuousV": over_steps(equal("unet")),
    "ModelSamplingDiscrete": over_steps(equal("unet", sampling="v_prediction")),
    "ModelSamplingFlux": over_steps(equal(max_shift=3.0, base_shift=2.0)),
    "ModelSamplingLTXV": over_steps(equal("ltx")),
    "ModelSamplingSD3": over_steps(equal()),
    "ModelSamplingStableCascade": over_steps(equal("unet")),
    # Around the diffusion model.
    "EasyCache": over_steps(equal(reuse_threshold=3.0, start_percent=0.0, end_percent=1.0)),
    "LazyCache": over_steps(equal(reuse_threshold=3.0, start_percent=0.0, end_percent=1.0)),
    "ContextWindowsManual": equal("wan", context_length=3, context_overlap=1, dim=2),
    "LTXVContextWindows": equal("ltx", context_length=17, context_overlap=8),
    "WanContextWindowsManual": equal("wan", **WINDOWS),
    "ChromaRadianceOptions": equal("radiance", force_sequential_txt_ids=True),
    "TripoSplatSamplingPreview": ignored("triposplat", vae=Given("vae")),
    "ARVideoI2V": ignored("wan", vae=Given("vae"), width=96, height=64, length=17),
    # Inside of the model.
    "SkipLayerGuidanceDiT": equal(double_layers="0", single_layers="1", **ALWAYS),
    "SkipLayerGuidanceDiTSimple": equal(double_layers="0", single_layers="1", **ALWAYS),
    "SkipLayerGuidanceDiT of the first and the last": replace(
        equal(double_layers="0, 1", single_layers="2", **ALWAYS), node="SkipLayerGuidanceDiT"
    ),
    "SkipLayerGuidanceSD3": equal("sd3-dual", layers="0", **ALWAYS),
    "NAGuidance": equal(),
    "NAGuidance with its rows apart": replace(equal(), plan={"cfg": 2}, node="NAGuidance", shared="ulysses=2"),
    "ScaleROPE": equal(scale_x=2.0, shift_y=1.0),
    "FluxKVCache": over_steps(replace(equal("flux-2"), plan={"cfg": 2}, cfg=1.0)),
    "FluxKVCache with its tokens shared": over_steps(
        replace(equal("flux-2"), node="FluxKVCache", cfg=1.0, shared="dp=2")
    ),
    "ModelComputeDtype": replace(equal(dtype="bf16"), plan={"cfg": 1}),
    "TorchCompileModel": replace(ignored(backend="eager"), costly=True),
    "TorchCompileModel of a UNet": replace(
        ignored("unet", backend="eager"), node="TorchCompileModel", plan={"ulysses": 2}, costly=True,
        said="unet.safetensors runs without torch.compile: the ranks share a picture's rows, which its layers "
        "exchange.",
    ),
    "PerturbedAttentionGuidance": replace(equal("unet"), shared="ulysses=2"),
    "FreeU": replace(equal("unet"), shared="ulysses=2"),
    "FreeU_V2": replace(equal("unet"), shared="ulysses=2"),
    "PatchModelAddDownscale": replace(equal("unet", **ALWAYS), shared="cfg=2"),
    "HyperTile": as_stock("unet", tile_size=32),
    "HypernetworkLoader": as_stock("unet", hypernetwork_name=Given("hypernetwork")),
    "SelfAttentionGuidance": replace(equal("unet"), shared="ulysses=2"),
    "TomePatchModel": as_stock("unet"),
    "AnimaLLLiteApply": replace(
        equal("anima", model_patch=Given("lllite"), image=Given("image")), shared="ulysses=2"
    ),
    "QwenImageDiffsynthControlnet": replace(equal("qwen", **DIFFSYNTH), shared="ulysses=2"),
    "QwenImageDiffsynthControlnet of no file": replace(
        as_stock("qwen", **PATCH), node="QwenImageDiffsynthControlnet"
    ),
    "ZImageFunControlnet": replace(equal("zimage", **FUN), shared="ulysses=2"),
    "USOStyleReference": replace(
        equal(model_patch=Given("siglip"), clip_vision_output=Given("clip_vision_output")), cfg=1.0, shared="ulysses=2"
    ),
    "SUPIRApply": refused("no attribute 'control_model'", "unet", **PATCH),
    "WanUni3CControlnetApply": replace(
        equal("wan", model_patch=Given("uni3c"), vae=Given("video_vae"), render_video=Given("image")),
        shared="ulysses=2",
    ),
    "WanInfiniteTalkToVideo": replace(equal(
        "wan-of-80", mode={"mode": "single_speaker"}, model_patch=Given("multitalk"),
        vae=Given("vae"), width=96, height=64, length=17, audio_encoder_output_1=Given("spoken"),
        start_image=Given("image"),
    ), cfg=1.0, shared="ulysses=2"),
    # Weights.
    "LoraLoader": equal(clip=None, lora_name=Given("lora")),
    "LoraLoaderModelOnly": equal(lora_name=Given("lora")),
    "LoraModelLoader": equal(lora=Given("lora_model")),
    "LoraLoaderBypass": as_stock(clip=None, lora_name=Given("lora")),
    "LoraLoaderBypassModelOnly": as_stock(lora_name=Given("lora")),
    "UNetCrossAttentionMultiply": equal("unet", **TWICE),
    "UNetSelfAttentionMultiply": equal("unet", **TWICE),
    "UNetTemporalAttentionMultiply": equal("unet", self_structural=2.0),
    "DiffControlNetLoader": refused("size mismatch for control_model", "unet", control_net_name=Given("difference")),
    "CheckpointSave": as_stock(clip=None, vae=None, filename_prefix="census"),
    "ImageOnlyCheckpointSave": as_stock(clip_vision=None, vae=None, filename_prefix="census"),
    "ModelSave": as_stock(filename_prefix="census"),
    "ModelSave as fp8": replace(as_stock(filename_prefix="census"), node="ModelSave", dtype="fp8_e5m2"),
    **{
        f"ModelSave of {form}": replace(as_stock(filename_prefix="census"), node="ModelSave", form=form)
        for form in ("plain fp8", "fp8", "nvfp4")
    },
    "LoraSave": as_stock(model_diff=Given("adapted")),
    "TrainLoraNode": equal(latents=Given("latent"), positive=Given("positive"), steps=2),
    "ModelMergeAdd": MERGED,
    "ModelMergeBlocks": replace(MERGED, inputs=dict.fromkeys(("input", "middle", "out"), 0.3)),
    "ModelMergeSimple": replace(MERGED, inputs={"ratio": 0.3}),
    "ModelMergeSubtract": MERGED,
    **{f"ModelMerge{model}": replace(MERGED, numbers=0.3) for model in MODEL_SPECIFIC},
    "ModelMergeSD1": replace(MERGED, model="unet", inputs=SD1_BLOCKS, numbers=0.3),
    "ModelMergeSDXL": replace(MERGED, model="xl", inputs=SDXL_BLOCKS, numbers=0.3),
    # Others.
    "GetICLoRAParameters": equal(),
    "MultiGPU_WorkUnits": ignored(),
    "SelectModelDevice": ignored(),
    "wanBlockSwap": ignored("wan"),
    "SeedVR2Conditioning": replace(
        equal("seedvr2", vae_conditioning=Given("latent")), plan={"cfg": 1}, samples=False
    ),
    "SAM3_Detect": detects(
        "segmenter", "SAM3", image=Given("image"), conditioning=Given("positive"), threshold=0.0, refine_iterations=0
    ),
    "SAM3_VideoTrack": detects("tracker", "SAM31", images=Given("image"), initial_mask=Given("mask")),
    "SDPoseKeypointExtractor": refused("conv_transpose2d", "pose", vae=Given("vae"), image=Given("image")),
}  # fmt: skip
# Nodes that only a newer ComfyUI than the gate's has, with its release.
NEWER_ROWS: Mapping[str, tuple[str, Row]] = {
    "LTXVDualCFGGuider": ("0.33", equal("ltxav")),
    "LTXVModalityGuidance": ("0.33", equal("ltxav")),
    # Of an option that nobody knows, the model's class needs all tokens; of a cache, whole calls one after the other.
    "LTXVSpatioTemporalGuidance": ("0.33", replace(equal("ltxav", blocks="0, 1"), less="one rank")),
    "ModelAttentionBackend": ("0.33", ignored()),
    "WanAnimate2Cache": ("0.33", replace(over_steps(equal("wan-animate2")), plan={"cfg": 2}, less="one rank")),
}
