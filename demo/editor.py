"""The editor: starts ComfyUI with this pack on what the demo set up, and says where it opens on the demo's workflow.

python3 dev.py editor      # sets everything up, then runs this, until Ctrl-C
"""

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Sequence
from pathlib import Path

from . import left_out
from .host import PACK_NAME, HostError, environment, open_url, prepare_base
from .run import BASE

PORT = 8188
JOIN_SECONDS = 2.0  # to show the last words
LEFT_OUT = "This set-up leaves out ComfyUI's own templates and its GLSL nodes, which the demo does not need."
SEEN = "Comfy.TutorialCompleted"  # without it, the editor opens on nothing in place of a workflow that lacks its files


def prepare(base: Path) -> None:
    """Makes the base folder one whose editor opens as to a newcomer. Raises HostError."""
    prepare_base(base)
    settings = base / "user" / "default" / "comfy.settings.json"
    kept = json.loads(settings.read_text())
    kept.pop(SEEN, None)
    settings.write_text(json.dumps(kept))


def command(comfyui: Path, base: Path, gpu: bool, arguments: Sequence[str]) -> list[str]:
    """What starts ComfyUI. Its database is in the base folder, too: the folder of its own that it would use is not
    there."""
    database = (base / "user" / "comfyui.db").resolve()
    options = ["--base-directory", str(base), "--database-url", f"sqlite:///{database}", *([] if gpu else ["--cpu"])]
    return [sys.executable, str(comfyui / "main.py"), *options, *arguments]


def address(arguments: Sequence[str]) -> str:
    """Where the editor opens on the demo's workflow."""
    known = argparse.ArgumentParser(add_help=False)
    known.add_argument("--port", type=int, default=PORT)
    port = known.parse_known_args(arguments)[0].port
    return f"http://127.0.0.1:{port}/?template=demo&source={PACK_NAME}"


def run(comfyui: Path, gpu: bool, arguments: Sequence[str], base: Path = BASE) -> int:
    """Runs ComfyUI to its end; its exit code. Raises HostError."""
    prepare(base)
    url = address(arguments)
    start, env = command(comfyui, base, gpu, arguments), environment(comfyui)
    process = subprocess.Popen(start, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    shown = threading.Thread(target=left_out.show, args=(process.stdout, sys.stdout.buffer), daemon=True)
    shown.start()
    try:
        while process.poll() is None:
            try:
                open_url(url, timeout=5).close()
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
                continue
            print(f"\nThe demo's workflow: {url}\n{LEFT_OUT}\nCtrl-C ends it.\n", flush=True)
            break
        return process.wait()
    finally:
        process.terminate()
        process.wait()
        shown.join(JOIN_SECONDS)


def main() -> int:
    """Command line of the editor; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo.editor", description="Run ComfyUI's editor on the demo.")
    parser.add_argument("--comfyui", type=Path, required=True, help="the folder that holds ComfyUI's main.py")
    parser.add_argument("--gpu", action="store_true", help="let ComfyUI itself use the GPU")
    options, arguments = parser.parse_known_args()
    # An exception ends ComfyUI on the way out; SIGTERM alone would leave it behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return run(options.comfyui, options.gpu, arguments)
    except HostError as error:
        print(f"editor: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
