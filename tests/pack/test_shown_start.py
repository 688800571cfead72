"""The start of ComfyUI as `dev.py editor` shows it: without what the set-up leaves out, and whole if it fails."""

from __future__ import annotations

import io

import pytest

from demo import left_out

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
