"""What each of ComfyUI's own classes can do, and what it is compared by: the table in the README.

python -m tests.benchmarks.host_classes [--write]

The table is printed; --write puts it into the README. tests/engine/test_host_models.py makes the comparisons, and says
where the README's table is another.
"""

from __future__ import annotations

import argparse

from demo.host import REPOSITORY
from parallel_backend.models.comfyui.spec import host_classes, named_spec
from tests.support.cases.host import CASES

START, END = "<!-- classes: start -->\n", "<!-- classes: end -->\n"
README = REPOSITORY / "README.md"


def table() -> str:
    """One row a class."""
    lines = ["| ComfyUI's class | compared | dp, cfg | ulysses, ring | pipefusion |", "|---|---|---|---|---|"]
    for model_class in sorted(host_classes(), key=lambda name: name.rpartition(".")[2].lower()):
        spec = named_spec(model_class)
        assert spec is not None
        rows = ", ".join(name for name, case in CASES.items() if case.model_class == model_class)
        batch = f"no{' for some' if spec.coupled_where else ''}: {spec.coupled}" if spec.coupled else "yes"
        tokens = f"no: {spec.unshared}" if spec.unshared else "yes"
        stages = "no" if spec.unshared else f"no: {spec.unstaged}" if spec.unstaged else "patches=1"
        stages = "yes" if spec.patches else stages
        lines.append(f"| {model_class.rpartition('.')[2]} | {rows or '–'} | {batch} | {tokens} | {stages} |")
    return "\n".join(lines) + "\n"


def written() -> str:
    """The README's."""
    return README.read_text().partition(START)[2].partition(END)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into the README")
    options = parser.parse_args()
    print(table())
    if options.write:
        before, rest = README.read_text().split(START)
        README.write_text(before + START + table() + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
