"""The kinds of accelerator that ranks compute on, and all that is asked of them: no other module names a kind.

cuda is NVIDIA's, and AMD's where torch is built for ROCm, which goes by cuda's names; xpu is Intel's. Each kind has a
module of torch (`torch.cuda`, `torch.xpu`) that answers in the same words. `torch.accelerator`, which answers for all
kinds, is asked which there is and for what those lack, and with care: in torch 2.8, the oldest that requirements.txt
allows, it names an accelerator that is not there, and knows nothing of memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from .errors import DeviceError

CPU = "cpu"
BACKENDS = {CPU: "gloo", "cuda": "nccl", "xpu": "xccl"}  # of torch.distributed, by kind
THROUGH_THE_HOST = {"cuda": "NCCL_P2P_DISABLE=1", "xpu": "CCL_TOPO_P2P_ACCESS=0"}  # variables, for what GPUs exchange
SAME_MEMORY = 0.05  # cards of a model differ by less in what they say of it, and models of a name by more


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


def checked_kind(kind: str) -> str:
    """The kind. Raises DeviceError for one that ranks cannot compute on."""
    if kind not in BACKENDS:
        *others, last = BACKENDS
        raise DeviceError(
            f"The ranks cannot compute on {kind}, but on {', '.join(others)} (NVIDIA and AMD) and {last} (Intel).",
            "Compute on the CPU: set PARALLELDIT_DEVICE=cpu, or in a script call start_distributed('cpu').",
        )
    return kind


def default_kind() -> str:
    """The kind of this machine's accelerator, or the CPU where there is none. Raises DeviceError as `checked_kind`."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return checked_kind(found.type) if found else CPU


def group_backends(kind: str) -> str:
    """What torch.distributed is to use for the CPU and for this kind. Raises DeviceError where torch lacks it."""
    import torch.distributed as dist

    backend = BACKENDS[kind]
    if not dist.is_backend_available(backend):
        raise DeviceError(
            f"torch {torch.__version__} has no {backend}, by which {kind} devices exchange data.",
            "Install a torch that has it (xccl: 2.8 or newer, for XPU), or set PARALLELDIT_DEVICE=cpu.",
        )
    return backend if kind == CPU else f"{CPU}:{BACKENDS[CPU]},{kind}:{backend}"


def module_of(kind: torch.device | str) -> Any:
    """Torch's module for a kind, or a device's."""
    return torch.get_device_module(kind)


def count(kind: str) -> int:
    """How many accelerators of this kind there are."""
    return module_of(kind).device_count()


def cards(kind: str) -> list[Card]:
    """The accelerators of this kind, in torch's order, of which ComfyUI uses the first."""
    found = (module_of(kind).get_device_properties(index) for index in range(count(kind)))
    return [
        Card(index, each.name, each.total_memory, (getattr(each, "major", 0), getattr(each, "minor", 0)))
        for index, each in enumerate(found)
    ]


def like_first(among: Sequence[Card]) -> tuple[list[Card], list[Card]]:
    """The first card and those like it, which an automatic plan uses; and the others."""
    alike = [card for card in among if card.is_like(among[0])]
    return alike, [card for card in among if card not in alike]


def select(kind: str, local_rank: int) -> torch.device:
    """The card of a rank, which is made the current one: those like the first come before the others.

    On every machine, and in ComfyUI as in its ranks, the order is the same, since it follows from the cards alone.
    """
    alike, others = like_first(cards(kind))
    device = torch.device(kind, [*alike, *others][local_rank].index)
    module_of(kind).set_device(device)
    return device


def is_accelerator(device: torch.device) -> bool:
    return device.type != CPU and device.type in BACKENDS


def name_of(device: torch.device) -> str:
    """What a person knows a device by."""
    return module_of(device).get_device_name(device) if is_accelerator(device) else str(device)


def nvidia_capability(device: torch.device) -> tuple[int, int] | None:
    """NVIDIA's compute capability; None for a device of another maker, for which their kernels are not."""
    if device.type != "cuda" or torch.version.hip:
        return None
    return module_of(device).get_device_capability(device)


def tells_lse(device: torch.device) -> bool:
    """Whether torch's kernels of attention return the log-sum-exp of the scores: CUDA's do, and ROCm's."""
    return device.type == "cuda"


def can_be_aborted(device: torch.device) -> bool:
    """Whether a group of such devices can be made to end what it does: NCCL's and RCCL's can, and not xccl's."""
    return device.type == "cuda"


def synchronise(device: torch.device) -> None:
    """Waits until an accelerator has done what it was given."""
    if is_accelerator(device):
        module_of(device).synchronize(device)


def pin(host: torch.Tensor, device: torch.device) -> None:
    """Pins host memory where it lies, until nothing refers to this tensor, for copies to and from CUDA's: torch's
    own pinned memory is rounded up to a power of two, and no other process's. Does nothing where it cannot be had.
    """
    runtime = torch.cuda.cudart() if device.type == "cuda" else None
    if runtime is None or not host.numel():
        return
    address = host.data_ptr()
    if runtime.cudaHostRegister(address, host.nbytes, 0) == runtime.cudaError.success:
        weakref.finalize(host, runtime.cudaHostUnregister, address)


def copier(device: torch.device) -> Callable[[torch.Tensor, torch.Tensor], Callable[[], None]]:
    """What copies bytes to a device beside its other work: it begins once what was given to the device before has been
    done, and what it returns has what is given next wait for it, and not the host. On the CPU it copies at once."""
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
    """Gives back an accelerator's memory that torch keeps for later, and the host's that is pinned for it."""
    if is_accelerator(device):
        module_of(device).empty_cache()
        memory = getattr(torch.accelerator, "memory", None)  # since torch 2.9; older releases keep pinned memory
        getattr(memory, "empty_host_cache", lambda: None)()


def total_bytes(device: torch.device) -> int:
    """An accelerator's memory."""
    return module_of(device).get_device_properties(device).total_memory


def free_bytes(device: torch.device) -> int:
    """What of an accelerator's memory no process has; where Intel's driver does not tell, what this one has not."""
    try:
        return module_of(device).mem_get_info(device)[0]
    except RuntimeError:
        return total_bytes(device) - reserved_bytes(device)


def available_bytes(device: torch.device) -> int:
    """What of an accelerator's memory tensors of this process could still have."""
    return free_bytes(device) + reserved_bytes(device) - allocated_bytes(device)


def allocated_bytes(device: torch.device) -> int:
    """Of an accelerator's memory, what this process's tensors have."""
    return module_of(device).memory_allocated(device)


def reserved_bytes(device: torch.device) -> int:
    """Of an accelerator's memory, what this process has, torch's cache included."""
    return module_of(device).memory_reserved(device)


def new_event(device: torch.device) -> torch.Event:
    """A mark for a place in an accelerator's work, which tells when it was reached."""
    return module_of(device).Event(enable_timing=True)


def wait_for_stream(device: torch.device) -> None:
    """Waits until an accelerator has done what is in its current stream."""
    module_of(device).current_stream(device).synchronize()


def generators(device: torch.device) -> list[torch.Generator]:
    """What random numbers come from by default: on the CPU, and on the device."""
    own = [module_of(device).default_generators[device.index]] if is_accelerator(device) else []
    return [torch.default_generator, *own]
