"""What this pack assumes of ComfyUI's code, and would not see in an error if it changed: the image would be another.

Each assumption is checked when a model is sampled. If one does not hold, ComfyUI has changed there, and the model runs
as stock, with the assumption as the reason.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import NamedTuple

import comfy.model_base
import comfy.model_patcher
import comfy.samplers
import torch

from ..worker.comfyui.call_keys import OPTIONS
from ..worker.comfyui.entry import leaves_by, runs_wrappers
from ..worker.comfyui.source import SENT_METHODS
from ..worker.wire.operations import FORWARD, INNER

MODULE = "diffusion_model"


class Assumption(NamedTuple):
    """of: the class or function of ComfyUI. says: what is assumed of it. holds: whether it is so for a model of these
    classes, see `list_broken`."""

    of: str
    says: str
    holds: Callable[[type, type, type], bool]


def list_broken(model: type, module: type, patcher: type) -> list[str]:
    """Returns, in words, which assumptions do not hold for a model of these classes. model: ComfyUI's, a BaseModel.
    module: of its diffusion model. patcher: our own."""
    return [
        f"a change of ComfyUI ({each.of}: {each.says})" for each in ASSUMED if not each.holds(model, module, patcher)
    ]


def tree_of(function: Callable[..., object]) -> ast.Module | None:
    """Returns a function's code; None if its source cannot be read."""
    return parse(getattr(inspect.unwrap(function), "__code__", None))


@functools.cache
def parse(code: types.CodeType | None) -> ast.Module | None:
    """Returns the tree of code; None if its source cannot be read. By its code, because a pack may make a function anew
    for each prompt, with a model in its closure."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(code)))  # pyright: ignore[reportArgumentType]
    except (OSError, TypeError, SyntaxError):
        return None


@functools.cache
def calls_of(tree: ast.Module | None) -> list[tuple[str, ast.Call]]:
    """Returns the calls in a function, each with what is called."""
    nodes = ast.walk(tree) if tree else ()
    return [(ast.unparse(node.func), node) for node in nodes if isinstance(node, ast.Call)]


def calls_in(model: type) -> Iterator[tuple[str, ast.Call]]:
    """Yields the calls in the methods of a class of ComfyUI's models and in those that it inherits."""
    for each in model.__mro__[: model.__mro__.index(comfy.model_base.BaseModel) + 1]:
        for function in filter(inspect.isfunction, vars(each).values()):
            yield from calls_of(tree_of(function))


def passes_latents_first(model: type, *_: type) -> bool:
    return {len(call.args) for name, call in calls_in(model) if name == f"self.{MODULE}"} == {2}


def calls_known_methods(model: type, module: type, *_: type) -> bool:
    prefix = f"self.{MODULE}."
    asked = {name.removeprefix(prefix) for name, _ in calls_in(model) if name.startswith(prefix)}
    own = {name for name in asked if inspect.isfunction(getattr(module, name, None))}
    return own <= {*SENT_METHODS, *dir(torch.nn.Module)}


def takes_options(_model: type, module: type, *_: type) -> bool:
    taken = inspect.signature(getattr(module, FORWARD)).parameters
    return OPTIONS in taken or any(each.kind is each.VAR_KEYWORD for each in taken.values())


def enters_at_one_place(_model: type, module: type, *_: type) -> bool:
    """A class whose `_forward` takes other arguments is left by its `forward`, and enters the ranks there. So that must
    pass latents and timestep on as they are, and return what comes back."""
    if leaves_by(module) == INNER or not runs_wrappers(module):
        return True
    tree = tree_of(getattr(module, FORWARD))
    function = tree.body[0] if tree else None
    if not isinstance(function, ast.FunctionDef):
        return False
    first = [each.arg for each in function.args.args[1:3]]
    written = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    return not written & {*first} and all(goes_on(each, first) for each in returned)


def goes_on(returned: ast.expr | None, first: list[str]) -> bool:
    """Whether this is the result of nodes' wrappers, or of the inherited `forward`, for the first arguments."""
    if not isinstance(returned, ast.Call) or not ast.unparse(returned.func).endswith(
        (".execute", f"super().{FORWARD}")
    ):
        return False
    given = [*returned.args, *(each.value for each in returned.keywords if each.arg in first)]
    return [ast.unparse(each) for each in given[:2]] == first


def overrides_fit(_model: type, _module: type, patcher: type) -> bool:
    base = comfy.model_patcher.ModelPatcher
    for name, function in vars(patcher).items():
        before = getattr(base, name, None)
        if inspect.isfunction(function) and inspect.isfunction(before) and not takes_as_many(function, before):
            return False
    return True


def takes_as_many(function: Callable[..., object], before: Callable[..., object]) -> bool:
    """Whether a function takes the arguments that the one before takes, in their order."""
    own, theirs = inspect.signature(function).parameters, inspect.signature(before).parameters
    if any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in own.values()):
        return True
    return list(own)[: len(theirs)] == list(theirs)


ASSUMED = (
    Assumption("BaseModel", "it gives the diffusion model latents and timestep first", passes_latents_first),
    Assumption("BaseModel", f"of the diffusion model it calls only {', '.join(SENT_METHODS)}", calls_known_methods),
    Assumption(f"the diffusion model's {FORWARD}", f"it takes {OPTIONS}", takes_options),
    Assumption(
        f"the diffusion model's {FORWARD}",
        f"without a fitting {INNER}, it passes latents and prediction on",
        enters_at_one_place,
    ),
    Assumption("ModelPatcher", "its methods take the arguments that ours take", overrides_fit),
)


def guides_by_scale() -> bool:
    """Whether ComfyUI guides as the loop of the Parallel Sampler does in the ranks. For another sampler it does not
    matter, since guidance runs in ComfyUI's process then."""
    cond, uncond, scale = torch.tensor([[3.0]]), torch.tensor([[1.0]]), 2.5
    with contextlib.suppress(Exception):  # it takes other arguments
        found = comfy.samplers.cfg_function(None, cond, uncond, scale, cond, torch.ones(1))
        return torch.equal(found, uncond + scale * (cond - uncond))
    return False
