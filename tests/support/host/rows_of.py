"""`host.rows_of COMFYUI`:
which rows of the equality table a ComfyUI can make: by row, what it has changed of the class, in words.

Rows of classes that it does not have, or makes of other arguments, are left out.
"""

from __future__ import annotations

from parallel_backend.models.checks import changes_of
from tests.support.cases.host import CASES
from tests.support.host.mounted import import_comfyui


def main(comfyui: str) -> dict[str, list[str]]:
    import_comfyui(comfyui)
    found = {}
    for name, case in CASES.items():
        try:
            found[name] = changes_of(case.build())
        except (ImportError, TypeError):
            continue
    return found
