"""Of a node pack's own package, ranks get the plain values that the code there imports, and no others."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from worker.inside.code_files import CodeFiles
from worker.inside.encoder import Encoder

FILES = {
    "__init__.py": "KEY, LIMIT, LATER, SIZE, __version__ = 'secret of a service', 3, 5, 7, '1'\n",
    "code.py": "from .other import double\n\n\ndef run(value):\n    return double(value)\n",
    "other.py": "from . import LIMIT\n\n\ndef double(value):\n    return LIMIT * value\n",
    "inner/__init__.py": "from .. import LATER\n",
    "inner/late.py": "from .. import *\n\n\ndef late():\n    return SIZE + LATER\n",
    "service.py": "from . import KEY\n",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        file = tmp_path / "packs" / "keyed" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        os.utime(file, (time.time() - 1e6,) * 2)  # as if it had been there before this process began
    monkeypatch.syspath_prepend(tmp_path / "packs")
    importlib.import_module("keyed.service")
    return tmp_path


def test_a_rank_gets_the_values_that_its_code_imports_gathered_once_in_a_sampling(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[str] = []
    gather = CodeFiles.values_of_package
    noted = lambda files, place: (gathered.append(place), gather(files, place))[1]  # noqa: E731
    monkeypatch.setattr(CodeFiles, "values_of_package", noted)
    files = CodeFiles(str(root), [str(root / "packs")])
    run, late = importlib.import_module("keyed.code").run, importlib.import_module("keyed.inner.late").late
    encoder = Encoder(files, {}, {})

    def load(function: Any) -> ModuleType:
        """The function's module in a rank, after three calls of the model."""
        for _ in range(3):
            encoder.begin()
            encoder.encode(function)
        sent = json.dumps(encoder.changes())
        assert "secret" not in sent
        ((change),) = json.loads(sent)
        return files.load(change["new"][1]["code"][0])

    there = load(run)
    package = sys.modules[str(there.__package__)]
    assert there.run(2) == 6 and there.run is not run
    assert (package.LIMIT, hasattr(package, "LATER")) == (3, False)
    assert load(late).late() == 12
    assert (package.LATER, package.SIZE, hasattr(package, "KEY")) == (5, 7, False)
    assert gathered == ["1/keyed/code.py", "1/keyed/inner/late.py"]
