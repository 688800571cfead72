"""Clocks the parts of a step in ComfyUI and in its rank, if CLOCKS names a folder. Each process writes a file there, of
lines with a part and the microseconds at which it began and ended.

The parts of ComfyUI's process are clocked from its second call of a parallel model on, when it has a session.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "CLOCKS"
STOCK, OURS, RANK = "stock", "ours", "rank"  # the parts that contain the others


@functools.cache
def open_file() -> int:
    return os.open(Path(os.environ[VARIABLE]) / f"{os.getpid()}.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)


def clocked(function: Callable, name_part: Callable[[Any], str]) -> Callable:
    """Returns a method that writes when it began and ended. name_part: names the part by the method's object."""

    @functools.wraps(function)
    def run(owner: Any, *given: Any, **named: Any) -> Any:
        part, began = name_part(owner), time.monotonic_ns()
        try:
            return function(owner, *given, **named)
        finally:
            os.write(open_file(), f"{part} {began // 1000} {time.monotonic_ns() // 1000}\n".encode())

    return run


@functools.cache
def clock(owner: type, method: str, part: str) -> None:
    setattr(owner, method, clocked(getattr(owner, method), lambda _: part))


def clock_comfyui(module: Any) -> None:
    def name_part(model: Any) -> str:
        remote = vars(model.diffusion_model).get("parallel_module")
        if remote is None:
            return STOCK
        if session := remote.group.session:
            clock(type(remote), "describe", "describe")
            clock(type(session.known.conditions), "diff", "compare")
            clock(type(session), "request", "request")
            clock(type(session.job_channel), "send", "send")
            clock(type(session.job_channel), "receive", "receive")
        return OURS

    module.BaseModel.apply_model = clocked(module.BaseModel.apply_model, name_part)


def clock_rank(module: Any) -> None:
    clock(module.Executor, "execute", RANK)


CHANGES: dict[str, Callable[[Any], None]] = (
    {"worker.rank.executor": clock_rank, "comfy.model_base": clock_comfyui} if os.environ.get(VARIABLE) else {}
)
