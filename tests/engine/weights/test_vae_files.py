"""A VAE's file, in any layout that is published, draws what the diffusers model with these weights draws."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from demo.host import REPOSITORY
from parallel_backend.errors import ModelFileError
from parallel_backend.weights.vae_files import describe_vae, load_vae
from tests.support.cases.vae_cases import Case, config

SD = config((32, 32, 64, 64), groups=32, layers=2)
FLUX = {**config((32, 64), groups=32, latent_channels=16), "use_quant_conv": False, "use_post_quant_conv": False}
NO_ATTENTION = {**config((32, 32, 64), groups=32), "mid_block_add_attention": False}
CONFIGS = {"sd": SD, "flux": FLUX, "no attention": NO_ATTENTION}

Weights = dict[str, torch.Tensor]


def original_names(weights: Weights, levels: int) -> Weights:
    """The weights as latent diffusion names and shapes them: its decoder counts levels from the image."""
    renamed = {}
    for name, tensor in weights.items():
        name = re.sub(r"up_blocks\.(\d)", lambda found: f"up.{levels - 1 - int(found[1])}", name)
        name = re.sub(r"mid_block\.resnets\.(\d)", lambda found: f"mid.block_{int(found[1]) + 1}", name)
        if "attentions.0" in name:
            name = name.replace("mid_block.attentions.0", "mid.attn_1").replace("to_out.0", "proj_out")
            name = name.replace("group_norm", "norm").replace(".to_", ".")
            tensor = tensor[:, :, None, None] if tensor.ndim == 2 else tensor
        for theirs, ours in {
            "down_blocks.": "down.", ".resnets.": ".block.", "conv_shortcut": "nin_shortcut",
            "downsamplers.0": "downsample", "upsamplers.0": "upsample", "conv_norm_out": "norm_out",
        }.items():  # fmt: skip
            name = name.replace(theirs, ours)
        renamed[name] = tensor.contiguous()
    return renamed


def old_names(weights: Weights) -> Weights:
    """The weights as diffusers named them at first."""
    old = {"to_q.": "query.", "to_k.": "key.", "to_v.": "value.", "to_out.0.": "proj_attn."}
    renamed = {}
    for name, tensor in weights.items():
        for new, past in old.items() if ".attentions." in name else ():
            name = name.replace(new, past)
        renamed[name] = tensor
    return renamed


def prefixed(weights: Weights, prefix: str) -> Weights:
    """The weights within a checkpoint that holds a diffusion model too."""
    others = {"model.diffusion_model.input_blocks.0.0.weight": torch.zeros(4, 4), "model_ema.decay": torch.zeros(1)}
    return {**others, **{prefix + name: tensor for name, tensor in weights.items()}}


def moved_quant(weights: Weights) -> Weights:
    """The 1×1 convolutions between the halves, named as part of them."""
    halves = {"quant_conv": "encoder.quant_conv", "post_quant_conv": "decoder.post_quant_conv"}
    return {".".join((halves.get(name.split(".")[0], name.split(".")[0]), name.partition(".")[2])): tensor
            for name, tensor in weights.items()}  # fmt: skip


LAYOUTS = {
    "original": original_names,
    "checkpoint": lambda weights, levels: prefixed(original_names(weights, levels), "first_stage_model."),
    "checkpoint, vae": lambda weights, levels: prefixed(original_names(weights, levels), "vae."),
    "quant within": lambda weights, levels: moved_quant(original_names(weights, levels)),
    "diffusers": lambda weights, levels: weights,
    "old diffusers": lambda weights, levels: old_names(weights),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_a_file_loads_as_the_model_whose_weights_it_holds(name: str, layout: str, tmp_path: Path) -> None:
    case = Case(CONFIGS[name], (1, 4, 5))
    vae = case.build()
    path = tmp_path / "vae.safetensors"
    save_file(LAYOUTS[layout](vae.state_dict(), len(CONFIGS[name]["block_out_channels"])), path)
    loaded = load_vae(str(path), "fp32")
    assert not loaded.training
    assert torch.equal(loaded.decode(case.latents()).sample, vae.decode(case.latents()).sample)
    assert torch.equal(loaded.encode(case.image()).latent_dist.mean, vae.encode(case.image()).latent_dist.mean)


@pytest.mark.parametrize("part", [".", "vae"])
@torch.inference_mode()
def test_a_folder_loads_with_its_own_config(part: str, tmp_path: Path) -> None:
    case = Case()  # its norms' groups are told by the config alone
    vae = case.build()
    vae.save_pretrained(tmp_path / part)
    if part != ".":
        (tmp_path / "model_index.json").write_text("{}")
    loaded = load_vae(str(tmp_path), "fp32")
    assert torch.equal(loaded.decode(case.latents()).sample, vae.decode(case.latents()).sample)


def test_weights_are_cast_and_outlive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "vae.safetensors"
    save_file(Case(FLUX).build().state_dict(), path)
    loaded = load_vae(str(path), "bf16")
    path.write_bytes(bytes(path.stat().st_size))
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert all(parameter.isfinite().all() for parameter in loaded.parameters())


def refused_files() -> dict[str, tuple[Weights, str]]:
    """Files that hold something else, and what is said of them."""
    whole = original_names(Case(FLUX).build().state_dict(), 2)
    narrow = original_names(Case().build().state_dict(), 4)
    wider = {**whole, "decoder.conv_in.weight": torch.zeros(96, 16, 3, 3)}
    return {
        "a diffusion model": ({"model.diffusion_model.weight": torch.zeros(1)}, "no VAE of that kind"),
        "taesd": ({"taesd_decoder.1.weight": torch.zeros(64, 4, 3, 3)}, "a TAESD"),
        "flux 2": ({**whole, "bn.running_mean": torch.zeros(128)}, "Flux 2's VAE"),
        "video": ({"decoder.conv_in.weight": torch.zeros(8, 16, 3, 3, 3)}, "a video VAE"),
        "decoder alone": ({key: whole[key] for key in whole if key.startswith("decoder.")}, "encoder and decoder"),
        "decoder of other widths": (wider, r"of decoder.conv_in.weight it has \(96, 16, 3, 3\), and \(64, 16, 3, 3\)"),
        "a weight less": ({key: whole[key] for key in whole if "up.0.block.1.conv2.w" not in key}, "it has none"),
        "attention more": ({**whole, "decoder.up.0.attn.0.q.bias": torch.zeros(32)}, "attn.0.q.bias.*and none is"),
        "a resnet more": ({**whole, "decoder.mid.block_3.conv1.bias": torch.zeros(64)}, "has 1 weights that no"),
        "other groups": (narrow, "norms of 32 groups.*diffusers folder"),
    }


@pytest.mark.parametrize("kind", refused_files())
def test_what_is_no_autoencoder_kl_is_refused_in_words(kind: str, tmp_path: Path) -> None:
    weights, says = refused_files()[kind]
    save_file(weights, tmp_path / "file.safetensors")
    with pytest.raises(ModelFileError, match=f"(?s)^file.safetensors .*{says}"):
        load_vae(str(tmp_path / "file.safetensors"), "fp32")


def test_broken_missing_and_pickled_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    for name, says in {"cut.safetensors": "Download it again", "gone.safetensors": "gone", "a.ckpt": "pickle"}.items():
        with pytest.raises(ModelFileError, match=says):
            load_vae(str(tmp_path / name), "fp32")
    (tmp_path / "config.json").write_text('{"_class_name": "AutoencoderKLWan"}')
    with pytest.raises(ModelFileError, match="holds AutoencoderKLWan, and only"):
        load_vae(str(tmp_path), "fp32")


def test_describing_a_file_needs_no_diffusers(tmp_path: Path) -> None:
    path = tmp_path / "vae.safetensors"
    save_file(original_names(Case(SD).build().state_dict(), 4), path)
    script = (
        "import sys; from parallel_backend.weights.vae_files import describe_vae; "
        f"assert describe_vae({str(path)!r}).config['latent_channels'] == 4; assert 'diffusers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=True, timeout=60)
    expected = {key: describe_vae(str(path)).config[key] for key in SD}
    assert expected == SD
