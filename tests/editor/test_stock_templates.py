"""A workflow template that ComfyUI ships draws the same with Parallelize Model, put into it by the editor's command.

The file that it names is there under its name, with tiny weights. Every other template is made parallel and stock again
in test_convert.py, and those that this pack offers draw in test_example_workflows.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demo.host import ComfyHost
from tests.support.editor.converted import PARALLEL, PARALLELIZE, execute
from tests.support.editor.editor import Editor
from tests.support.files.template_files import files_in, pictures, sd35_checkpoint, shrink
from tests.support.host.graphs import runs
from tests.support.templates.workflows import templates_folder

FOLDER = templates_folder()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="needs ComfyUI's templates package")
FILE = "sd3.5_large_fp8_scaled.safetensors"
SMALLER = {"EmptySD3LatentImage": {"width": 128, "height": 128}, "KSampler": {"steps": 2}}
NOISE = 3  # of 255, by which a pixel may differ: two ranks add in another order
PROMPT = "async () => (await window.app.graphToPrompt()).output"


def check_node(prompt: dict[str, Any], host: ComfyHost) -> None:
    """The prompt, which is what *Export (API)* saves, has the node behind a loader, with all its inputs."""
    (node,) = [each for each in prompt.values() if each["class_type"] == PARALLELIZE]
    declared = host.object_info()[PARALLELIZE]["input"]
    assert set(node["inputs"]) == {name for group in declared.values() for name in group}
    (loader, slot), group = node["inputs"]["model"], node["inputs"]["group"]
    assert "Loader" in prompt[loader]["class_type"] and (slot, group) == (0, 1)


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
