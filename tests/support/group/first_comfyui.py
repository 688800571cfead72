"""`python -m tests.support.group.first_comfyui COMFYUI BASE`: a ComfyUI in a machine's network namespace, which only
programs in the same one reach. It is told by lines on stdin.

A line is JSON: prompt, and the file to write its latents to. Each is answered by a line: the newest sampling of the
first worker group (empty if there is none), and the ranks' processes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from safetensors.torch import save_file

from demo.host import ComfyHost
from tests.conftest import EXTRA_ARGS, HOST_ENV
from tests.support.host.graphs import latents, runs, status


def main(comfyui: str, base: str) -> None:
    with ComfyHost(Path(comfyui), Path(base), extra_args=EXTRA_ARGS, env=HOST_ENV) as host:
        for line in sys.stdin:
            order = json.loads(line)
            found = latents(host, order["prompt"], as_stock=True)
            save_file({"latents": found.contiguous()}, order["file"])
            run, *_ = [*runs(host), {}]
            print(json.dumps({"run": run, "pids": status(host).get("pids", [])}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
