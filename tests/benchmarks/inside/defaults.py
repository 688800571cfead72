"""Whether nodes of real packs, at their defaults, give with Parallelize Model what they give without it.

python -m tests.benchmarks.inside.defaults COMFYUI PACKS [--models flux unet] [--only NODE...]

PACKS is a folder of clones, such as ComfyUI's custom_nodes; what they require beside can be on the PYTHONPATH. Every
node that takes a MODEL and returns one runs on tiny models, as stock and in ranks under an automatic plan of two ranks.
A node that needs a file, or a kind of input that is not known here, fails alike on both. It prints a line for each node
and model that differs or fails with the ranks alone, and the sums. A difference that a plan of one rank has not comes
of rounding, in a node that compares numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.support.census.program import Census, kind_of, order
from tests.support.census.rows import Given, Row, equal
from tests.support.host.graphs import TINY_MODELS
from tests.support.host.stock_prompts import write_cases
from tests.support.ranks.leaving import end

MODELS = ("flux", "unet", "wan", "sd3")
TOLERANCE = 1e-5
SKIPPED = "compile"  # in names of nodes: each takes minutes


class Anything:
    """Stands for ComfyUI's server and its parts while packs are loaded."""

    frozen = False

    def __getattr__(self, _name: str) -> Anything:
        return self

    def __call__(self, *args: Any, **_options: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self


class RealPacks(Census):
    """A census whose nodes are those of the packs in its base folder. names: by pack."""

    names: dict[str, list[str]]

    def load_pack(self) -> None:
        importlib.import_module("server").PromptServer.instance = Anything()
        self.names = {}
        for pack in sorted((self.base / "custom_nodes").iterdir()):
            before = set(self.nodes.NODE_CLASS_MAPPINGS)
            if not asyncio.run(self.nodes.load_custom_node(str(pack))):
                print(f"{pack.name} cannot be loaded")
            self.names[pack.name] = sorted(set(self.nodes.NODE_CLASS_MAPPINGS) - before)

    def takers(self) -> Iterator[tuple[str, str]]:
        """The packs' nodes that take a MODEL and return one, each with its pack."""
        for pack, names in self.names.items():
            for name in names:
                node = self.nodes.NODE_CLASS_MAPPINGS[name]
                kinds = node.INPUT_TYPES()
                given = {**kinds.get("required", {}), **kinds.get("optional", {})}
                takes = any(kind_of(value) == "MODEL" for value in given.values())
                if takes and "MODEL" in node.RETURN_TYPES and SKIPPED not in name.lower():
                    yield pack, name

    def loaded(self, row: Row, ours: bool) -> Any:
        return self.load(row, ours)  # because packs change the module for good

    def run(self, name: str, /, **inputs: Any) -> tuple:
        node = self.nodes.NODE_CLASS_MAPPINGS[name]
        if not hasattr(node, "GET_SCHEMA") or hasattr(node, "execute"):
            return super().run(name, **inputs)
        found = getattr(node(), node.FUNCTION)(**inputs)
        return found if isinstance(found, tuple) else tuple(found.result)

    def default(self, row: Row, name: str, value: Any, model: Any) -> Any:
        kind, options = value[0], value[1] if len(value) > 1 else {}
        if "default" not in options and isinstance(kind, (list, tuple)):
            return next(iter(kind))
        return super().default(row, name, value, model)

    def value(self, row: Row, value: Any, model: Any) -> Any:
        plain = {"STRING": "", "INT": 1, "FLOAT": 1.0, "MASK": torch.ones(1, 64, 64)}
        return plain[value] if isinstance(value, Given) and value in plain else super().value(row, value, model)


def judge(found: dict[str, Any]) -> str:
    if "error" in found:
        return "equal" if found["error"] <= TOLERANCE else "different"
    return "fails on both" if "stock raised" in found else "fails with ours"


def main(comfyui: str, packs: str, models: Collection[str], only: Collection[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        write_cases(Path(comfyui), base, models)
        shutil.copytree(packs, base / "custom_nodes", ignore=shutil.ignore_patterns(".git", "__pycache__"))
        sys.path.append(folder)  # where ComfyUI's own folder has `custom_nodes`, too
        census, sums, plans = RealPacks(comfyui, folder), Counter[str](), Counter[str]()
        named = {name: pack for pack, name in census.takers() if not only or name in only}
        rows = [(name, replace(equal(model), plan={}, steps=3)) for name in named for model in models]
        try:
            for name, row in sorted(rows, key=lambda each: order(each[1])):
                found = census.outcome(name, row)
                sums[judge(found)] += 1
                if judge(found) == "equal":
                    plans["as stock" if found["as stock"] else found["plan"]] += 1
                elif judge(found) != "fails on both":
                    said = found.get("error", found.get("raised"))
                    print(f"{judge(found)}: {named[name]}, {name} on {row.model}: {said}", flush=True)
        finally:
            census.group.stop()
        print(*(f"{kind}: {count}" for kind, count in sums.most_common()), sep="\n")
        print("equal under:", ", ".join(f"{plan} {count}" for plan, count in plans.most_common()))
    end()


def read_arguments() -> SimpleNamespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comfyui")
    parser.add_argument("packs")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--only", nargs="*", default=())
    return parser.parse_args(namespace=SimpleNamespace())


if __name__ == "__main__":
    path = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]  # where packages of the packs may be
    if (tiny := TINY_MODELS["PYTHONPATH"]) not in path:  # which a process reads when it starts
        command = [sys.executable, "-m", "tests.benchmarks.inside.defaults", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": os.pathsep.join([tiny, *path])})
    main(**vars(read_arguments()))
