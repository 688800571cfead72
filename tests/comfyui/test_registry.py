"""What ComfyUI's registry asks of a pack: metadata that ComfyUI reads as meant. `dev.py check` has its lint rules,
`tests/pack/test_published.py` the rest."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from demo.host import REPOSITORY


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
