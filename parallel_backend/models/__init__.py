"""Model families as data: one spec a diffusers class. Imports no diffusers; see README.md to add a family."""

from . import dit, pixart
from .spec import ModelSpec, SideInput, spec_for

__all__ = ["ModelSpec", "SideInput", "dit", "pixart", "spec_for"]
