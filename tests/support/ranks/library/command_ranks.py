"""`library.command_ranks OUT ARGUMENT…`: the command of `python -m parallel_backend`.

Each rank's exit code and what it printed are in OUT/told.RANK.json.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

from parallel_backend.__main__ import main as command
from tests.support.ranks.leaving import end, leave


def main(out: str, *arguments: str) -> None:
    torch.set_num_threads(1)
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = command(arguments, patience=0)
    told = {"code": code, "printed": printed.getvalue(), "errors": errors.getvalue()}
    Path(out, f"told.{os.environ['RANK']}.json").write_text(json.dumps(told))
    if dist.is_initialized():  # it was refused: no rank leaves while another joins
        leave()
    end()
