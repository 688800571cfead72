"""Workflow templates that ComfyUI ships run on this pack's loader, with nothing else in them changed.

The files that a template names are there under their names, with tiny weights: the diffusion model in its original
layout, VAEs as `stock_files` writes them, text encoders as `narrow_encoders` makes them. Size and steps are the
template's own, unless its line in TEMPLATES says otherwise.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from demo.host import REPOSITORY, ComfyHost
from tests.editor import Editor
from tests.single_file_cases import PREFIX, PUBLISHED
from tests.stock_files import ENCODERS, VAES, Weights
from tests.stock_prompts import write_cases

WORKFLOWS = pytest.importorskip("comfyui_workflow_templates_json", reason="needs ComfyUI's templates package")
FOLDER = Path(WORKFLOWS.__file__).parent / "templates"
OURS, STOCK, CHECKPOINT = "ParallelDiT_LoadDiffusionModel", "UNETLoader", "CheckpointLoaderSimple"
Vaes = dict[str, Weights]
LOADER_WIDGETS = {"unet_name": "model_name", "weight_dtype": "dtype"}


@dataclass(frozen=True)
class Template:
    """What a template draws: width, height and, of a video, frames.

    smaller: by node type, inputs that the test changes where the template's own take minutes on tiny weights.
    """

    width: int
    height: int
    frames: int | None = None
    smaller: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


TEMPLATES = {
    "flux_dev_full_text_to_image": Template(1024, 1024),
    "flux_schnell_full_text_to_image": Template(1024, 1024),
    "sd3.5_simple_example": Template(1024, 1024),
    "image_z_image_turbo": Template(1024, 1024),
    "image_flux2_text_to_image_9b": Template(1024, 1024),
    # The VAE's decoding of the template's own 33 frames of 832×480 takes more memory than the machine of the gate has.
    "text_to_video_wan": Template(
        416, 240, frames=5, smaller={"EmptyHunyuanLatentVideo": {"width": 416, "height": 240, "length": 5}}
    ),
}


def diffusion(name: str, **config: object) -> Weights:
    """A tiny model that takes the text of the family's own encoders, as a file in its original layout."""
    published = PUBLISHED[name]
    family = replace(published.family, config={**published.family.config, **config})
    return published.layout.write(family.build().state_dict())


def flux(name: str) -> Weights:
    sizes = {"num_layers": 1, "num_single_layers": 1}
    return diffusion(name, joint_attention_dim=4096, pooled_projection_dim=768, **sizes)


def sd3(name: str) -> Weights:
    return diffusion(name, joint_attention_dim=4096, pooled_projection_dim=2048, pos_embed_max_size=96)


def checkpoint(model: Weights, encoders: Sequence[str], vae_prefix: str, vae: Weights) -> Weights:
    """A diffusion model with its text encoders and its VAE in one file."""
    parts = {PREFIX: model, vae_prefix: vae}
    parts |= {f"text_encoders.{name}.transformer.": ENCODERS[name]() for name in encoders}
    return {prefix + name: tensor for prefix, weights in parts.items() for name, tensor in weights.items()}


def sd35_checkpoint(vaes: Vaes) -> Weights:
    return checkpoint(sd3("sd3.5"), ("clip_l", "clip_g", "t5xxl"), "first_stage_model.", vaes["flux"])


# By path in the models folder, what a template wants there: weights, or a case of `stock_cases`.
FILES: dict[str, Callable[[Vaes], Weights] | str] = {
    "diffusion_models/wan2.1_t2v_1.3B_fp16.safetensors": "wan-2.1-t2v",
    "diffusion_models/z_image_turbo_bf16.safetensors": "z-image",
    "diffusion_models/flux-2-klein-base-9b-fp8.safetensors": "flux-2-klein",
    "text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors": lambda _: ENCODERS["umt5xxl"](),
    "text_encoders/qwen_3_4b.safetensors": lambda _: ENCODERS["qwen3_4b"](),
    "text_encoders/qwen_3_8b_fp8mixed.safetensors": lambda _: ENCODERS["qwen3_8b"](),
    "vae/wan_2.1_vae.safetensors": lambda vaes: vaes["wan"],
    "vae/full_encoder_small_decoder.safetensors": lambda vaes: vaes["flux2"],
    "diffusion_models/flux1-dev.safetensors": lambda _: flux("flux-dev"),
    "diffusion_models/flux1-schnell.safetensors": lambda _: flux("flux-schnell"),
    "checkpoints/sd3.5_large_fp8_scaled.safetensors": sd35_checkpoint,
    "text_encoders/clip_l.safetensors": lambda _: ENCODERS["clip_l"](),
    "text_encoders/t5xxl_fp16.safetensors": lambda _: ENCODERS["t5xxl"](),
    "vae/ae.safetensors": lambda vaes: vaes["flux"],
}


@pytest.fixture(scope="module")
def vaes(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> Vaes:
    folder = tmp_path_factory.mktemp("vaes")
    command = [sys.executable, "-m", "tests.stock_files", str(comfyui), str(folder)]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-4000:]
    return {name: load_file(folder / f"{name}.safetensors") for name in VAES}


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path, vaes: Vaes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The files that the templates name, in the host's model folders."""
    written, base = [], tmp_path_factory.mktemp("cases")
    write_cases(comfyui, base, [make for make in FILES.values() if isinstance(make, str)])
    for name, make in FILES.items():
        path = models / "models" / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(make, str):
            shutil.move(base / "models" / "diffusion_models" / f"{make}.safetensors", path)
        else:
            save_file({key: tensor.contiguous() for key, tensor in make(vaes).items()}, path)
        written.append(path)
    yield
    for path in written:
        path.unlink()


def with_our_loader(text: str) -> dict:
    """A template's JSON with our loader in place of the stock one.

    A checkpoint loader goes on loading text encoders and VAE, and ours the diffusion model in its file.
    """
    for stock, ours in {STOCK: OURS, **LOADER_WIDGETS}.items():
        text = text.replace(f'"{stock}"', f'"{ours}"')
    workflow = json.loads(text)
    for graph in (workflow, *workflow.get("definitions", {}).get("subgraphs", ())):
        for node in list(graph["nodes"]):
            if node["type"] == OURS:
                node["widgets_values"] = [node["widgets_values"][0], "auto", True]
            if node["type"] == CHECKPOINT:
                beside_checkpoint(graph, node)
    return workflow


def beside_checkpoint(graph: dict, node: dict) -> None:
    """Moves the MODEL links of a checkpoint loader to a loader of ours."""
    model = node["outputs"][0]
    ours = {"id": 1 + max(each["id"] for each in graph["nodes"]), "type": OURS, "mode": 0, "flags": {}, "order": 0}
    ours |= {"pos": node["pos"], "size": node["size"], "properties": {}, "inputs": [], "outputs": [dict(model)]}
    graph["nodes"].append({**ours, "widgets_values": [node["widgets_values"][0], "auto", True]})
    link_id, origin = ("id", "origin_id") if isinstance(graph["links"][0], dict) else (0, 1)  # a subgraph's, or not
    for link in graph["links"]:
        if link[link_id] in model["links"]:
            link[origin] = ours["id"]
    model["links"] = []


def shrink(prompt: dict, smaller: Mapping[str, Mapping[str, int]]) -> None:
    """Changes inputs by node type; a type or an input that the prompt does not have is a mistake in the test."""
    for class_type, inputs in smaller.items():
        nodes = [node for node in prompt.values() if node["class_type"] == class_type]
        assert nodes and all(inputs.keys() <= node["inputs"].keys() for node in nodes), class_type
        for node in nodes:
            node["inputs"].update(inputs)


def pictures(file: Path) -> list[np.ndarray]:
    """The picture (height, width, 3) in an image file, or those in a video."""
    if file.suffix != ".mp4":
        return [np.asarray(Image.open(file).convert("RGB"))]
    with av.open(file) as video:
        return [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_stock_template_draws_with_our_loader(name: str, editor: Editor, host: ComfyHost, files: None) -> None:
    template = TEMPLATES[name]
    prompt = editor.prompt(with_our_loader((FOLDER / f"{name}.json").read_text()))
    assert editor.problems == []
    classes = [node["class_type"] for node in prompt.values()]
    assert OURS in classes and STOCK not in classes
    shrink(prompt, template.smaller)
    outputs = host.run(prompt)["outputs"]
    (saved,) = [image for output in outputs.values() for image in output.get("images", [])]
    drawn = pictures(host.output_file(saved))
    assert len(drawn) == (template.frames or 1)
    assert {picture.shape for picture in drawn} == {(template.height, template.width, 3)}
    assert drawn[0].std() > 1, "a picture of one colour"
