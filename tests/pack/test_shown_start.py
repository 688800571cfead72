"""The start of ComfyUI as `dev.py editor` shows it: without what the set-up leaves out, and whole if it fails."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from demo import left_out
from demo.host import REPOSITORY
from tests.support.group.direct_group import wait_until
from worker.launch.process import is_alive

OTHERS = b"""\x1b[32m[INFO]\x1b[0m Device: cpu
\x1b[33m[WARNING]\x1b[0m Traceback (most recent call last):
  File "custom_nodes/other/__init__.py", line 1, in <module>
ModuleNotFoundError: No module named 'other'

"""
LEFT_OUT = b"""\x1b[33m[WARNING]\x1b[0m Traceback (most recent call last):
  File "comfy_extras/nodes_glsl.py", line 12, in <module>
ModuleNotFoundError: No module named 'comfy_angle'

\x1b[33m[WARNING]\x1b[0m IMPORT FAILED: nodes_glsl.py
\x1b[33m[WARNING]\x1b[0m \n\x1b[33m[WARNING]\x1b[0m Please do a: pip install -r requirements.txt
\x1b[31m[ERROR]\x1b[0m ********** ERROR ***********

comfyui-workflow-templates is not installed.

********** ERROR ***********
"""
SERVES = b"\x1b[32m[INFO]\x1b[0m To see the GUI go to: http://127.0.0.1:8188\n"
LATER = b"[WARNING] comfy_angle, later\n 50%|#####     | 5/10\r"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (OTHERS + LEFT_OUT + SERVES + LATER, OTHERS + SERVES + LATER),
        (LEFT_OUT + b"Killed\n", LEFT_OUT + b"Killed\n"),
        (OTHERS + LEFT_OUT, OTHERS + LEFT_OUT),
    ],
)
def test_what_the_set_up_leaves_out_is_shown_only_if_comfyui_does_not_start(said: bytes, shown: bytes) -> None:
    target = io.BytesIO()
    left_out.show(io.BufferedReader(io.BytesIO(said)), target)
    assert target.getvalue() == shown


# As dev.py starts the editor, with a folder of its own.
EDITOR = """
import sys
from pathlib import Path
from demo import editor
editor.run.__defaults__ = (Path({base!r}),)
sys.argv[1:] = ["--comfyui", {comfyui!r}, "--port", "9"]
sys.exit(editor.main())
"""
DEV = """
import os, signal, sys
import dev
signal.signal(signal.SIGTERM, dev.terminated)
dev.call([sys.executable, "-c", {editor!r}], env=os.environ)
"""
COMFYUI = "import os, pathlib, time\npathlib.Path({pid!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_sigterm_ends_comfyui_if_a_script_has_started_the_editor_in_its_background(tmp_path: Path) -> None:
    """Where SIGINT is ignored, by every process that is started."""
    comfyui, pid = tmp_path / "ComfyUI", tmp_path / "pid"
    comfyui.mkdir()
    (comfyui / "main.py").write_text(COMFYUI.format(pid=str(pid)))
    editor = EDITOR.format(base=str(tmp_path / "base"), comfyui=str(comfyui))
    ignoring = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    started = subprocess.Popen(
        [sys.executable, "-c", DEV.format(editor=editor)], cwd=REPOSITORY, env=os.environ, preexec_fn=ignoring
    )
    try:
        assert wait_until(lambda: pid.exists() and pid.read_text() != "", 60)
        started.terminate()
        assert wait_until(lambda: not is_alive(int(pid.read_text())), 30)
    finally:
        started.kill()
        started.wait()
