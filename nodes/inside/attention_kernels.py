"""Tells which attention override of a node only chooses how attention is computed.

Such an override passes its arguments on to one attention function, and does nothing else. It is known by its code, not
by its name. Any other override is a function like all that run inside of a model.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

from comfy.ldm.modules import attention

from ...worker.inside.code_files import CodeFiles, file_of
from ...worker.wire.tensors import UnsendableError

ATTENTION_FILE = "comfy/ldm/modules/attention.py"
KJNODES = "comfyui-kjnodes/nodes/model_optimization_nodes.py"
KERNELS = ("sage", "flash", "xformers", "comfy_kitchen_int8", "pytorch", "sub_quad", "split")
# By file and name of an attention function, the name under which ComfyUI registers the kernel that computes it.
KNOWN = {
    **{f"{ATTENTION_FILE}:attention_{name}": name for name in KERNELS},
    f"{ATTENTION_FILE}:attention3_sage": "sage3",
    **{f"{KJNODES}:get_{name}_func.<locals>.attention_{name}": name for name in ("sage", "flash")},
}
SAGE3 = "sageattn3"  # the package whose functions the pack's Sage may call instead

kernel: Any = None  # stands for a global name in the forms below


def find_forms() -> set[bytes]:
    """Returns the code of functions that only pass their arguments on. Python compiles the same code for a node's
    function of this form."""
    held: Any = None
    forms = (
        lambda _chosen, *args, **kwargs: held(*args, **kwargs),
        lambda _chosen, *args, **kwargs: held.__wrapped__(*args, **kwargs),
        lambda _chosen, *args, **kwargs: kernel(*args, **kwargs),
        lambda _chosen, *args, **kwargs: kernel.__wrapped__(*args, **kwargs),
    )
    return {each.__code__.co_code for each in forms}


FORMS = find_forms()


def read_cell(function: types.FunctionType) -> Any:
    assert function.__closure__
    return function.__closure__[0].cell_contents


def find_called(function: types.FunctionType) -> Any:
    """Returns what a function of one of the forms calls."""
    names = list(function.__code__.co_names)
    found = read_cell(function) if function.__closure__ else function.__globals__[names.pop(0)]
    return functools.reduce(getattr, names, found)


def find_kernel(override: Any, files: CodeFiles) -> str | None:
    """Returns the name of the attention kernel that an override chooses; None if it may do something else."""
    if not isinstance(override, types.FunctionType):
        return None
    code = override.__code__
    takes = code.co_argcount, code.co_kwonlyargcount, code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    if code.co_code not in FORMS or takes != (1, 0, inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return None
    try:
        return kernel_of(find_called(override), files)
    except (AttributeError, KeyError, ValueError, UnsendableError):
        return None


def kernel_of(function: Any, files: CodeFiles) -> str | None:
    """Returns the kernel of an attention function, with or without ComfyUI's wrapper that calls an override. Raises
    UnsendableError for code in other places than ComfyUI's folder and those of node packs."""
    if getattr(function, "__code__", None) is attention.attention_pytorch.__code__:
        function = read_cell(function)
    relative = files.relative_path(file_of(function)).partition("/")[2].lower()
    found = KNOWN.get(f"{relative}:{function.__qualname__}")
    inner = [inspect.unwrap(cell.cell_contents) for cell in function.__closure__ or ()]
    names = {name for each in inner if isinstance(each, types.FunctionType) for name in each.__code__.co_freevars}
    return "sage3" if found == "sage" and any(name.startswith(SAGE3) for name in names) else found
