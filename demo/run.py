"""The demo: starts ComfyUI with this pack, runs example_workflows/demo.json, leaves the image in demo.png.

python3 dev.py demo        # sets everything up, then runs this
"""

import argparse
import json
import shutil
import signal
import sys
import time
from pathlib import Path

from .host import REPOSITORY, ComfyHost, HostError, PromptError
from .workflow import WorkflowError, api_prompt

BASE = REPOSITORY / ".host" / "base"
WORKFLOW = REPOSITORY / "example_workflows" / "demo.json"
IMAGE = REPOSITORY / "demo.png"


class DemoError(RuntimeError):
    """The demo can't be run, or gave no image."""


class Progress:
    """Prints a line for each node that starts and each step that ends."""

    def __init__(self, prompt: dict) -> None:
        self._titles = {node_id: node["_meta"]["title"] for node_id, node in prompt.items()}
        self._began = time.monotonic()

    def __call__(self, event: dict) -> None:
        content = event.get("data", {})
        if event["type"] == "executing" and content.get("node") in self._titles:
            self._say(self._titles[content["node"]])
        elif event["type"] == "progress":
            self._say(f"  step {content['value']}/{content['max']}")

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  {text}", flush=True)


def saved_image(host: ComfyHost, entry: dict) -> Path:
    """The first image that the prompt saved. Raises DemoError where there is none."""
    for output in entry["outputs"].values():
        for image in output.get("images", []):
            if image["type"] == "output":
                return host.output_file(image)
    raise DemoError("the workflow ended without saving an image: it needs a Save Image node.")


def run(comfyui: Path, gpu: bool) -> Path:
    """Run the demo's workflow; returns the image's path. Raises DemoError, HostError, PromptError, WorkflowError."""
    if not WORKFLOW.is_file():
        raise DemoError(f"{WORKFLOW} is missing: the demo runs that workflow.")
    began = time.monotonic()
    print("starting ComfyUI ...", flush=True)
    with ComfyHost(comfyui, BASE, cpu=not gpu) as host:
        print(f"  {time.monotonic() - began:.1f} s, {host.url}, log: {host.log}", flush=True)
        prompt = api_prompt(json.loads(WORKFLOW.read_text(encoding="utf-8")), host.object_info())
        began = time.monotonic()
        entry = host.run(prompt, on_event=Progress(prompt), timeout=1800)
        shutil.copyfile(saved_image(host, entry), IMAGE)
    print(f"{IMAGE} ({time.monotonic() - began:.1f} s)", flush=True)
    return IMAGE


def main() -> int:
    """Command line of the demo; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m demo.run", description="Run the demo's workflow in a real ComfyUI."
    )
    parser.add_argument("--comfyui", type=Path, required=True, help="the folder that holds ComfyUI's main.py")
    parser.add_argument("--gpu", action="store_true", help="let ComfyUI itself use the GPU")
    arguments = parser.parse_args()
    # An exception ends the host on the way out; SIGTERM alone would leave it behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        run(arguments.comfyui, arguments.gpu)
    except PromptError as error:
        where = f" in node {error.node_id}" if error.node_id else ""
        print(f"demo: the workflow failed{where}: {error}", file=sys.stderr)
        return 1
    except (DemoError, HostError, WorkflowError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
