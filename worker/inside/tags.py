"""Tags of described objects and of encoded values, see `object_graph.py`."""

from __future__ import annotations

# Kinds of objects that can change.
LIST, DICT, SET, OBJECT, FUNCTION, CELL, TENSOR = "list", "dict", "set", "object", "function", "cell", "tensor"
NAMESPACE = "namespace"  # of a module or a class: some of its variables
PATCHER = "patcher"  # ComfyUI's, of a network that is described like any object
# Kinds of encoded values. REF names an object.
REF, TUPLE, PART, CLASS, NAMED, MODULE = "ref", "tuple", "part", "class", "named", "module"
EMPTY_CLASS = "empty class"  # made in a function, of its bases
METHOD, NAMED_TUPLE, DEVICE, MEMBER = "method", "named tuple", "device", "member"
CLASS_METHOD = "class method"  # of a part
ONLY_SLOT = "whole"  # the key of the only slot of a list, a set and a tensor
PAGE = "page"  # of a weight of a network: the file that has it, and its name there
NEW, SLOTS, GONE = "new", "slots", "gone"  # fields of a change
