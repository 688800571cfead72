"""What each of ComfyUI's own classes can do, what it is compared by, and what diffusers' can, for docs/classes.md.

python -m tests.benchmarks.host_classes [--write]

The tables are printed; --write puts them into the page. tests/engine/test_host_models.py makes the comparisons, and
says where the page's tables are others.
"""

from __future__ import annotations

from parallel_backend.models import known_spec, model_classes
from parallel_backend.models.spec import SPECS
from tests.support.cases.host import CASES
from tests.support.cases.host.controlnets import CONTROLNETS
from tests.support.pages import show_table

CLASSES, FOLDERS = "classes", "folders"  # the tables, by their names in the page
OF_COMFYUI = {name: spec for name, spec in SPECS.items() if name.startswith("comfy") and spec.inside is None}


def table() -> str:
    """One row a class."""
    lines = ["| ComfyUI's class | compared | dp, cfg | ulysses, ring | pipefusion |", "|---|---|---|---|---|"]
    for model_class, spec in sorted(OF_COMFYUI.items(), key=lambda each: (each[0].rpartition(".")[2].lower(), each[0])):
        cases = [*CASES.items(), *CONTROLNETS.items()]
        rows = ", ".join(name for name, case in cases if case.model_class == model_class)
        batch = f"no{' for some' if spec.bands else ''}: {spec.coupled}" if spec.coupled else "yes"
        tokens = f"no: {spec.unshared}" if spec.unshared else "yes"
        stages = f"no: {spec.unstaged}" if spec.unstaged else "no" if spec.unshared else "patches=1"
        stages = "yes" if spec.image else stages
        lines.append(f"| {short_name(model_class)} | {rows or '–'} | {batch} | {tokens} | {stages} |")
    return "\n".join(lines) + "\n"


def short_name(model_class: str) -> str:
    """The class alone, with its module where there are two of that name."""
    *_, module, name = model_class.split(".")
    is_unique = sum(each.endswith(f".{name}") for each in OF_COMFYUI) == 1
    return name if is_unique else f"{module}.{name}"


def folders() -> str:
    """One row a class of diffusers'."""
    lines = ["| diffusers' class | dp, cfg | ulysses, ring | pipefusion |", "|---|---|---|---|"]
    for model_class in model_classes():
        spec = known_spec(model_class)
        tokens = f"no: {spec.unshared}" if spec.unshared else "yes"
        stages = "yes" if spec.image else "stages" if spec.blocks else "no"
        stages = f"no: {spec.unstaged}" if spec.unstaged else stages
        lines.append(f"| {model_class} | yes | {tokens} | {stages} |")
    return "\n".join(lines) + "\n"


def tables() -> dict[str, str]:
    return {CLASSES: table(), FOLDERS: folders()}


def main() -> None:
    for name, made in tables().items():
        show_table(name, made)


if __name__ == "__main__":
    main()
