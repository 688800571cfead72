"""Workflow templates that ComfyUI ships run on this pack's loader, with nothing else in them changed.

The files that a template names are there under their names, with tiny weights. Size and steps are the template's own,
unless its line in TEMPLATES says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from demo.host import ComfyHost
from tests.support.editor.editor import Editor
from tests.support.files.template_files import STOCK_FILES, Smaller, files_in, pictures, shrink
from tests.support.templates.workflows import templates_folder
from tests.support.tiers import slow_but

FOLDER = templates_folder()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="needs ComfyUI's templates package")
OURS, STOCK, CHECKPOINT = "ParallelDiT_LoadDiffusionModel", "UNETLoader", "CheckpointLoaderSimple"
LOADER_WIDGETS = {"unet_name": "model_name", "weight_dtype": "dtype"}


@dataclass(frozen=True)
class Template:
    """What a template draws: width, height and, of a video, frames.

    smaller: by node type, inputs that the test changes where the template's own take minutes on tiny weights.
    """

    width: int
    height: int
    frames: int | None = None
    smaller: Smaller = field(default_factory=dict)


TEMPLATES = {
    "flux_schnell_full_text_to_image": Template(1024, 1024),
    "sd3.5_simple_example": Template(1024, 1024),
    "image_z_image_turbo": Template(1024, 1024),
    "image_flux2_text_to_image_9b": Template(1024, 1024),
    # The VAE's decoding of the template's own 33 frames of 832×480 takes more memory than the machine of the gate has.
    "text_to_video_wan": Template(
        416, 240, frames=5, smaller={"EmptyHunyuanLatentVideo": {"width": 416, "height": 240, "length": 5}}
    ),
}


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The files that the templates name, in the host's model folders."""
    with files_in(STOCK_FILES, comfyui, models, tmp_path_factory.mktemp("files")):
        yield


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


@pytest.mark.parametrize("name", slow_but(("flux_schnell_full_text_to_image",), {name: (name,) for name in TEMPLATES}))
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
