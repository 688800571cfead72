"""The pack as ComfyUI sees it: it imports without diffusers, says what it needs, and explains its inputs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from demo.host import PACK_NAME, REPOSITORY, ComfyHost, PromptError
from tests.conftest import EXTRA_ARGS
from tests.graphs import Job, worker_processes

NODES = {"ParallelDiT_LoadDiffusionModel", "ParallelDiT_Plan", "ParallelDiT_ClassLabel"}
HIDE_DIFFUSERS = '''"""Python finds no diffusers, as where it is not installed."""

import importlib.machinery

find_spec = importlib.machinery.PathFinder.find_spec


def find_no_diffusers(name, path=None, target=None):
    return None if name.partition(".")[0] == "diffusers" else find_spec(name, path, target)


importlib.machinery.PathFinder.find_spec = find_no_diffusers
'''


def test_without_diffusers_the_nodes_are_there_and_say_what_to_install(comfyui: Path, own_base: Path) -> None:
    blocker = own_base / "blocker"
    blocker.mkdir()
    (blocker / "sitecustomize.py").write_text(HIDE_DIFFUSERS)
    with ComfyHost(comfyui, own_base, extra_args=EXTRA_ARGS, env={"PYTHONPATH": str(blocker)}) as host:
        assert set(host.object_info()) >= NODES
        with pytest.raises(PromptError) as caught:
            host.run(Job("tiny-dit").prompt())
        assert not worker_processes(host)
    assert "diffusers" in caught.value.message
    assert "pip install -r requirements.txt" in caught.value.message


def test_every_input_of_every_node_has_a_tooltip(host: ComfyHost) -> None:
    nodes = {name: node for name, node in host.object_info().items() if PACK_NAME in node["python_module"]}
    assert set(nodes) >= NODES
    for name, node in nodes.items():
        assert node["description"], name
        for group in ("required", "optional"):
            for input_name, (_kind, *options) in node["input"].get(group, {}).items():
                assert options and options[0].get("tooltip"), f"{name}.{input_name}"


def test_requirements_leave_torch_to_comfyui() -> None:
    lines = (REPOSITORY / "requirements.txt").read_text().splitlines()
    names = {re.match(r"[\w.-]*", line.strip())[0].lower() for line in lines}
    assert "diffusers" in names
    assert not {name for name in names if name.startswith(("torch", "nvidia", "triton"))}
