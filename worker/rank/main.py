"""`python -m worker.rank.main`, under torchrun: one rank of the worker group, from start to the last request."""

from __future__ import annotations

from ..launch.imports import collector_at_rest


def main() -> None:
    with collector_at_rest():
        from .serving import run
    run()


if __name__ == "__main__":
    main()
