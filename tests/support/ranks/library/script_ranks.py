"""`library.script_ranks FOLDER SCRIPT ARGUMENT…`: runs a script in its folder."""

from __future__ import annotations

import os
import runpy
import sys

from tests.support.ranks.leaving import leave


def main(folder: str, *command: str) -> None:
    os.chdir(folder)
    sys.argv = [*command]
    runpy.run_path(command[0], run_name="__main__")
    leave()
