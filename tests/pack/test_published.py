"""What the Comfy registry and ComfyUI Manager ask of a pack, and what makes a release."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from PIL import Image

from demo.host import REPOSITORY

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

RAW = "https://raw.githubusercontent.com/paralleldit/ComfyUI-ParallelDiT/main/"
MOST_ICON, BANNER = 400, 21 / 9
CLASSIFIERS = re.compile(
    r"Operating System :: (OS Independent|Microsoft :: Windows|MacOS|POSIX :: Linux)"
    r"|Environment :: GPU :: (NVIDIA CUDA|AMD ROCm|Intel Arc|Apple Metal)"
)
PRODUCT = ("nodes", "parallel_backend", "worker")
RUNS = {"run", "call", "check_call", "check_output", "Popen", "system", "run_module"}
IN_BOUNDS = ("diffusers", "safetensors", "gguf")  # torch at its ends is as large as the set-up itself
ENDS_SECONDS = 900


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


def requirements() -> list[Requirement]:
    return [Requirement(line) for line in (REPOSITORY / "requirements.txt").read_text().split("\n") if line]


def test_the_project_has_every_field_that_the_registry_asks_for(project: dict[str, Any]) -> None:
    about, comfy = project["project"], project["tool"]["comfy"]
    assert re.fullmatch(r"[a-z](?:[a-z0-9]|[-_.](?=[a-z0-9])){0,98}", about["name"])
    assert re.fullmatch(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", about["version"])
    assert 0 < len(about["description"]) <= 200 and about["requires-python"]
    assert "comfyui" not in about["name"]  # which the registry advises against
    assert (REPOSITORY / about["license"]["file"]).read_text().lstrip().startswith("Apache License")
    assert about["urls"]["Repository"].startswith("https://github.com/")
    assert about["classifiers"] and all(map(CLASSIFIERS.fullmatch, about["classifiers"]))
    assert comfy["PublisherId"] and comfy["DisplayName"]
    assert re.fullmatch(r">=\d+\.\d+\.\d+", comfy["requires-comfyui"])


def test_icon_and_banner_are_files_of_the_repository_of_the_right_size(project: dict[str, Any]) -> None:
    comfy = project["tool"]["comfy"]
    for name, is_right in (
        ("Icon", lambda width, height: width == height <= MOST_ICON),
        ("Banner", lambda width, height: abs(width / height - BANNER) < 0.01),
    ):
        assert comfy[name].startswith(RAW)
        with Image.open(REPOSITORY / comfy[name].removeprefix(RAW)) as image:
            assert image.format in ("PNG", "JPEG", "GIF") and is_right(*image.size), name


def test_nothing_is_installed_at_run_time() -> None:
    assert not [name for name in ("install.py", "prestartup_script.py") if (REPOSITORY / name).exists()]
    for path in [REPOSITORY / "__init__.py", *(file for room in PRODUCT for file in (REPOSITORY / room).rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in RUNS:
                words = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
                assert not words & {"pip", "uv", "ensurepip"}, f"{path}:{node.lineno}"


def test_every_requirement_has_a_lower_and_an_upper_bound_between_which_it_is_installed_here() -> None:
    assert len(requirements()) >= 4
    for each in requirements():
        kinds = {bound.operator for bound in each.specifier}
        assert ">=" in kinds and (kinds & {"<"} or each.name == "safetensors"), each
        assert each.specifier.contains(version(each.name).partition("+")[0]), each


@pytest.mark.slow
@pytest.mark.parametrize("end", ["oldest", "newest"])
def test_the_engine_runs_at_both_ends_of_the_bounds(end: str, tmp_path: Path) -> None:
    wanted = [each for each in requirements() if each.name in IN_BOUNDS]
    if end == "oldest":
        bounds = ((each.name, bound) for each in wanted for bound in each.specifier)
        asked = [f"{name}=={bound.version}" for name, bound in bounds if bound.operator == ">="]
    else:
        asked = [str(each) for each in wanted]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), *asked]
    subprocess.run(install, check=True, timeout=ENDS_SECONDS)
    tests = ["tests/engine/test_library.py", "tests/engine/test_families.py"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "tests/pytest.ini", "-q", "-p", "no:cacheprovider", *tests],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=ENDS_SECONDS,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]


def test_a_releases_text_is_its_entry_of_the_changelog(project: dict[str, Any]) -> None:
    read_notes = runpy.run_path(str(REPOSITORY / ".ci" / "release_notes.py"))["read_notes"]
    changelog, toml = "# C\n\n## 0.2.0, 1 May\n\n- New.\n\n## 0.1.0\n\n- Old.\n", 'version = "0.2.0"\n'
    assert read_notes("0.2.0", changelog, toml) == "- New."
    for version_asked, log in (("0.1.0", changelog), ("0.2.0", "## Unreleased\n\n- New.\n")):
        with pytest.raises(ValueError, match=r"pyproject\.toml has version|no entry"):
            read_notes(version_asked, log, toml)
    texts = ((REPOSITORY / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "pyproject.toml"))
    assert read_notes(project["project"]["version"], *texts), "the present version has an entry"


def test_a_tag_publishes_the_pack_and_makes_the_release() -> None:
    workflow = (REPOSITORY / ".github" / "workflows" / "publish.yml").read_text()
    for part in ('tags: ["v*.*.*"]', "Comfy-Org/publish-node-action@", "REGISTRY_ACCESS_TOKEN", ".ci/release_notes.py"):
        assert part in workflow
    assert workflow.index("release_notes.py") < workflow.index("publish-node-action"), "no entry, no publication"
