"""What exchange_dtype=int4 does to a whole sampling: to the demo model's pictures, and to families' latents.

python -m tests.benchmarks.exchange.lossy

On two ranks. The demo model is trained: every class once, 20 steps of FlowMatchEuler, guidance 3,
read by the shape checker. Families are tiny, with random weights: 5 steps, guidance 3.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from parallel_backend.plan import INT4
from tests.benchmarks.pipefusion_demo import GUIDANCE, MODEL, STEPS, Request, psnr, relative_error
from tests.engine.sampling import test_pipefusion as pipefusion
from tests.support.ranks.pool import RankPool

PLAN = {"ulysses": 2, "exchange_dtype": INT4}
FAMILIES_SHOWN = ("flux-dev", "wan-t2v")
LEAST_RIGHT = 0.95


def row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def print_demo() -> float:
    """Prints how the demo model's pictures differ; returns the share that the checker finds right."""
    request = Request.of(MODEL)
    exact, count = request.serial(), len(request.names)
    images = request.parallel({INT4: PLAN})[INT4]
    share = 1 - len(request.misses(images)) / count
    worst = min(psnr(*pair) for pair in zip(images, exact, strict=True))
    print(f"demo model, {STEPS} steps, guidance {GUIDANCE:g}, {count} pictures, fp32\n")
    print("| exchange | right | PSNR to exact, dB | worst picture, dB | relative error |\n|---|---|---|---|---|")
    cells = f"{share:.1%}", f"{psnr(images, exact):.1f}", f"{worst:.1f}", f"{relative_error(images, exact):.1e}"
    print(row(INT4, *cells))
    return share


def print_families() -> None:
    """Prints the relative errors of families' latents against exact sampling in one process."""
    cases = [{**pipefusion.case(name, "flow", 1, 1), "name": name, "plan": PLAN, "world": 2} for name in FAMILIES_SHOWN]
    with tempfile.TemporaryDirectory(prefix="exchange-") as root, RankPool(Path(root)) as ranks:
        results = pipefusion.run_cases(cases, ranks, Path(root))
    print(f"\nfamilies, {pipefusion.STEPS} steps, guidance 3, fp32: relative error\n\n| family | {INT4} |\n|---|---|")
    for name in FAMILIES_SHOWN:
        print(row(name, f"{relative_error(results[name], pipefusion.expected(name, 'flow', 1, None)):.1e}"))


def main() -> int:
    """Prints both tables; returns 1 where a lossy exchange draws too few pictures right."""
    right = print_demo()
    print_families()
    return int(right < LEAST_RIGHT)


if __name__ == "__main__":
    sys.exit(main())
