"""Plans that are put on models, taken off and changed; the last of each case is its world size."""

from __future__ import annotations

import json
from typing import Any

from tests.support.cases.families import FAMILIES
from tests.support.cases.library_plans import family_allows

STAGES = {"pipefusion": 2, "patches": 1}
PARKED = [{"ring": 2}]  # plans under which the weights wait in host memory when the plan is taken off


# Every seam once, shared tokens and stages; and parked.
REMOVED = [
    (name, degrees, 2) for name in FAMILIES for degrees in ({"ulysses": 2}, STAGES) if family_allows(name, degrees)
]
REMOVED += [(name, degrees, 2) for name in ("flux-dev", "qwenimage") for degrees in PARKED]
STOPPED = [("flux-dev", {"pipefusion": 2}, 2)]
PIPELINES = [("Flux", [{"ulysses": 2}, {"ring": 2}, {"dp": 2}], 2), ("Qwen-Image", [{"ring": 2}, {"ulysses": 2}], 2)]


def case_name(kind: str, name: str, *rest: Any) -> str:
    return f"{kind} {name} {json.dumps(rest)}"
