"""The workflows in example_workflows/ are offered, open whole in the editor, name their files, and run.

Their models are tiny here, and size and steps small; the rest is each workflow's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from demo.host import PACK_NAME, REPOSITORY, ComfyHost, open_url
from demo.workflow import api_prompt
from tests.support.editor.editor import PARALLELIZE, Editor, SharedPage
from tests.support.editor.examples import EXAMPLES, FOLDER, boxes, open_example, problems, settle
from tests.support.files.template_files import EXAMPLE_FILES, files_in, unread
from tests.support.templates.examples import TABLE
from tests.support.tiers import running, slow_but

# Downloads of models that no template of ComfyUI's has, as their makers' pages give them.
MAKERS = ("https://huggingface.co/ByteDance/SDXL-Lightning/resolve/main/sdxl_lightning_4step.safetensors",)
OPEN = ("FLUX.1 dev text to image", "LTX-2 text to video")  # by the quick run: a small one and the largest
DEMOS = ("demo", "pipefusion")  # whose model comes with the pack; test_api_queue looks at what they draw
MOST_BYTES, MOST_PIXELS = 200_000, 1660  # twice the width at which GitHub shows them
ANSWER_MS = 120_000
ROOMY = {"width": 2600, "height": 2000}
# Inputs that take a file, and the folder that it is in.
FILE_INPUTS = {
    "clip_name": "text_encoders",
    "clip_name1": "text_encoders",
    "clip_name2": "text_encoders",
    "vae_name": "vae",
    "ckpt_name": "checkpoints",
    "model_name": "latent_upscale_models",
    "text_encoder": "text_encoders",
    "unet_name": "diffusion_models",
}
UNKNOWN = (
    "() => window.app.graph.nodes.map((node) => node.type).filter((type) => !LiteGraph.registered_node_types[type])"
)
PROMPT = "async () => (await window.app.graphToPrompt()).output"


OPENED = [name for name in EXAMPLES if name not in DEMOS]


@pytest.fixture(scope="module")
def files(
    request: pytest.FixtureRequest,
    comfyui: Path,
    models: Path,
    shared_page: SharedPage,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """The files that the workflows name, in the host's model folders; and the page has looked there."""
    named = {path: EXAMPLE_FILES[path] for (example,) in running(request, "example") for path in files_noted(example)}
    with files_in(named, comfyui, models, tmp_path_factory.mktemp("files")):
        shared_page.editor().page.evaluate("() => window.app.refreshComboInNodes()")  # as R does
        yield


def workflow(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.json").read_text())


def files_noted(name: str) -> set[str]:
    """The files that its notes tell of, by their paths in the models folder; `test_example_notes` has that they do."""
    return {f"{file.folder}/{file.name}" for file in TABLE[name].files}


def files_chosen(prompt: dict) -> set[str]:
    """The files that a prompt's nodes ask for, by their paths in the models folder."""
    chosen = set()
    for node in prompt.values():
        for name, value in node["inputs"].items():
            if name in FILE_INPUTS and str(value).endswith(".safetensors"):
                chosen.add(f"{FILE_INPUTS[name]}/{value}")
    return chosen


def overlaps(one: tuple, other: tuple) -> bool:
    return all(one[side] < other[side] + other[side + 2] and other[side] < one[side] + one[side + 2] for side in (1, 2))


def test_the_host_offers_them_with_their_pictures(host: ComfyHost) -> None:
    with open_url(f"{host.url}/workflow_templates", timeout=30) as answer:
        assert sorted(json.loads(answer.read())[PACK_NAME]) == sorted(EXAMPLES)
    for name in EXAMPLES:
        with open_url(f"{host.url}/api/workflow_templates/{PACK_NAME}/{quote(name)}.jpg", timeout=30) as answer:
            picture = Image.open(answer)
            assert picture.width <= MOST_PIXELS
        assert (FOLDER / f"{name}.jpg").stat().st_size <= MOST_BYTES


@pytest.mark.parametrize("name", EXAMPLES)
def test_nodes_say_which_pack_they_are_from_and_parallelize_model_is_all_of_this_one(name: str) -> None:
    """By the first, the editor's manager finds a pack that is missing."""
    kinds = {node["type"] for node in workflow(name)["nodes"] if node["type"].startswith("ParallelDiT_")}
    assert PARALLELIZE in kinds and (name in DEMOS or kinds == {PARALLELIZE})
    ours = re.search(r'(?m)^name = "(.+)"', (REPOSITORY / "pyproject.toml").read_text())[1]
    for node in workflow(name)["nodes"]:
        pack = ours if node["type"].startswith("ParallelDiT_") else "comfy-core"
        assert node["properties"]["cnr_id"] == pack
        assert node["properties"]["Node name for S&R"] == node["type"]


@pytest.mark.parametrize("name", OPENED)
def test_downloads_that_the_editor_offers_are_those_of_comfyuis_own_templates_or_the_makers(name: str) -> None:
    package = pytest.importorskip("comfyui_workflow_templates_json", reason="needs ComfyUI's templates package")
    stock = "".join(path.read_text() for path in (Path(package.__file__).parent / "templates").glob("*.json"))
    for node in workflow(name)["nodes"]:
        for model in node["properties"].get("models", []):
            assert model["url"] in MAKERS or model["url"] in stock
            assert model["name"] in node["widgets_values"]
            assert f"{model['directory']}/{model['name']}" in EXAMPLE_FILES


@pytest.mark.parametrize("name", OPENED)
def test_each_converts_to_a_prompt_in_which_nothing_is_missing(name: str, host: ComfyHost) -> None:
    known = host.object_info()
    prompt = api_prompt(workflow(name), known)
    assert files_noted(name) == files_chosen(prompt)
    for node in prompt.values():
        assert known[node["class_type"]]["input"].get("required", {}).keys() <= node["inputs"].keys(), node
        for value in node["inputs"].values():
            assert not isinstance(value, list) or value[0] in prompt


@pytest.mark.parametrize("example", slow_but(OPEN, {name: (name,) for name in EXAMPLES}))
def test_it_opens_whole_and_tidy_and_names_its_files(example: str, editor: Editor, files: None) -> None:
    editor.resize(ROOMY)  # what is drawn small has no drawing of the plan
    open_example(editor, example)
    assert editor.page.evaluate(UNKNOWN) == []
    assert files_noted(example) == files_chosen(editor.page.evaluate(PROMPT))
    if not any(EXAMPLE_FILES[f"{model.folder}/{model.name}"] is unread for model in TABLE[example].files[:1]):
        said = editor.page.locator(".paralleldit-plan-title, .paralleldit-plan-line")
        said.wait_for(timeout=ANSWER_MS)  # the node grows by its answer
    settle(editor)
    assert [(one[0], other[0]) for one, other in combinations(boxes(editor), 2) if overlaps(one, other)] == []
    assert problems(editor) == []


@pytest.mark.parametrize("example", ["FLUX.1 dev text to image"])
def test_it_draws(example: str, editor: Editor, host: ComfyHost, files: None) -> None:
    """tests/comfyui has the models of the others."""
    open_example(editor, example)
    prompt = editor.page.evaluate(PROMPT)
    inputs = {node["class_type"]: node["inputs"] for node in prompt.values()}
    inputs["EmptySD3LatentImage"].update(width=512, height=384)
    inputs["KSampler"].update(steps=3)
    outputs = host.run(prompt)["outputs"]
    (saved,) = [image for output in outputs.values() for image in output.get("images", [])]
    picture = np.asarray(Image.open(host.output_file(saved)).convert("RGB"))
    assert picture.shape == (384, 512, 3)
    assert picture.std() > 1, "a picture of one colour"
