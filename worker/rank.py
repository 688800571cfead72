"""`python -m worker.rank`, under torchrun: one rank of the worker group, from start to the last request."""

from __future__ import annotations

import gc


def main() -> None:
    gc.disable()  # torch and diffusers are a million objects that stay; looking through them takes a fifth of the start
    from .serving import run

    gc.freeze()
    gc.enable()
    run()


if __name__ == "__main__":
    main()
