"""Plans that are put on models, taken off and changed; the last of each case is its world size."""

from __future__ import annotations

import json
from typing import Any

from parallel_backend.models import spec_for
from tests.support.cases.families import FAMILIES

STAGES = {"pipefusion": 2, "patches": 1}
PARKED = [{"tp": 2}]  # plans under which the weights wait in host memory when the plan is taken off


def plans_of(name: str) -> list[dict[str, int]]:
    """Every seam once: shared tokens, stages, and the weights where the family allows that."""
    shares_weights = spec_for(FAMILIES[name].model_class).tensor_parallel
    return [{"ulysses": 2}, STAGES, *([{"tp": 2}] if shares_weights else [])]


REMOVED = [(name, degrees, 2) for name in FAMILIES for degrees in plans_of(name)]
STOPPED = [("flux-dev", {"pipefusion": 2}, 2)]
TOKENS_AND_BATCH = [{"ulysses": 2}, {"ring": 2}, {"cfg": 2}, {"ulysses": 2, "patches": 3}]
# Family, plans one after the other, whether the weights are parked meanwhile.
REPLANNED = [
    ("flux-dev", TOKENS_AND_BATCH, False, 2),
    ("pixart-alpha", TOKENS_AND_BATCH, True, 2),
    ("dit", [{"pipefusion": 2, "patches": 2}, {"pipefusion": 2, "patches": 3, "sync_steps": 2}], False, 2),
    ("hunyuandit-1.2", [{"pipefusion": 2, "ulysses": 2}, {"pipefusion": 2, "ring": 2}], False, 4),
    ("flux2-dev", [{"tp": 2, "ulysses": 2}, {"tp": 2, "ring": 2}], True, 4),
    ("flux-dev", [{"pipefusion": 2, "tp": 2}, {"pipefusion": 2, "tp": 2, "patches": 3}], False, 4),
]
PIPELINES = [("Flux", [{"ulysses": 2}, {"tp": 2}, {"dp": 2}], 2), ("Qwen-Image", [{"tp": 2}, {"ulysses": 2}], 2)]


def case_name(kind: str, name: str, *rest: Any) -> str:
    return f"{kind} {name} {json.dumps(rest)}"
