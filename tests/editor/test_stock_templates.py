"""Workflow templates that ComfyUI ships run with Parallelize Model, put into them by the editor's command.

The files that a template names are there under their names, with tiny weights. Size and steps are the template's own,
unless its line in TEMPLATES says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demo.host import ComfyHost
from tests.support.editor.converted import PARALLEL, PARALLELIZE, execute
from tests.support.editor.editor import Editor
from tests.support.files.template_files import STOCK_FILES, Smaller, files_in, pictures, sd35_checkpoint, shrink
from tests.support.host.graphs import runs
from tests.support.templates.workflows import templates_folder

FOLDER = templates_folder()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="needs ComfyUI's templates package")
FILE = "sd3.5_large_fp8_scaled.safetensors"
SMALLER = {"EmptySD3LatentImage": {"width": 128, "height": 128}, "KSampler": {"steps": 2}}
NOISE = 3  # of 255, by which a pixel may differ: two ranks add in another order
PROMPT = "async () => (await window.app.graphToPrompt()).output"


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


def check_node(prompt: dict[str, Any], host: ComfyHost) -> None:
    """The prompt, which is what *Export (API)* saves, has the node behind a loader, with all its inputs."""
    (node,) = [each for each in prompt.values() if each["class_type"] == PARALLELIZE]
    declared = host.object_info()[PARALLELIZE]["input"]
    assert set(node["inputs"]) == {name for group in declared.values() for name in group}
    (loader, slot), group = node["inputs"]["model"], node["inputs"]["group"]
    assert "Loader" in prompt[loader]["class_type"] and (slot, group) == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_stock_template_draws_with_the_node(name: str, shared_editor: Editor, host: ComfyHost, files: None) -> None:
    template = TEMPLATES[name]
    shared_editor.open(json.loads((FOLDER / f"{name}.json").read_text()))
    execute(shared_editor.page, PARALLEL)
    prompt = shared_editor.page.evaluate(PROMPT)
    assert shared_editor.problems == []
    check_node(prompt, host)
    shrink(prompt, template.smaller)
    outputs = host.run(prompt)["outputs"]
    (saved,) = [image for output in outputs.values() for image in output.get("images", [])]
    drawn = pictures(host.output_file(saved))
    assert len(drawn) == (template.frames or 1)
    assert {picture.shape for picture in drawn} == {(template.height, template.width, 3)}
    assert drawn[0].std() > 1, "a picture of one colour"


@pytest.fixture(scope="module")
def checkpoint(comfyui: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A tiny SD3.5 with its text encoders and its VAE in one file."""
    with files_in({f"checkpoints/{FILE}": sd35_checkpoint}, comfyui, models, tmp_path_factory.mktemp("files")):
        yield


def drawn(host: ComfyHost, prompt: dict[str, Any]) -> np.ndarray:
    shrink(prompt, SMALLER)
    (saved,) = [image for output in host.run(prompt)["outputs"].values() for image in output.get("images", [])]
    return pictures(host.output_file(saved))[0].astype(int)


def test_a_checkpoint_made_parallel_draws_what_the_stock_one_draws(
    shared_editor: Editor, host: ComfyHost, checkpoint: None
) -> None:
    stock = drawn(host, shared_editor.prompt(json.loads((FOLDER / "sd3.5_simple_example.json").read_text())))
    execute(shared_editor.page, PARALLEL)
    prompt = shared_editor.page.evaluate(PROMPT)
    check_node(prompt, host)
    ours = drawn(host, prompt)
    assert not runs(host)[0]["is_stock"]
    assert stock.std() > 1, "a picture of one colour"
    assert abs(ours - stock).max() <= NOISE
