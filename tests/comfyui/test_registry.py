"""What ComfyUI's registry asks of a pack: metadata that ComfyUI reads as meant, lint rules, an archive.
`tests/pack/test_published.py` has the rest."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from demo.host import REPOSITORY

RULES = "S102,S307,E702"  # exec, eval, statements joined by semicolons


def test_comfyui_reads_the_metadata_as_it_is_meant(comfyui: Path) -> None:
    """Its types are the registry's."""
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


def test_no_line_breaks_the_registrys_lint_rules_or_is_exempt_from_them() -> None:
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--ignore-noqa", "--no-cache", "--select", RULES]
    found = subprocess.run(
        [*command, "--exclude", ".host,.venv,.venv-lowest", str(REPOSITORY)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_what_the_registrys_archive_has_needs_nothing_that_it_leaves_out() -> None:
    lines = (REPOSITORY / ".comfyignore").read_text().splitlines()
    left_out = {line.strip("/") for line in lines if line and not line.startswith("#")}
    assert all((REPOSITORY / name).is_dir() for name in left_out)
    for folder in ("nodes", "worker", "parallel_backend", "demo"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            assert not imported(path) & left_out, path


def imported(path: Path) -> set[str]:
    """The top-level names that a file imports absolutely."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.partition(".")[0])
    return names
