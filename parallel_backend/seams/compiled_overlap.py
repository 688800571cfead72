"""Overlap in compiled blocks: a pass over a block's graph gives products that attention does not need to attention.

The operator of attention (`attention_op`) computes them while ranks exchange tokens, as `mlp_overlap` does in blocks
that are not compiled. The pass reads the graph alone, so it finds every linear layer of tokens beside attention.

Layers with quantised weights stay where they are. An operator of a graph takes plain tensors, and such a weight is
several with a layout. Where the layer quantises the input, too, as it does for fp8 on cards that multiply it, torch
cannot trace how, and ends the graph there: then the product and attention are in different graphs.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from ..compat import writes_to_arguments
from .attention_op import LISTS, OPERATOR

TOKEN_DIMS = 3  # of the input of a layer of tokens; modulation has fewer and would gain nothing
LAST = -1
IN_PLACE = (
    "iadd",
    "isub",
    "imul",
    "itruediv",
    "ifloordiv",
    "imod",
    "ipow",
    "iand",
    "ior",
    "ixor",
    "imatmul",
    "setitem",
)
ASSIGNS = {getattr(operator, name) for name in IN_PLACE}


class Product(NamedTuple):
    """A linear layer, or its rows from `first` on, that attention can compute. result: what has its output."""

    layer: torch.fx.Node
    result: torch.fx.Node
    first: int = 0


def move_products(graph: torch.fx.Graph) -> None:
    """Moves into each call of attention over the ranks the products that it does not need and that do not need it."""
    for attention in [node for node in graph.nodes if is_attention(node)]:
        products = list_products(graph, attention)
        if products:
            give_products(graph, attention, products)


def is_attention(node: torch.fx.Node) -> bool:
    return getattr(node.target, "overloadpacket", None) is OPERATOR


def list_products(graph: torch.fx.Graph, attention: torch.fx.Node) -> list[Product]:
    """Lists products in order. None needs another one of them."""
    needed, later, found = ancestors(attention), {attention}, []
    order = {node: place for place, node in enumerate(graph.nodes)}
    writes = [place for node, place in order.items() if assigns(node)]
    for node in graph.nodes:
        if node is attention:
            continue
        if not later.isdisjoint(node.all_input_nodes):
            later.add(node)
            continue
        product = product_of(node, needed)
        start, stop = sorted((order[node], order[attention]))
        if not product or any(start < place < stop for place in writes):
            continue
        if all(order[given] < order[attention] for given in node.all_input_nodes):
            found.append(product)
            later.add(product.result)
    return found


def ancestors(node: torch.fx.Node) -> set[torch.fx.Node]:
    found: set[torch.fx.Node] = set()
    queue = [node]
    while queue:
        new = set(queue.pop().all_input_nodes) - found
        found |= new
        queue += new
    return found


def assigns(node: torch.fx.Node) -> bool:
    """Whether a node may write to a tensor that it is given: by torch's names, or as its operator says. A product is
    not moved across it."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    by_name = name.endswith("_") and not name.endswith("__") or name.endswith("_mutation")
    return node.target in ASSIGNS or "out" in node.kwargs or by_name or writes_to_arguments(node.target)


def product_of(node: torch.fx.Node, needed: set[torch.fx.Node]) -> Product | None:
    """Returns the product of a layer that attention does not need, or of which it needs the first rows only."""
    if node.op != "call_function" or node.target is not F.linear or len(node.args) + len(node.kwargs) < 2:
        return None
    given, weight, _ = arguments_of(node)
    values = [each.meta.get("example_value") for each in (given, weight)]
    if any(not isinstance(value, torch.Tensor) or hasattr(value, "__tensor_flatten__") for value in values):
        return None  # quantised
    if values[0].ndim < TOKEN_DIMS:
        return None
    if node not in needed:
        return Product(node, node)
    split = next(iter(node.users))
    if len(node.users) != 1 or split.target is not torch.functional.split:
        return None
    arguments: Any = dict(zip(("tensor", "sizes", "dim"), split.args, strict=False)) | split.kwargs
    sizes = arguments.get("sizes", arguments.get("split_size_or_sections"))
    if (
        not isinstance(sizes, (list, tuple))
        or len(sizes) != 2
        or arguments.get("dim") not in (LAST, values[0].ndim - 1)
    ):
        return None
    last = [user for user in split.users if user.target is operator.getitem and user.args[1] == 1]
    if len(last) != 1 or last[0] in needed or not all(isinstance(size, int) for size in sizes):
        return None
    return Product(node, last[0], sizes[0])


def arguments_of(layer: torch.fx.Node) -> tuple[Any, Any, Any]:
    """Returns input, weight and bias of a call of `F.linear`."""
    named: Any = dict(zip(("input", "weight", "bias"), layer.args, strict=False)) | layer.kwargs
    return named["input"], named["weight"], named.get("bias")


def give_products(graph: torch.fx.Graph, attention: torch.fx.Node, products: list[Product]) -> None:
    """Adds the products to the operator's arguments, and reads their outputs from its results."""

    def rows(tensor: torch.fx.Node | None, part: slice) -> torch.fx.Node | None:
        return None if tensor is None else graph.call_function(operator.getitem, (tensor, part))

    inputs, weights, biases = [], [], []
    with graph.inserting_before(attention):
        for layer, _, first in products:
            given, weight, bias = arguments_of(layer)
            others = slice(first, None)
            inputs.append(given)
            weights.append(rows(weight, others) if first else weight)
            biases.append(rows(bias, others) if first else bias)
    attention.args = (*attention.args[:-LISTS], inputs, weights, biases)
    with graph.inserting_after(attention):
        outputs = graph.call_function(operator.getitem, (attention, 1))
    last = outputs
    for place, (layer, result, first) in enumerate(products):
        with graph.inserting_after(last):
            last = graph.call_function(operator.getitem, (outputs, place))
        result.replace_all_uses_with(last)
        if first:
            keep_first_rows(graph, layer, result, first)
        else:
            graph.erase_node(layer)
    move_behind(graph, outputs, last)


def move_behind(graph: torch.fx.Graph, outputs: torch.fx.Node, last: torch.fx.Node) -> None:
    """Moves all that needs the outputs and stands before them behind `last`, in its order."""
    stop = {node: place for place, node in enumerate(graph.nodes)}[outputs]
    later = {outputs, *outputs.users}
    for node in list(graph.nodes)[:stop]:
        if not later.isdisjoint(node.all_input_nodes):
            later.add(node)
            last.append(node)
            last = node


def keep_first_rows(graph: torch.fx.Graph, layer: torch.fx.Node, rest: torch.fx.Node, first: int) -> None:
    """Makes a layer compute its first rows only. rest: reads its other rows."""
    (split,) = layer.users
    given, weight, bias = arguments_of(layer)
    with graph.inserting_before(layer):
        own = [
            None if each is None else graph.call_function(operator.getitem, (each, slice(first)))
            for each in (weight, bias)
        ]
        less = graph.call_function(F.linear, (given, *own))
    for user in [user for user in split.users if user is not rest]:
        user.replace_all_uses_with(less)
        graph.erase_node(user)
    for node in (rest, split, layer):
        graph.erase_node(node)
