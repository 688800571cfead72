"""The kinds of accelerators, and everything that depends on them. No other module names a kind.

cuda means NVIDIA, and AMD if torch is built for ROCm; xpu means Intel. torch has a module for each kind (`torch.cuda`,
`torch.xpu`) with the same functions. We use `torch.accelerator`, which covers all kinds, only to find the kind and for
what those modules lack. Be careful with it: in torch 2.8, the oldest that requirements.txt allows, it may name an
accelerator that does not exist, and it has no functions for memory.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from .errors import RequestError, format_bytes, is_out_of_memory

CPU = "cpu"
BACKENDS = {CPU: "gloo", "cuda": "nccl", "xpu": "xccl"}  # torch.distributed's backend for each kind
THROUGH_THE_HOST = {"cuda": "NCCL_P2P_DISABLE=1", "xpu": "CCL_TOPO_P2P_ACCESS=0"}  # make GPUs exchange over the host
CHANNELS = 32  # the most that NCCL uses by itself
WARM = 64  # the width of the tensors that `warm_up` computes with
KIBIBYTE = 1024  # Linux counts a process's memory in these
SAME_MEMORY = 0.05  # cards of one model report memory within this; models of one name differ by more


class Card(NamedTuple):
    """One accelerator of this machine. index: torch's. total: its memory in bytes. capability: (0, 0) without one."""

    index: int
    name: str
    total: int
    capability: tuple[int, int] = (0, 0)

    def is_like(self, other: Card) -> bool:
        return (self.name, self.capability) == (other.name, other.capability) and abs(
            self.total - other.total
        ) <= SAME_MEMORY * other.total

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name}, {self.total / (1 << 30):.0f} GB)"


def check_kind(kind: str) -> str:
    """Returns the kind. Raises RequestError if ranks cannot compute on it."""
    if kind not in BACKENDS:
        *others, last = BACKENDS
        raise RequestError(
            f"The ranks cannot compute on {kind}. They can on {', '.join(others)} (NVIDIA and AMD) and {last} (Intel).",
            "Compute on the CPU: set PARALLELDIT_DEVICE=cpu, or in a script call start_distributed('cpu').",
        )
    return kind


def default_kind() -> str:
    """Returns the kind of this machine's accelerator, or the CPU if there is none. Raises what `check_kind` raises."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return check_kind(found.type) if found else CPU


def group_backends(kind: str) -> str:
    """Returns torch.distributed's backends for the CPU and this kind. Raises RequestError if torch lacks one."""
    import torch.distributed as dist

    backend = BACKENDS[kind]
    if not dist.is_available() or not dist.is_backend_available(backend):
        raise RequestError(
            f"torch {torch.__version__} has no {backend}, which {kind} devices need to exchange data.",
            "Install a torch that has it (xccl: 2.8 or newer, for XPU), or set PARALLELDIT_DEVICE=cpu.",
        )
    return backend if kind == CPU else f"{CPU}:{BACKENDS[CPU]},{kind}:{backend}"


def group_options(device: torch.device, backend: str, side_by_side: int) -> Any:
    """Returns options for one of NCCL's groups; None for other backends.

    Its stream has high priority, because kernels of a normal one would wait behind attention's. If its kernels run
    beside those of others, as many channels as fit the device: a channel takes a multiprocessor. NCCL rounds channels
    for messages up to a power of two.
    """
    if backend != BACKENDS["cuda"]:
        return None
    import torch.distributed as dist

    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    channels = max(1, module_of(device).get_device_properties(device).multi_processor_count // side_by_side)
    if channels < CHANNELS:
        options.config.max_ctas = 1 << (channels.bit_length() - 1)
    return options


def module_of(kind: torch.device | str) -> Any:
    """Returns torch's module for a kind or a device."""
    return torch.get_device_module(kind)


def count(kind: str) -> int:
    """Counts the accelerators of this kind."""
    return module_of(kind).device_count()


def cards(kind: str) -> list[Card]:
    """Returns the accelerators of this kind, in torch's order."""
    found = (module_of(kind).get_device_properties(index) for index in range(count(kind)))
    return [
        Card(index, each.name, each.total_memory, (getattr(each, "major", 0), getattr(each, "minor", 0)))
        for index, each in enumerate(found)
    ]


def like_first(among: Sequence[Card]) -> tuple[list[Card], list[Card]]:
    """Splits cards into those like the first, including it, which an automatic plan uses, and the others."""
    alike = [card for card in among if card.is_like(among[0])]
    return alike, [card for card in among if card not in alike]


def in_rank_order(among: Sequence[Card], chosen: Sequence[int] = ()) -> list[Card]:
    """Returns the cards in the ranks' order: the first, those like it, then the others. chosen: of these numbers only;
    empty for all.

    The order depends only on the cards, so every process finds the same.
    """
    alike, others = like_first([card for card in among if not chosen or card.index in chosen])
    return [*alike, *others]


def select(kind: str, local_rank: int, chosen: Sequence[int] = ()) -> torch.device:
    """Makes a rank's card the current one, and returns it. chosen: as in `in_rank_order`."""
    device = torch.device(kind, in_rank_order(cards(kind), chosen)[local_rank].index)
    module_of(kind).set_device(device)
    return device


def is_accelerator(device: torch.device) -> bool:
    return device.type != CPU and device.type in BACKENDS


def name_of(device: torch.device) -> str:
    """Returns a device's name, to show to people."""
    return module_of(device).get_device_name(device) if is_accelerator(device) else str(device)


def pci_address(device: torch.device) -> str:
    """Returns where a card is on the PCI bus, as Linux names it. Empty if torch does not tell: on XPU, and in older
    releases."""
    found = module_of(device).get_device_properties(device)
    parts = [getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return "" if None in parts else "{:04x}:{:02x}:{:02x}.0".format(*parts)


def nvidia_capability(device: torch.device) -> tuple[int, int] | None:
    """Returns NVIDIA's compute capability; None for other makers' devices, which cannot run NVIDIA's kernels."""
    if device.type != "cuda" or torch.version.hip:
        return None
    return module_of(device).get_device_capability(device)


def has_cuda(device: torch.device) -> bool:
    """Whether CUDA or ROCm runs a device. They alone have attention kernels that return the log-sum-exp of the scores,
    abort groups of ranks, and pin existing host memory."""
    return device.type == "cuda"


def synchronise(device: torch.device) -> None:
    """Waits until an accelerator has finished all its work."""
    if is_accelerator(device):
        module_of(device).synchronize(device)


def warm_up(device: torch.device) -> None:
    """Runs an accelerator's first products and attention, and does nothing else with it: loading their libraries and
    kernels takes seconds, which the first step need not wait for. Does nothing if the device has too little memory."""
    if not is_accelerator(device):
        return
    try:
        query = torch.ones(1, 2, WARM, WARM, dtype=torch.bfloat16, device=device)
        attended = torch.nn.functional.scaled_dot_product_attention(query, query, query)
        torch.nn.functional.layer_norm(torch.nn.functional.linear(attended, query[0, 0]), (WARM,))
        synchronise(device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        empty_caches(device)


def make_current(device: torch.device) -> None:
    """Makes an accelerator the calling thread's. A new thread has the first one, and would start it if it asked."""
    module_of(device).set_device(device)


def pin(host: torch.Tensor, device: torch.device) -> bool:
    """Pins existing host memory for copies to and from CUDA, until the tensor is freed. Returns whether it could.

    `Pinner` calls it. torch's own pinned memory is rounded up to a power of two, and cannot be shared with other
    processes. There, torch waits for copies under way before it reuses memory; here, `unpin` does.
    """
    runtime: Any = torch.cuda.cudart()
    address = host.data_ptr()
    if runtime.cudaHostRegister(address, host.nbytes, 0) != runtime.cudaError.success:
        return False
    weakref.finalize(host, unpin, runtime, address, device).atexit = False  # a kernel may never end
    return True


def unpin(runtime: Any, address: int, device: torch.device) -> None:
    """Unpins memory after the device's copies to and from it. Any thread may call it."""
    synchronise(device)
    runtime.cudaHostUnregister(address)


class Pinner:
    """Pins host memory piece by piece in a thread of its own, while its caller fills the next pieces. Pinned memory is
    copied to and from a device several times as fast.

    Nothing else runs in that thread: CUDA keeps a failure for a thread's next kernel, which would raise it. Memory that
    cannot be pinned stays as it is, and no later piece is tried.
    pinned, refused: bytes. seconds: that pinning took. waited: the seconds that somebody waited for it.
    """

    def __init__(self, device: torch.device) -> None:
        """device: whose copies the memory is for. Where memory cannot be pinned for it, nothing is done."""
        self.device = device
        self.pinned = self.refused = 0
        self.seconds = self.waited = 0.0
        self.underway: deque[Future[None]] = deque()
        self.pool = ThreadPoolExecutor(1, "paralleldit-pin", make_current, (device,)) if has_cuda(device) else None

    def add(self, host: torch.Tensor) -> None:
        """Begins to pin this memory, until the tensor is freed. Pieces must not share a page."""
        if self.pool and host.numel():
            self.underway.append(self.pool.submit(self._pin, weakref.ref(host)))

    def wait(self, pieces: int | None = None) -> None:
        """Waits for so many pieces, the earliest first; by default for all."""
        started = time.perf_counter()
        for _ in range(len(self.underway) if pieces is None else min(pieces, len(self.underway))):
            self.underway.popleft().result()
        self.waited += time.perf_counter() - started

    def _pin(self, reference: weakref.ref[torch.Tensor]) -> None:
        host = reference()
        if host is None:  # the caller has given up
            return
        started = time.perf_counter()
        if not self.refused and pin(host, self.device):
            self.pinned += host.nbytes
        else:
            self.refused += host.nbytes
            warn_of_refusal()
        self.seconds += time.perf_counter() - started

    def __str__(self) -> str:
        return (
            f"{format_bytes(self.pinned)} of {format_bytes(self.pinned + self.refused)} of RAM pinned in "
            f"{self.seconds:.1f} s, of which {self.waited:.1f} s were waited for"
        )


@functools.cache
def warn_of_refusal() -> None:
    """Says once for a process that memory cannot be pinned."""
    logging.warning(
        "The system does not let RAM be pinned, so copies between it and the GPU are slower. Raise the limit of locked "
        "memory (ulimit -l; docker run --ulimit memlock=-1), or leave more RAM free."
    )


def pin_now(host: torch.Tensor, device: torch.device) -> None:
    """Pins memory, until the tensor is freed, and returns once that is done or refused."""
    pinner = Pinner(device)
    pinner.add(host)
    pinner.wait()


def copier(device: torch.device) -> Callable[[torch.Tensor, torch.Tensor], Callable[[], None]]:
    """Returns a function that copies bytes to a device beside its other work. On the CPU it copies at once.

    The copy begins when the device's earlier work is done. It returns a function that makes the device's later work,
    but not the host, wait for the copy.
    """
    if not is_accelerator(device):

        def copy_now(target: torch.Tensor, source: torch.Tensor) -> Callable[[], None]:
            target.copy_(source)
            return lambda: None

        return copy_now
    module = module_of(device)
    stream = module.Stream(device)

    def copy(target: torch.Tensor, source: torch.Tensor) -> Callable[[], None]:
        stream.wait_stream(module.current_stream(device))
        with module.stream(stream):
            target.copy_(source, non_blocking=True)
        done = stream.record_event()
        return lambda: module.current_stream(device).wait_event(done)

    return copy


def empty_caches(device: torch.device) -> None:
    """Gives back the memory that torch caches on an accelerator, and the pinned host memory that it caches."""
    if is_accelerator(device):
        module_of(device).empty_cache()
        memory = getattr(torch.accelerator, "memory", None)  # since torch 2.9; older releases keep pinned memory
        getattr(memory, "empty_host_cache", lambda: None)()


def trim_heap() -> None:
    """Gives freed memory of the CPU back to the system. The C library keeps it otherwise."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc and hasattr(libc, "malloc_trim"):  # glibc has it
        libc.malloc_trim(0)


def total_bytes(device: torch.device) -> int:
    """Returns an accelerator's memory in bytes."""
    return module_of(device).get_device_properties(device).total_memory


def free_bytes(device: torch.device) -> int:
    """Returns the memory that no process uses. If Intel's driver cannot tell: the memory that this process does not
    use."""
    try:
        return module_of(device).mem_get_info(device)[0]
    except RuntimeError:
        return total_bytes(device) - reserved_bytes(device)


def available_device_bytes(device: torch.device) -> int:
    """Returns the memory that new tensors of this process could still use."""
    return free_bytes(device) + reserved_bytes(device) - allocated_bytes(device)


def allocated_bytes(device: torch.device) -> int:
    """Returns the memory that this process's tensors use."""
    return module_of(device).memory_allocated(device)


def reserved_bytes(device: torch.device) -> int:
    """Returns the memory that this process uses, including torch's cache."""
    return module_of(device).memory_reserved(device)


def outside_bytes(device: torch.device) -> int:
    """Returns the memory that is not this process's torch's: contexts, and what others use. 0 on the CPU."""
    return total_bytes(device) - free_bytes(device) - reserved_bytes(device) if is_accelerator(device) else 0


def peak_bytes(device: torch.device) -> int:
    """Returns the most memory that this process's tensors have used. On the CPU: that the whole process has used."""
    if is_accelerator(device):
        return module_of(device).max_memory_allocated(device)
    import resource  # Windows has none

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE


def to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies tensors to host memory. The host waits once for all of them; on devices that ranks do not know, for
    each."""
    found = [tensor.to(CPU, non_blocking=is_accelerator(tensor.device)) for tensor in tensors]
    for device in {tensor.device for tensor in tensors if is_accelerator(tensor.device)}:
        wait_for_stream(device)
    return found


def new_event(device: torch.device) -> torch.Event:
    """Creates an event that records when an accelerator's work reached it."""
    return module_of(device).Event(enable_timing=True)


def wait_for_stream(device: torch.device) -> None:
    """Waits until an accelerator has finished the work in its current stream."""
    module_of(device).current_stream(device).synchronize()


def generators(device: torch.device) -> list[torch.Generator]:
    """Returns the default random generators: the CPU's, and the device's."""
    own = [module_of(device).default_generators[device.index]] if is_accelerator(device) else []
    return [torch.default_generator, *own]
