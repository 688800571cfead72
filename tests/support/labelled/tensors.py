"""Tensors that say that they are on a GPU, and hold their values on the CPU: the engine's CUDA path runs, with numbers,
on a machine that has none.

While `on_gpu` is entered, whatever is made on or moved to a `cuda` device is such a tensor, collectives run over gloo,
and a `Watch` counts what would have the host wait for the GPU. What a GPU would refuse raises: tensors of two devices
in one operation, and what attention's kernels do not take.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from parallel_backend.models.parallel_mlp import SPLITS, split_plain_rows
from parallel_backend.seams.exchange.ring import is_before_ampere

from .watch import RUNTIME, Watch

GPU, CPU, META = torch.device("cuda", 0), torch.device("cpu"), torch.device("meta")
aten = torch.ops.aten
# Operations whose result the host has to see.
WAITS = (
    "aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::is_nonzero", "aten::masked_select",
    "aten::_unique2", "aten::unique_dim", "aten::repeat_interleave.Tensor",
)  # fmt: skip
CASTS = ("aten::_to_copy", "aten::to")
COPIES = (*CASTS, "aten::copy_")
INDEXED = ("aten::index", "aten::index_put_", "aten::_index_put_impl_")
# Operations that may have tensors of both devices.
MIXED = (*COPIES, *INDEXED)
ALIGNED_TO = {torch.float32: 4, torch.bfloat16: 8, torch.float16: 8}  # elements, of the efficient kernel's strides
FLASH_HEAD_DIM, TILE = 256, 32
ADA, AMPERE = (8, 9), (8, 0)  # compute capabilities: what is pretended, and the least of flash and of bf16
PADDED_TO = 16  # what torch pads a mask to


WATCH = Watch()


class Labelled(torch.Tensor):
    """A tensor on `GPU`, whose values are in `held`, on the CPU; views share them."""

    held: torch.Tensor
    counted: Callable[[], object]

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Labelled:
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=GPU
        )
        made.held = held
        made.counted = WATCH.memory.hold(made, held)
        return made

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Labelled) -> None:
        """As of any tensor: the values are another's from here on."""
        torch.Tensor.data.__set__(self, other)
        self.counted()
        self.held, self.counted = other.held, WATCH.memory.hold(self, other.held)

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self) -> str:  # ty: ignore
        return f"Labelled({tuple(self.shape)}, {self.dtype})"

    def __deepcopy__(self, _memo: dict) -> Labelled:
        return Labelled(self.held.clone())

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        WATCH.note("tolist")
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return run(func, types, args, kwargs or {})


class Labelling(TorchDispatchMode):
    """While entered, operations on a `cuda` device are made by `run`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; torch's guard against it takes as long as the rest of the mode."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return run(func, types, args, kwargs or {})


class Known(NamedTuple):
    """What an operation's schema says, which takes long to ask. waits: whether the host has to see its result."""

    name: str
    is_view: bool
    waits: bool
    mixes: bool


@functools.cache
def known_of(func: Any) -> Known:
    name = func._schema.name
    waits = name in WAITS or f"{name}.{func._overloadname}" in WAITS
    return Known(name, func.is_view, waits, name in MIXED or name.startswith("c10d"))


def is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == GPU.type


def run(func: Any, types: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """One operation, on the CPU, with what comes of it where a GPU would have it; what wraps tensors, such as a
    quantised weight, makes its own of it first."""
    if any(hasattr(each, "__tensor_flatten__") for each in types):  # torch's protocol of what wraps others
        return NotImplemented
    known = known_of(func)
    name = known.name
    if name == "aten::_has_compatible_shallow_copy_type":
        return False
    leaves = tensors_in((*args, *kwargs.values()))
    labelled = [leaf for leaf in leaves if isinstance(leaf, Labelled)]
    devices = [value for value in (*args, kwargs.get("device")) if isinstance(value, (torch.device, str))]
    devices = [value for value in devices if not isinstance(value, str) or value.split(":")[0] in ("cpu", "cuda")]
    if META in devices:  # it gets no values, so nothing is copied
        args, kwargs = mapped((args, kwargs), lambda value: value.held if isinstance(value, Labelled) else value)
        return func(*args, **kwargs)
    goes_to_gpu = is_gpu(devices[0]) if devices else bool(labelled)
    if labelled:
        WATCH.is_busy |= not known.is_view
        if not known.mixes:
            check_devices(name, leaves)
        elif name.startswith("aten"):
            count_copies(name, args, goes_to_gpu, kwargs)
        if known.waits and kwargs.get("output_size") is None:
            WATCH.note(name)
    elif not goes_to_gpu:
        result = func(*args, **kwargs)
        if WATCH.observer:
            WATCH.observer.on_host(func, args, kwargs, result)
        return result
    elif name in CASTS:
        count_copy(args[0], True, kwargs.get("non_blocking"))

    def on_cpu(value: Any) -> Any:
        if isinstance(value, Labelled):
            return value.held
        return CPU if isinstance(value, (torch.device, str)) and value in devices else value

    plain = mapped(args, on_cpu)
    named = {key: mapped(value, on_cpu) for key, value in kwargs.items()}
    made = KERNELS[name](*plain, **named) if labelled and name in KERNELS else func(*plain, **named)
    owners = {id(each.held): each for each in labelled}

    def where_it_goes(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if not goes_to_gpu:
            # A copy to the CPU that had nothing to do is a copy still.
            return value.clone() if id(value) in owners else value
        if id(value) in owners:
            return owners[id(value)]
        return Labelled(value.clone() if any(value is leaf for leaf in leaves) else value)

    result = mapped(made, where_it_goes)
    if WATCH.observer:
        WATCH.observer.operation(func, args, kwargs, result)
    return result


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """What an operation takes or gives, a list or a tuple part by part, changed."""
    if isinstance(value, (list, tuple)):
        parts = [mapped(part, change) if isinstance(part, (list, tuple)) else change(part) for part in value]
        return type(value)(parts)
    return change(value)


def tensors_in(values: Sequence[Any]) -> list[torch.Tensor]:
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found


def check_devices(name: str, leaves: list[torch.Tensor]) -> None:
    """Raises RuntimeError for tensors of two devices, but for single numbers."""
    strangers = [leaf for leaf in leaves if not isinstance(leaf, Labelled) and leaf.ndim and leaf.device.type == "cpu"]
    if strangers:
        shapes = [tuple(stranger.shape) for stranger in strangers]
        raise RuntimeError(f"{name} has tensors on {GPU} and on the CPU, of the shapes {shapes}.")


def count_copies(name: str, args: tuple, goes_to_gpu: bool, kwargs: dict[str, Any]) -> None:
    if name == "aten::copy_":
        is_async = kwargs.get("non_blocking") or len(args) > 2 and args[2]
        count_copy(args[1], isinstance(args[0], Labelled), is_async, args[0])
    elif name in CASTS:
        count_copy(args[0], goes_to_gpu, kwargs.get("non_blocking"))
    elif name in INDEXED:
        for index in args[1]:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                WATCH.note(f"{name} by a mask")
            elif index is not None and not isinstance(index, Labelled) and index.ndim:
                WATCH.note(f"{name} by an index on the CPU")


def count_copy(source: torch.Tensor, to_gpu: bool, is_async: Any, target: torch.Tensor | None = None) -> None:
    """A copy between devices waits, but where it is told not to, and the host's memory is pinned. Torch pins what it
    makes for such a copy, which has no target."""
    from_gpu = isinstance(source, Labelled)
    if from_gpu == to_gpu or not source.numel():
        return
    WATCH.is_busy = True
    host = target if from_gpu else source
    if not (is_async and (host is None or WATCH.is_pinned(host))):
        WATCH.note("copy from the GPU" if from_gpu else "copy to the GPU")


def attention_of_gpu(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
):
    """`F.scaled_dot_product_attention` of tensors on a GPU, which chooses as torch does there, and as a build for the
    CPU cannot: flash for halves without a mask, else the efficient kernel, and arithmetic for what neither takes."""
    halves, is_old = query.dtype in (torch.bfloat16, torch.float16), is_old_card()
    is_even = query.ndim == 4 and query.dtype in ALIGNED_TO and query.shape[-1] % ALIGNED_TO[query.dtype] == 0
    is_taken = is_gpu(query.device) and is_even and not (is_old and query.dtype == torch.bfloat16)
    if not is_taken or dropout_p or is_causal or enable_gqa:
        more = {"scale": scale, "enable_gqa": enable_gqa}
        return aten.scaled_dot_product_attention.default.decompose(
            query, key, value, attn_mask, dropout_p, is_causal, **more
        )
    mask = attn_mask
    if mask is None and halves and not is_old and query.shape[-1] <= FLASH_HEAD_DIM:
        return aten._scaled_dot_product_flash_attention(query, key, value, scale=scale)[0]
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
        keys = mask.shape[-1]
        mask = F.pad(mask, (0, -keys % PADDED_TO))[..., :keys].expand(*query.shape[:3], keys)
    return aten._scaled_dot_product_efficient_attention(query, key, value, mask, False, scale=scale)[0]


@contextlib.contextmanager
def choosing_attention() -> Iterator[None]:
    """While entered, `attention_of_gpu` is torch's kernel for tensors on a GPU. A function mode would cost each other
    function of torch's, too."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", attention_of_gpu, "AutogradCUDA")
    try:
        yield
    finally:
        library._destroy()


def is_old_card() -> bool:
    return torch.cuda.get_device_capability() < AMPERE


def flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, scale: Any = None, **__: Any) -> tuple:
    if query.dtype not in (torch.bfloat16, torch.float16) or query.shape[-1] % 8 or query.shape[-1] > FLASH_HEAD_DIM:
        raise RuntimeError(f"Flash attention takes no {query.dtype} with a head dim of {query.shape[-1]}.")
    if is_old_card():
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, scale=scale)
    return out, lse.float(), None, None, query.shape[2], key.shape[2], torch.zeros(2), torch.zeros(2), torch.zeros(1)


def efficient(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None = None, *_: Any,
    scale: Any = None, **__: Any,
) -> tuple:  # fmt: skip
    """With the strides that CUDA's kernel asks for, and its log-sum-exp, which fills whole tiles."""
    multiple = ALIGNED_TO[query.dtype]
    if query.shape[-1] % multiple or query.dtype == torch.bfloat16 and is_old_card():
        raise RuntimeError(f"cutlassF: no kernel found to launch for {query.dtype}, head dim {query.shape[-1]}.")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        strides = [tensor.stride(dim) for dim in range(3) if tensor.shape[dim] > 1]
        if tensor.stride(-1) != 1 or any(stride % multiple for stride in strides):
            raise RuntimeError(f"{name} is not correctly aligned: {tensor.stride()}.")
    if bias is not None:
        strides = [bias.stride(dim) for dim in range(3) if bias.shape[dim] > 1]
        if any(stride % multiple for stride in strides) or bias.data_ptr() % (multiple * bias.element_size()):
            raise RuntimeError(f"attn_bias is not correctly aligned: {bias.stride()}.")
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=bias, scale=scale)
    padded = torch.nn.functional.pad(lse.float(), (0, -lse.shape[-1] % TILE), value=float("inf"))
    return out, padded, torch.zeros(1), torch.zeros(1)


KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_scaled_dot_product_flash_attention": flash,
    "aten::_scaled_dot_product_efficient_attention": efficient,
}


class Event:
    """A GPU's event, of a GPU that is never behind."""

    at = 0.0

    def __init__(self, **_: Any) -> None: ...

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        WATCH.synchronise()

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Event) -> float:
        return 1e3 * (other.at - self.at)


class Stream:
    def synchronize(self) -> None:
        WATCH.synchronise()

    def wait_stream(self, _other: Stream) -> None: ...

    def wait_event(self, _event: object) -> None: ...

    def record_event(self) -> object:
        return object()


def lend_guard() -> None:
    """Torch's builds for the CPU have no guard for CUDA devices, which some operations ask for: the CPU's does."""
    if torch.version.cuda is None:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        registry = (ctypes.c_void_p * 2).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
        registry[1] = registry[1] or registry[0]


@contextlib.contextmanager
def off_gpu() -> Iterator[None]:
    """While entered, operations are torch's own again, at their own speed: for what has to do with no GPU."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


@contextlib.contextmanager
def on_gpu(counts_memory: bool = True, capability: tuple[int, int] = ADA) -> Iterator[Watch]:
    """While entered, there is a GPU, whose tensors are Labelled ones. What it counted is in the Watch."""
    lend_guard()
    global WATCH
    WATCH = Watch(counts_memory)
    is_before_ampere.cache_clear()
    torch._C._set_only_lift_cpu_tensors(True)  # so that torch.tensor(…, device=GPU) comes by as a copy
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a Parameter's data cannot become another class's
    with contextlib.ExitStack() as stack:
        for name, value in (
            ("get_device_capability", lambda *_: capability), ("get_device_name", lambda *_: "labelled"),
            ("current_stream", lambda *_: Stream()), ("Event", Event), ("_lazy_init", lambda: None),
            ("synchronize", WATCH.synchronise), ("set_device", lambda *_: None), ("cudart", lambda: RUNTIME),
        ):  # fmt: skip
            stack.enter_context(patch.object(torch.cuda, name, value))
        stack.enter_context(patch.dict(SPLITS, {Labelled: split_plain_rows}))
        stack.enter_context(Labelling())
        stack.enter_context(choosing_attention())
        try:
            yield WATCH
        finally:
            is_before_ampere.cache_clear()
            torch._C._set_only_lift_cpu_tensors(False)
            torch.__future__.set_overwrite_module_params_on_conversion(False)
