"""`host.rows_of COMFYUI`:
which rows of the equality table a ComfyUI can make, as JSON: by row, what it has changed of the class, in words.

Rows of classes that it does not have, or makes of other arguments, are left out.
"""

from __future__ import annotations

import json

from parallel_backend.models.checks import changes_of
from tests.support.cases.host import CASES
from tests.support.host.mounted import import_comfyui


def main(comfyui: str) -> None:
    import_comfyui(comfyui)
    found = {}
    for name, case in CASES.items():
        try:
            found[name] = changes_of(case.build())
        except (ImportError, TypeError):
            continue
    print(json.dumps(found))
