"""Plans of two ranks that a model of either library allows: "diffusers" for FAMILIES, "comfyui" for its own classes."""

from __future__ import annotations

from typing import Any

from parallel_backend.axes import BATCH_AXES, TOKEN_AXES
from parallel_backend.models import spec_named
from tests.support.cases.families import FAMILIES
from tests.support.cases.host import CASES as ROWS

Plan = dict[str, Any]

EACH: tuple[Plan, ...] = ({"ulysses": 2}, {"ring": 2}, {"cfg": 2})

# Rows of classes that can be cut to patches, with references or padding beside the image's tokens.
WITH_MORE_TOKENS = (
    "flux-kontext", "flux2-edit-index-timestep-zero", "zimage", "zimage-omni", "qwen-image-edit",
    "qwen-image-edit-index-timestep-zero", "joyimage", "wan-bernini", "wan-phantom", "wan-fun-control", "wan-s2v",
    "wan-humo", "wan-scail", "wan-scail2",
)  # fmt: skip
LONG = ("wan-animate-face",)  # it encodes faces of 512×512
# Rows with a timestep for each frame, of which no sampling is made.
BY_FRAME = ("wan-timestep-by-frame", "cosmos-predict2-timestep-by-frame", "ltxv-i2v", "ltxv-guide", "ltx23-i2v")
COUPLED = ("svd-odd", "svd-low")  # rows of a class of which only some models couple the rows of a batch


def allows(row: str, plan: Plan) -> bool:
    """Whether the spec of the row's class has nothing against the plan."""
    spec = spec_named(ROWS[row].model_class)
    assert spec
    couples = row in COUPLED or spec.coupled and not spec.bands
    unshared = spec.unshared
    if "pipefusion" in plan and (spec.unstaged or unshared or row in BY_FRAME):
        return False
    if plan.get("patches", 1) > 1 and (not spec.image or row in WITH_MORE_TOKENS):
        return False
    return not (couples and plan.keys() & BATCH_AXES or unshared and plan.keys() & TOKEN_AXES)


def family_allows(name: str, plan: Plan) -> bool:
    """Whether the spec of a family's class has nothing against the plan."""
    spec = spec_named(FAMILIES[name].model_class)
    assert spec
    has_stages = spec.blocks and not spec.unstaged
    return not (spec.unshared and plan.keys() & TOKEN_AXES or "pipefusion" in plan and not has_stages)


def plans(library: str, name: str) -> list[Plan]:
    """Each way to split a forward between two ranks."""
    if library == "diffusers":
        return [plan for plan in EACH if family_allows(name, plan)]
    return [plan for plan in EACH if allows(name, plan)]
