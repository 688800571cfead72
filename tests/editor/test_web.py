"""The editor's side: the pure functions of its JavaScript, by Node's own test runner."""

from __future__ import annotations

import shutil
import subprocess

from demo.host import REPOSITORY


def test_the_pure_functions_of_the_javascript() -> None:
    node = shutil.which("node")
    assert node, "no Node.js on the PATH; what dev.py sets up has one, from tests/requirements.txt"
    tests = sorted(map(str, (REPOSITORY / "tests" / "web").glob("*.test.mjs")))
    assert tests
    run = subprocess.run([node, "--test", *tests], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
