"""The state of one forward of the model. The hooks on the model read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Any

import torch

from .deferred import Deferred
from .exchange.differences import Differences


class StaleCache:
    """Keys and values of all tokens, by attention module: PipeFusion's only state (https://arxiv.org/abs/2405.14430).

    It belongs to one request. A forward over all patches fills it. A forward over a patch replaces that patch's
    entries.
    """

    def __init__(self) -> None:
        self.kept: dict[object, tuple[torch.Tensor, torch.Tensor]] = {}
        self.masks: dict[object, torch.Tensor] = {}  # over the keys; constant in a run

    def refresh(
        self, owner: object, ranges: list[tuple[int, int]], whole: bool, k_BhRD: torch.Tensor, v_BhRD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes fresh keys and values to `ranges`, pairs of start and length. Returns the keys and values of all
        tokens, BhCD."""
        if whole:
            self.kept[owner] = (k_BhRD.clone(), v_BhRD.clone())
        else:
            lengths = [length for _, length in ranges]
            for cached, fresh in zip(self.kept[owner], (k_BhRD, v_BhRD), strict=True):
                for (start, length), part in zip(ranges, fresh.split(lengths, 2), strict=True):
                    cached[:, :, start : start + length] = part
        return self.kept[owner]


@dataclass
class Forward:
    """One forward of the model on this rank. The fields from `lengths` on are for the hooks, and end with it."""

    # The patches that run: all, or one of PipeFusion's. Without PipeFusion there is one.
    running: list[int]
    # Keys and values of the tokens that do not run; None if all run.
    cache: StaleCache | None = None
    # The step of the run that this forward belongs to.
    step: int = 0
    # Which of the step's forwards this is: cond and uncond may run apart.
    index: int = 0
    # The image's tokens; 0 if it is not split into patches, None if its stream has other tokens, too.
    image_tokens: int | None = 0
    # What arrived in the steps before, under exchange_dtype=int4; None if nothing is kept.
    differences: Differences | None = None
    # By place in the model, tokens in full length of the patches that have run in this step; None if nobody reads them.
    finished: dict[object, torch.Tensor] | None = None
    # By stream, its tokens in each patch, known once the stream reaches a block.
    lengths: dict[str, list[int]] = field(default_factory=dict)
    # What is computed once, see `once`.
    known: dict[object, Any] = field(default_factory=dict)
    # How many kept keys the running block was given.
    kept: int = 0
    # Whether an argument had an entry for each frame or token. The model may use it to modulate its output, too.
    by_frame: bool = False
    # Whether the tokens of all ranks have been gathered.
    gathered: bool = False
    # Deferred work of the running block.
    deferred: list[Deferred] = field(default_factory=list)

    def once(self, key: object, compute: Callable[[], Any]) -> Any:
        """Computes something for all blocks once. They ask again and again, and the host must not keep a device
        waiting."""
        if key not in self.known:
            self.known[key] = compute()
        return self.known[key]

    def run_deferred(self) -> None:
        """Runs the deferred work while ranks exchange tensors."""
        while self.deferred:
            self.deferred.pop(0).get()


class NodeCode(IntEnum):
    """Which code runs in the model beside its own. More is greater."""

    UNKNOWN = auto()  # a script's
    NONE = auto()  # only the model's own
    INSIDE = auto()  # nodes' functions, which may write into what they get
    BETWEEN_BLOCKS = auto()  # these, and code that needs all tokens between the blocks


class ForwardSlot:
    """Holds the running forward. All hooks of one model share a slot, because forwards run one at a time.

    buffers: by name, the memory in which ranks send and receive messages. It stays for the request, or the sampling.
    patches: into how many the image is cut. code: which code runs in the model beside its own. has_all_tokens: whether
    all tokens are here now, because code runs that needs them, or a block that runs whole.
    """

    def __init__(self, patches: int = 1) -> None:
        self.patches = patches
        self.code, self.has_all_tokens = NodeCode.UNKNOWN, False
        self.buffers: dict[object, torch.Tensor] = {}
        self.forward = Forward(self.every_patch())

    def take_buffer(self, name: object, size: int, like: torch.Tensor) -> torch.Tensor:
        """Takes a buffer out of `buffers`, of at least `size` elements of the dtype of `like`, or makes one. Put it
        back when what is launched from then on may overwrite it.

        torch records NCCL's stream on messages. If their memory is freed, torch gives it to nobody until the host has
        learned that they have arrived, and the host runs far ahead."""
        buffer = self.buffers.pop(name, None)
        if buffer is None or buffer.dtype != like.dtype or len(buffer) < size:
            with torch.autograd.grad_mode.inference_mode(False):  # else only inference mode could write to it
                buffer = like.new_empty(size)
        return buffer

    def every_patch(self) -> list[int]:
        return list(range(self.patches))

    @contextmanager
    def enter(self, forward: Forward) -> Iterator[None]:
        """While entered, this forward is the running one."""
        outside, self.forward = self.forward, forward
        self.has_all_tokens = self.code is NodeCode.BETWEEN_BLOCKS
        try:
            yield
        finally:
            self.forward = outside
            self.has_all_tokens = self.code is NodeCode.BETWEEN_BLOCKS
