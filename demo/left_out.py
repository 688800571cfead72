"""Shows the start of ComfyUI without what it says of packages that the set-up leaves out on purpose."""

import re
from typing import IO

# ComfyUI's own templates are large, and its GLSL nodes need a GPU's libraries.
NAMES = (
    *(b"comfyui-workflow-templates is not installed", b"comfy_angle", b"nodes_glsl"),
    b"comfy_extras/ nodes did not import",
)
FOLLOWING = (b"new missing dependencies", b"Please do a: pip install")  # what ComfyUI says after the last of these
SERVES = b"To see the GUI go to"
RECORD = re.compile(rb"(?:\x1b\[[\d;]*m)*\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\]")
PIECE = 1 << 12


def show(source: IO[bytes], target: IO[bytes]) -> None:
    """Copies ComfyUI's output to its end. Until it serves, log records that name what is left out are held back; if it
    ends before that, they come last, since they may say why."""
    held: list[bytes] = []
    record: list[bytes] = []

    def pass_on() -> None:
        text = b"".join(record)
        record.clear()
        is_blank = bool(held) and not RECORD.sub(b"", text).replace(b"\x1b[0m", b"").strip()
        if is_blank or any(name in text for name in (*NAMES, *FOLLOWING)):
            held.append(text)
        else:
            target.write(text)
            target.flush()

    for line in iter(source.readline, b""):
        if RECORD.match(line):
            pass_on()
        record.append(line)
        if SERVES in line:
            pass_on()
            break
    else:
        pass_on()
        target.write(b"".join(held))
    while piece := source.read1(PIECE):  # type: ignore[attr-defined]  (a pipe's buffered reader has it)
        target.write(piece)
        target.flush()
    target.flush()
