"""`python -m worker.launch ARGUMENTS`: torchrun that dies with the process that started it."""

from __future__ import annotations

import sys

from .lifetime import die_with_parent


def main() -> None:
    die_with_parent()
    from torch.distributed.run import main as torchrun

    torchrun(sys.argv[1:])


if __name__ == "__main__":
    main()
