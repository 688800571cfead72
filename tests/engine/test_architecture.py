"""The architecture, as tables and as rules that a change may not break. Each rule is broken on purpose below.

The rules read sources and run nothing. Each gives a sentence for every place that breaks it.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

import pytest

from demo.host import REPOSITORY
from tests.support.imports import (
    PRODUCT,
    Import,
    Tree,
    device_uses,
    imports_of,
    is_in,
    long_functions,
    modules_of,
    private_uses,
    read_tree,
)

# The rooms of a package, the lowest first: a room imports from lower ones and from itself; rooms side by side know
# nothing of each other. "*" is whatever the table does not name. A new module needs a room.
LAYERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "parallel_backend": (
        ("errors", "axes"),
        ("plan", "compat", "device"),
        ("hooks",),
        ("groups",),
        ("models", "rates"),
        ("weights",),
        ("costs",),
        ("seams",),
        ("apply_plan",),
        ("parallel_model",),
        ("diffusers_model", "vae"),
        ("sampling", "pipelines"),
        ("library",),
        ("command",),
        ("__init__", "__main__"),
    ),
    "worker": (
        ("__init__", "engine", "compat"),
        ("errors",),
        ("settings",),
        ("wire",),
        ("inside",),
        ("comfyui",),
        ("launch",),
        ("host", "join", "rank"),
    ),
    "worker.rank": (("memory", "channels"), ("*",)),
    "nodes": (
        ("errors",),
        ("workers", "plan_words", "assumptions", "weights_file"),
        ("costs", "inside"),
        ("model",),
        ("class_label", "load_dit", "parallel_plan", "remote_vae"),
        ("incoming",),
        ("parallel_sampler",),
        ("parallelize", "parallelize_vae"),
        ("routes",),
        ("__init__",),
    ),
}
# What a room may import from other packages of ours.
BETWEEN: Mapping[str, tuple[str, ...]] = {
    "": ("nodes",),
    "nodes": (
        "parallel_backend",
        "worker.errors",
        "worker.compat",
        "worker.settings",
        "worker.wire",
        "worker.inside",
        "worker.comfyui",
        "worker.launch",
        "worker.host",
    ),
    "worker.engine": ("parallel_backend",),
    "worker.rank": ("parallel_backend",),
}
# What a package may import besides the standard library.
FROM_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "parallel_backend": ("torch", "diffusers", "safetensors", "numpy"),
    "worker": ("torch", "psutil"),
    "worker.comfyui": ("comfy", "comfy_kitchen", "gguf", "numpy", "safetensors"),
    "worker.inside": ("comfy", "safetensors"),
    "worker.rank.memory": ("pynvml",),  # optional
    "worker.rank.model.attention_kernels": ("comfy",),
    "worker.rank.model.host_model": ("comfy",),
    "nodes": (
        "torch",
        "safetensors",
        "aiohttp",
        "pydantic",
        "tqdm",
        "comfy",
        "comfy_api",
        "comfy_execution",
        "folder_paths",
        "latent_preview",
        "server",
    ),
}
# What ComfyUI's process never imports, from the pack's entry point on; in a function, which only the ranks call, it may
# stand.
RANKS_ALONE = ("torch.distributed", "diffusers")
# Where a kind of accelerator is named: in the module that answers for all of them, and in what an operator may set.
NAME_KINDS = ("parallel_backend/device.py", "worker/settings.py")

FOLDER_MODULES = 14
TEST_FOLDER_MODULES = 16
# Modules of the engine whose errors advise a person who uses ComfyUI.
TELL_PEOPLE_OF_COMFYUI = tuple(
    f"parallel_backend/{each}.py" for each in ("models/checks", "groups/handshake", "parallel_model")
)
# One module a model family.
REGISTRIES = ("parallel_backend/models/comfyui",)
KNOW_COMFYUI = (*REGISTRIES, "parallel_backend/models/__init__.py")
FUNCTION_LINES = 60
FILE_LINES = 400
TEST_LINES = 450
LONG_FILES = {
    "dev.py": "runs on a bare Python, before there is anything to import",
}

Rule = Callable[[Tree], Iterator[str]]


def arrows_run_down(tree: Tree) -> Iterator[str]:
    for module, path in modules_of(tree).items():
        for package, layers in LAYERS.items():
            if is_in(module, package) and room(module, package) not in sum(layers, ()):
                yield f"{path} has no room: add it to LAYERS[{package!r}], which says what it may import"
    modules = modules_of(tree)
    for found in imports_of(tree):
        source, target = found.module, found.target
        if target not in modules:
            continue
        shared = [package for package in LAYERS if is_in(source, package) and is_in(target, package)]
        for package in shared:
            here, there = room(source, package), room(target, package)
            height = {name: level for level, names in enumerate(LAYERS[package]) for name in names}
            if here != there and height.get(there, 0) >= height.get(here, 0):
                yield f"{found}: an arrow upward, {there} is not below {here} in {package}"
        allowed = [name for start in BETWEEN if is_in(source, start) or source == start for name in BETWEEN[start]]
        if not shared and not any(is_in(target, name) for name in allowed):
            yield f"{found}: it may import of ours only {allowed or 'its own package'}"


def room(module: str, package: str) -> str:
    """The room of a package that a module is in."""
    name = module.removeprefix(package).strip(".").partition(".")[0] or "__init__"
    return name if any(name in names for names in LAYERS[package]) or ("*",) not in LAYERS[package] else "*"


def packages_import_what_they_may(tree: Tree) -> Iterator[str]:
    modules = modules_of(tree)
    for found in imports_of(tree):
        top = found.target.partition(".")[0]
        package = found.module.partition(".")[0]
        if found.target not in modules and top not in sys.stdlib_module_names:
            if not any(is_in(found.module, start) and top in names for start, names in FROM_ELSEWHERE.items()):
                yield f"{found}: {package or 'the pack'} knows nothing of {top}"


def comfyuis_process_stays_clear_of_the_ranks(tree: Tree) -> Iterator[str]:
    modules = modules_of(tree)
    edges: dict[str, list[Import]] = {module: [] for module in modules}
    for found in imports_of(tree):
        if found.when != "typing":
            edges[found.module].append(found)
    reached, ahead = {"": "the pack"}, [""]
    while ahead:
        module = ahead.pop()
        for found in edges[module]:
            if is_in(found.target, "worker.rank"):
                yield f"{found}, in ComfyUI's process ({reached[module]}): a rank's module"
            elif found.target in modules:
                parts = found.target.split(".")
                for package in (".".join(parts[: index + 1]) for index in range(len(parts))):
                    if package not in reached:
                        reached[package] = f"{reached[module]} → {package}"
                        ahead.append(package)
            elif found.when == "import" and any(is_in(found.target, name) for name in RANKS_ALONE):
                yield f"{found}, in ComfyUI's process ({reached[module]}): for the ranks alone"


def sizes_are_kept(tree: Tree) -> Iterator[str]:
    folders = Counter(path.rpartition("/")[0] for path in tree if not path.endswith("__init__.py"))
    for folder, count in folders.items():
        most = TEST_FOLDER_MODULES if folder.startswith("tests/") else FOLDER_MODULES
        if count > most and folder not in REGISTRIES:
            yield f"{folder} has {count} modules, more than {most}: make rooms in it"
    for path, source in tree.items():
        lines, limit = source.count("\n"), TEST_LINES if path.startswith("tests/") else FILE_LINES
        if lines > limit and path not in LONG_FILES:
            yield f"{path} has {lines} lines, more than {limit}: it holds more than one idea"
        if path.startswith(PRODUCT) and path.endswith(".py"):
            for line, name, length in long_functions(source, FUNCTION_LINES):
                yield f"{path}:{line} {name} has {length} lines, more than {FUNCTION_LINES}"


def private_names_are_in_compat(tree: Tree) -> Iterator[str]:
    for path in modules_of(tree).values():
        compat = f"{path.split('/')[0]}/compat.py"
        if path != compat:
            for line, name in private_uses(tree[path]):
                yield f"{path}:{line} uses {name}: private names go through {compat}, with a sentence on why"


def kinds_of_devices_are_in_one_module(tree: Tree) -> Iterator[str]:
    for path in modules_of(tree).values():
        if path not in NAME_KINDS:
            for line, name in device_uses(tree[path]):
                yield f"{path}:{line} names {name}: ask {NAME_KINDS[0]}, which knows every kind of accelerator"


def comfyui_is_known_to_specs_alone(tree: Tree) -> Iterator[str]:
    for path in modules_of(tree).values():
        if path.startswith("parallel_backend/") and not path.startswith(KNOW_COMFYUI):
            known = "ComfyUI" if path in TELL_PEOPLE_OF_COMFYUI else ""
            for number, line in enumerate(tree[path].splitlines(), 1):
                if "comfy" in line.replace(known, "").lower():
                    yield f"{path}:{number} names ComfyUI: what is known of its classes is in {REGISTRIES[0]}"


RULES = (
    arrows_run_down,
    packages_import_what_they_may,
    comfyuis_process_stays_clear_of_the_ranks,
    sizes_are_kept,
    private_names_are_in_compat,
    kinds_of_devices_are_in_one_module,
    comfyui_is_known_to_specs_alone,
)


@pytest.fixture(scope="module")
def tree() -> dict[str, str]:
    return read_tree(REPOSITORY)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_repository_keeps_to(rule: Rule, tree: Tree) -> None:
    assert list(rule(tree)) == []


LATER = "def later():\n    "
TYPING = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
# A rule, a file, what is added to it, and what the rule's sentence says.
BROKEN = [
    (arrows_run_down, "parallel_backend/library.py", LATER + "from ..worker.settings import Settings", "of ours only"),
    (arrows_run_down, "worker/host/session.py", "from ..rank.job import Job", "rank is not below host"),
    (arrows_run_down, "worker/wire/protocol.py", TYPING + "from ..host.client import WorkerGroup", "upward"),
    (arrows_run_down, "worker/rank/memory/room.py", "from ..state import RankState", "* is not below memory"),
    (arrows_run_down, "worker/odds.py", "", "no room"),
    (packages_import_what_they_may, "parallel_backend/plan.py", "import comfy.utils", "imports comfy.utils"),
    (packages_import_what_they_may, "worker/host/runs.py", LATER + "import folder_paths", "imports folder_paths"),
    (comfyuis_process_stays_clear_of_the_ranks, "worker/launch/logs.py", "import torch.distributed", "for the ranks"),
    (comfyuis_process_stays_clear_of_the_ranks, "worker/host/runs.py", LATER + "from ..rank import job", "a rank's"),
    (
        comfyuis_process_stays_clear_of_the_ranks,
        "nodes/workers/feed.py",
        "from importlib import import_module\nimport_module('...worker.rank.state', __package__)",
        "imports worker.rank.state",
    ),
    (sizes_are_kept, "web/panel.mjs", "// more\n" * 400, "lines, more than 400"),
    (sizes_are_kept, "nodes/class_label.py", "def long():\n" + "    x = 1\n" * 60, "long has 61 lines"),
    (private_names_are_in_compat, "nodes/parallelize.py", "from comfy.utils import _x", "nodes/compat.py"),
    (private_names_are_in_compat, "worker/rank/job.py", "getattr(dist, '_world')", "uses dist._world"),
    (private_names_are_in_compat, "nodes/class_label.py", "class A:\n    x = lambda self: self._own", "self._own"),
    (kinds_of_devices_are_in_one_module, "worker/rank/job.py", "torch.cuda.synchronize()", "names torch.cuda"),
    (kinds_of_devices_are_in_one_module, "worker/join.py", "x = f'cpu:gloo,xpu:{1}'", "names 'cpu:gloo,xpu:'"),
    (comfyui_is_known_to_specs_alone, "parallel_backend/models/checks.py", "from . import comfyui", "names ComfyUI"),
]


@pytest.mark.parametrize(("rule", "path", "added", "said"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_rule_that_is_broken_says_where_and_how(rule: Rule, path: str, added: str, said: str, tree: Tree) -> None:
    broken = list(rule({**tree, path: f"{tree.get(path, '')}\n{added}\n"}))
    where = (path, path.removesuffix(".py").replace("/", "."))
    assert any(said in line and any(name in line for name in where) for line in broken), broken


def test_a_folder_with_too_many_modules_is_named(tree: Tree) -> None:
    more = {f"worker/wire/more{index}.py": "" for index in range(FOLDER_MODULES)}
    assert any(line.startswith("worker/wire has") for line in sizes_are_kept({**tree, **more}))


HARMLESS = [
    ("worker/launch/logs.py", TYPING + "import torch.distributed"),
    ("worker/launch/logs.py", LATER + "import torch.distributed"),
    ("worker/launch/agent.py", "import torch.distributed"),
    ("nodes/workers/feed.py", "import os\nos._exit(1)"),
    ("nodes/workers/feed.py", "class A:\n    def _own(self): ...\n    def call(self): return self._own()"),
    ("parallel_backend/compat.py", "import torch._dynamo"),
    (
        "worker/launch/torchrun.py",
        'def odd():\n    """For cuda."""\n    return "PYTORCH_CUDA_ALLOC_CONF --cuda-device"',
    ),
]


@pytest.mark.parametrize(("path", "added"), HARMLESS)
def test_what_is_right_is_let_pass(path: str, added: str, tree: Tree) -> None:
    changed = {**tree, path: f"{tree[path]}\n{added}\n"}
    assert [line for rule in RULES for line in rule(changed)] == []


def test_a_ranks_module_cannot_be_imported_under_the_name_that_comfyui_gives_the_pack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pack = ModuleType("/custom_nodes/ParallelDiT")
    pack.__path__ = [str(REPOSITORY)]
    monkeypatch.setitem(sys.modules, pack.__name__, pack)
    with pytest.raises(ImportError, match="runs in the ranks' processes, .* worker.host"):
        importlib.import_module(f"{pack.__name__}.worker.rank.state")
