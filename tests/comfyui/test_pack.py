"""The pack as ComfyUI sees it: a plain clone, with ComfyUI's own requirements and nothing else installed."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
import urllib.parse
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from demo.host import REPOSITORY, ComfyHost, PromptError
from tests.editor.test_help import NODES
from tests.support.host.graphs import Graph, Job, ask, worker_processes
from tests.support.host.node_defs import own_nodes

SCRIPT = "paralleldit.js"
STYLE = re.compile(r"new URL\('\./([\w/]+\.css)'")
CLONE = "ComfyUI+ParallelDiT~main"  # odd; but with a space in it, ComfyUI serves no pack's web files (aiohttp 3.14)
BARE_PYTHON = '''"""Python finds no package of HIDDEN, and the modules of the pack get nothing of torch.distributed."""

import builtins
import importlib.machinery

HIDDEN = {hidden!r}
find_spec = importlib.machinery.PathFinder.find_spec
import_module = builtins.__import__


def find_shown(name, path=None, target=None):
    return None if name.partition(".")[0] in HIDDEN else find_spec(name, path, target)


def import_watched(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {{}}).get("__name__") or ""
    wanted = [name, *(f"{{name}}.{{part}}" for part in fromlist or ())]
    if {clone!r} in importer and any(f"{{module}}.".startswith("torch.distributed.") for module in wanted):
        raise ImportError(f"{{importer}} imports torch.distributed")
    return import_module(name, globals, locals, fromlist, level)


importlib.machinery.PathFinder.find_spec = find_shown
builtins.__import__ = import_watched
'''


def test_a_plain_clone_with_only_comfyuis_requirements_loads_and_says_what_to_install(bare: ComfyHost) -> None:
    nodes = own_nodes(bare.object_info(), CLONE)
    assert set(nodes) == NODES
    for prompt in (Job("tiny-dit").prompt(), vae_prompt()):
        with pytest.raises(PromptError) as caught:
            bare.run(prompt)
        assert not worker_processes(bare)
        assert f"{sys.executable} -m pip install -r requirements.txt" in caught.value.message
        assert str(bare.base / "custom_nodes" / CLONE) in caught.value.message
        assert "diffusers" in caught.value.message


def test_a_plain_clone_serves_its_web_files_help_and_words(bare: ComfyHost) -> None:
    folder = f"/extensions/{urllib.parse.quote(CLONE)}"
    served = {url for url in json.loads(ask(bare, "/extensions")) if url.startswith(f"{folder}/")}
    assert served == {f"{folder}/{SCRIPT}"}
    pages = [path.relative_to(REPOSITORY / "web").as_posix() for path in (REPOSITORY / "web" / "docs").rglob("*.md")]
    styles = STYLE.findall((REPOSITORY / "web" / SCRIPT).read_text())
    assert styles
    for path in (SCRIPT, *styles, *pages):
        assert ask(bare, f"{folder}/{path}") == (REPOSITORY / "web" / path).read_bytes()
    texts = json.loads(ask(bare, "/i18n"))
    for language in ("en", "zh"):
        assert set(texts[language]["nodeDefs"]) == NODES
        assert texts[language]["paralleldit"]


@pytest.mark.parametrize("release", ["2.8.0", "2.13.0+cpu", "2.9.1+rocm6.4", "2.15.0+xpu", "2.16.0.dev20261101+cu132"])
def test_requirements_leave_torch_to_comfyui(release: str) -> None:
    lines = (REPOSITORY / "requirements.txt").read_text().splitlines()
    found = {each.name.lower(): each.specifier for each in map(Requirement, lines)}
    assert "diffusers" in found
    assert not {name for name in found if name.startswith(("torchvision", "torchaudio", "nvidia", "triton"))}
    assert found["torch"].contains(release, prereleases=True)


def vae_prompt() -> dict:
    """A latent through a parallel VAE."""
    graph = Graph()
    latent = graph.add("EmptyLatentImage", width=64, height=64, batch_size=1)
    vae = graph.add("ParallelDiT_ParallelizeVAE", vae=graph.add("VAELoader", vae_name="pixel_space"))
    image = graph.add("VAEDecode", samples=latent, vae=vae)
    graph.add("SaveImage", images=image, filename_prefix="bare")
    return graph.prompt


@pytest.fixture(scope="module")
def bare(comfyui: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyHost]:
    """A ComfyUI with a clone of the pack in a folder of another name, whose Python has ComfyUI's requirements alone."""
    base = tmp_path_factory.mktemp("bare")
    (base / "models").symlink_to(models / "models", target_is_directory=True)
    clone(base / "custom_nodes" / CLONE)
    hidden = packages_distributions().keys() - packages_of(comfyui / "requirements.txt")
    assert "diffusers" in hidden
    assert not hidden & {"torch", "safetensors", "aiohttp"}
    (base / "python").mkdir()
    (base / "python" / "sitecustomize.py").write_text(BARE_PYTHON.format(hidden=hidden, clone=CLONE))
    path = {"PYTHONPATH": str(base / "python")}
    with ComfyHost(comfyui, base, extra_args=("--whitelist-custom-nodes", CLONE), env=path) as host:
        yield host


def clone(target: Path) -> None:
    """A copy of the repository without what git ignores."""
    ignored = [line.strip("/") for line in (REPOSITORY / ".gitignore").read_text().split()]
    shutil.copytree(REPOSITORY, target, ignore=shutil.ignore_patterns(".git", *ignored))


def packages_of(requirements: Path) -> set[str]:
    """The importable packages that installing these requirements brings, and what those require in their turn."""
    lines = (line.partition("#")[0].strip() for line in requirements.read_text().splitlines())
    wanted, found = [Requirement(line).name for line in lines if line], set()
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name in found:
            continue
        found.add(name)
        try:
            needs = map(Requirement, requires(name) or ())
        except PackageNotFoundError:  # one that the tests' ComfyUI runs without
            continue
        wanted += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return {
        package
        for package, distributions in packages_distributions().items()
        if found & {canonicalize_name(distribution) for distribution in distributions}
    }


def test_comfyui_reads_the_metadata_as_it_is_meant(comfyui: Path) -> None:
    """By ComfyUI's own types, which are the registry's. `tests/pack/test_published.py` has what else that asks for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(comfyui))
        parser = importlib.import_module("comfy_config.config_parser")
    config: Any = parser.extract_node_configuration(str(REPOSITORY))
    assert config.project.urls.repository.split("/")[-2] == config.tool_comfy.publisher_id
    assert config.tool_comfy.web is None  # WEB_DIRECTORY serves the web files; ComfyUI would serve them twice
    assert config.project.supported_os == ["POSIX :: Linux"]
    assert config.project.supported_accelerators == ["GPU :: NVIDIA CUDA"]
    tested = re.search(r'__version__ = "(.+)"', (comfyui / "comfyui_version.py").read_text())[1]
    assert SpecifierSet(config.project.supported_comfyui_version).contains(tested)
