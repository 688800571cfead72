"""`python -m worker.rank.main`, under torchrun: runs one rank of the worker group, from start to the last request."""

from __future__ import annotations

from ..launch.imports import pause_garbage_collector


def prepare() -> None:
    """Imports what a rank needs, in a process that forks the ranks afterwards."""
    with pause_garbage_collector():
        from .serving import import_expected
    import_expected()


def main() -> None:
    with pause_garbage_collector():
        from .serving import run
    run()


if __name__ == "__main__":
    main()
