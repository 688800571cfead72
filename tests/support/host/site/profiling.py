"""Profiles the steps of a ComfyUI and of its rank with torch's profiler, if PROFILE names a folder for the tables.

A table is of a few steps of stock (stock), of ComfyUI's process while a rank computes (comfyui), or of the rank (rank).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "PROFILE"
FIRST, LAST = 20, 28  # of a process's steps of a kind, those that are profiled
ROWS = 40


class Profile:
    def __init__(self, kind: str) -> None:
        self.file = Path(os.environ[VARIABLE]) / f"{kind}.txt"
        self.counter = itertools.count()
        self.profiler: Any = None

    def note_step(self) -> None:
        """Called before each step."""
        import torch.profiler

        step = next(self.counter)
        if step == FIRST:
            self.profiler = torch.profiler.profile()
            self.profiler.start()
        if step == LAST:
            self.profiler.stop()
            by = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
            table = self.profiler.key_averages().table(sort_by=by, row_limit=ROWS)
            self.file.write_text(f"{LAST - FIRST} steps\n{table}\n")


def profile_rank(module: Any) -> None:
    execute, profile = module.Executor.execute, Profile("rank")

    def profiled(self: Any, header: Any, tensors: Any) -> Any:
        if header.get("op") == "call":
            profile.note_step()
        return execute(self, header, tensors)

    module.Executor.execute = profiled


def profile_comfyui(module: Any) -> None:
    apply, profiles = module.BaseModel.apply_model, {kind: Profile(kind) for kind in ("stock", "comfyui")}

    def profiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        profiles["comfyui" if "parallel_module" in vars(self.diffusion_model) else "stock"].note_step()
        return apply(self, *args, **kwargs)

    module.BaseModel.apply_model = profiled


CHANGES: dict[str, Callable[[Any], None]] = (
    {"worker.rank.executor": profile_rank, "comfy.model_base": profile_comfyui} if os.environ.get(VARIABLE) else {}
)
