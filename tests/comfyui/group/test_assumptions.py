"""Where ComfyUI is not what we assume, a model runs as stock: shown on copies of ComfyUI with one change each."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.host import REPOSITORY
from worker.inside.changes import COMFYUI_ATTRIBUTES

SECONDS = 120
QUICK = ("latents by name", "an argument of the patcher")
MODEL_BASE, PATCHER, FLUX = "comfy/model_base.py", "comfy/model_patcher.py", "comfy/ldm/flux/model.py"
CALL = "self.diffusion_model(xc, t, context=context"
FLUX_FORWARD = "    def forward(self, x, timestep, context, y=None, guidance=None, ref_latents=None, control=None,"
FLUX_INNER = FLUX_FORWARD.replace("forward", "_forward")
EXECUTE = """        return comfy.patcher_extension.WrapperExecutor.new_class_executor(
            self._forward,"""
# Of each change: the file, what is replaced by what, and what is said.
CHANGES: dict[str, tuple[list[tuple[str, str, str]], str]] = {
    "latents by name": ([(MODEL_BASE, CALL, CALL.replace("xc, t", "x=xc, timestep=t"))], "timestep first"),
    "a third argument by place": ([(MODEL_BASE, CALL, "self.diffusion_model(xc, t, context")], "timestep first"),
    "another method of the model": (
        [
            (MODEL_BASE, "return self.diffusion_model.dtype", "return self.diffusion_model.scale_of(1)"),
            (FLUX, FLUX_INNER, f"    def scale_of(self, t):\n        return t\n\n{FLUX_INNER}"),
        ],
        "it calls only",
    ),
    "no options": (
        [(FLUX, f"{FLUX_FORWARD} transformer_options={{}}, **kwargs):", f"{FLUX_FORWARD} options={{}}):")],
        "it takes transformer_options",
    ),
    "more than wrappers in forward": (
        [
            (FLUX, EXECUTE, f"        x = 2 * x\n{EXECUTE}"),
            (FLUX, f"{FLUX_INNER} transformer_options={{}}, **kwargs):", f"{FLUX_INNER} options={{}}):"),
        ],
        "it passes latents and prediction on",
    ),
    "an argument of the patcher": (
        [(PATCHER, "    def load(self, device_to=None,", "    def load(self, how=None, device_to=None,")],
        "its methods take the arguments",
    ),
}  # fmt: skip


PROGRAM = """
import gc, importlib, inspect, json, re, sys, weakref
from tests.support.host.mounted import mount

_, comfyui, *folders = sys.argv
mount(comfyui)
list_broken = importlib.import_module("pack.nodes.assumptions").list_broken
patcher = importlib.import_module("pack.nodes.model.remote_patcher").RemoteModelPatcher
base = importlib.import_module("comfy.model_base")
for late in ("", *folders):
    if late:
        sys.path.insert(0, late)
        base.BaseModel.get_dtype = importlib.import_module("late").get_dtype
    found = {}
    for name, cls in vars(base).items():
        if isinstance(cls, type) and issubclass(cls, base.BaseModel):
            for words in set(re.findall(r"unet_model=([\\w.]+)", inspect.getsource(cls.__init__))):
                module = base
                for part in words.split("."):
                    module = getattr(module, part, None)
                if isinstance(module, type):
                    found[f"{name} {module.__name__}"] = list_broken(cls, module, patcher)
if folders:
    checked = weakref.ref(base.BaseModel.get_dtype)
    del base.BaseModel.get_dtype, sys.modules["late"].get_dtype
    gc.collect()
    assert checked() is None, "a pack's function is kept, with what its closure holds"
print(json.dumps(found))
"""


def broken(comfyui: Path, *late: Path) -> dict[str, list[str]]:
    """Which of our assumptions do not hold, by the classes of ComfyUI's model and its diffusion model. late: the folder
    of a change that is made after they were checked once."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(comfyui), *map(str, late)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def copy_of(comfyui: Path, folder: Path, changed: set[str]) -> Path:
    """ComfyUI with files of its own where something changes, and links to all others."""
    folder.mkdir()
    for path in comfyui.iterdir():
        if any(name.startswith(f"{path.name}/") for name in changed):
            copy_of(path, folder / path.name, {name.partition("/")[2] for name in changed})
        elif path.name in changed:
            (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        elif path.name != "__pycache__":
            (folder / path.name).symlink_to(path)
    return folder


def test_all_holds_of_this_comfyui(comfyui: Path) -> None:
    found = broken(comfyui)
    assert len(found) > 20
    assert {name: said for name, said in found.items() if said} == {}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CHANGES]
)
def test_a_changed_comfyui_is_noticed(name: str, comfyui: Path, tmp_path: Path) -> None:
    changes, says = CHANGES[name]
    host = copy_of(comfyui, tmp_path / "ComfyUI", {file for file, _, _ in changes})
    for file, before, after in changes:
        text = (host / file).read_text(encoding="utf-8")
        assert before in text
        (host / file).write_text(text.replace(before, after, 1), encoding="utf-8")
    (said,) = broken(host)["Flux Flux"]
    assert says in said


def test_what_a_pack_changes_after_the_first_sampling_is_noticed(comfyui: Path, tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("def get_dtype(self):\n    return self.diffusion_model.forward_orig(1)\n")
    (said,) = broken(comfyui, tmp_path)["Flux Flux"]
    assert "it calls only" in said


# Modules of ComfyUI whose functions compute nothing in a model, or that are watched as a whole: each layer's class is
# of comfy.ops.
OTHERS = ("model_management", "ops", "patcher_extension", "model_prefetch", "model_patcher", "quant_ops")
PROGRESS = "model_trange"  # shows it


def named_functions(comfyui: Path) -> Iterator[tuple[str, str, str]]:
    """Of each function that a model's code names in a module of ComfyUI's without importing it: the file with that
    code, the module and the name."""
    for file in (comfyui / "comfy" / "ldm").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = {ast.unparse(each) for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
        imported = {each.module for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
        for module, _, name in (each.rpartition(".") for each in names if each.startswith("comfy.")):
            source = comfyui / f"{module.replace('.', '/')}.py"
            if source.is_file() and module not in imported and f"def {name}(" in source.read_text(encoding="utf-8"):
                yield str(file.relative_to(comfyui)), module, name


def test_functions_that_models_code_names_in_other_modules_are_watched(comfyui: Path) -> None:
    """A node pack may put its own in place of one. A newer ComfyUI may name others."""
    tree = ast.parse((REPOSITORY / "nodes" / "inside" / "module_guard.py").read_text(encoding="utf-8"))
    (watched,) = [
        ast.literal_eval(each.value)
        for each in tree.body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "NAMED"
    ]
    found = [
        each
        for each in named_functions(comfyui)
        if each[1].removeprefix("comfy.") not in OTHERS and each[2] != PROGRESS
    ]
    assert len(found) > 20
    assert [each for each in found if each[2] not in watched.get(each[1], ())] == []


# Files of ComfyUI that set attributes of a model's layers while they load or run it, the names by which they call a
# layer, and the attributes that a layer gets from the model's file.
LOADING = ("model_patcher", "model_prefetch", "ops", "pinned_memory")
LAYERS = ("m", "s", "item", "module", "victim")
OF_FILE = {"weight", "bias", "quant_format", "layout_type", "_full_precision_mm", "_full_precision_mm_config"}
OF_WEIGHTS = {"name", "param_key"}  # by names that are computed: of the weights themselves


def names_set(comfyui: Path) -> Iterator[str]:
    for file in LOADING:
        for each in ast.walk(ast.parse((comfyui / "comfy" / f"{file}.py").read_text(encoding="utf-8"))):
            targets = each.targets if isinstance(each, ast.Assign) else []
            yield from (
                target.attr
                for target in targets
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) in LAYERS
            )
            if (
                isinstance(each, ast.Call)
                and ast.unparse(each.func) == "setattr"
                and ast.unparse(each.args[0]) in LAYERS
            ):
                name = each.args[1]
                ends = [ast.literal_eval(name.right)] if isinstance(name, ast.BinOp) else []
                yield from (f"{weight}{end}" for weight in ("weight", "bias") for end in ends)
                yield from [] if ends else [ast.unparse(name)]


def test_what_comfyui_sets_on_layers_is_no_change_by_a_node(comfyui: Path) -> None:
    found = set(names_set(comfyui)) - OF_FILE - OF_WEIGHTS
    assert {"_v_weight", "weight_lowvram_function"} <= found
    assert found - {*COMFYUI_ATTRIBUTES} == set()
