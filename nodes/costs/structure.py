"""Keeps how a model is made up. Node packs change its parts during a sampling, and the plan may not depend on that."""

from __future__ import annotations

import copy

import torch

from ...parallel_backend.compat import parts_of, set_parts


def copy_structure(module: torch.nn.Module) -> torch.nn.Module:
    """Returns a module with this one's classes, attributes, parts and parameters. If parts of the original are replaced
    or get other attributes, the copy stays as it is."""
    copies: dict[torch.nn.Module, torch.nn.Module] = {}

    def copied(part: torch.nn.Module) -> torch.nn.Module:
        if part not in copies:
            copies[part] = copy.copy(part)
            own = {name: each and copied(each) for name, each in parts_of(part).items()}
            set_parts(copies[part], own)
        return copies[part]

    return copied(module)
