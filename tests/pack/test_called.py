"""Nothing of the product is there for the tests alone: each of its functions and classes is named by the product."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from demo.host import REPOSITORY

FOLDERS = ("demo", "nodes", "parallel_backend", "worker")
# Methods that others call, by their names.
BY_COMFYUI = {
    *("on_load", "get_node_list", "define_schema", "fingerprint_inputs", "validate_inputs"),
    *("deepclone_multigpu", "quantize", "state_dict_tensors", "extra_conds", "plan_route"),
}
BY_DIFFUSERS = {
    *("initialize_hook", "pre_forward", "new_forward", "post_forward"),
    *("_get_parameter_from_args_kwargs", "_should_compute_remaining_blocks"),
}
BY_TORCHRUN = {"next_rendezvous", "get_backend"}
ELSEWHERE = BY_COMFYUI | BY_DIFFUSERS | BY_TORCHRUN


def named(tree: ast.AST) -> Iterator[str]:
    """The names that code reads, writes or imports, and texts that may be names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_each_function_of_the_product_is_named_by_the_product() -> None:
    paths = [REPOSITORY / "__init__.py", *(path for each in FOLDERS for path in (REPOSITORY / each).rglob("*.py"))]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    known = ELSEWHERE.union(*map(named, trees.values()))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = ((path, node) for path, tree in trees.items() for node in ast.walk(tree) if isinstance(node, kinds))
    assert not [
        f"{path}:{node.lineno} {node.name}"
        for path, node in found
        if not node.name.startswith("__") and node.name not in known
    ]
