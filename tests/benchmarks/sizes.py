"""What each rank keeps, computes and sends for models of published sizes, on 1 to 64 ranks, without a GPU or weights.

COMFYUI_PATH=.host/ComfyUI python -m tests.benchmarks.sizes [--library comfyui] [--models flux-dev …] [--ranks 8 …]

The engine's own code runs on fake tensors (`tests/support/fakes`), a forward of all blocks in bf16, or with stages a
sampling, of which a step is told. Of the ranks that differ, the one with most: GB of weights; GB beside them at the
peak; TFLOP; MB sent by kind; and all of these against what the formulas of `tests/support/fakes/formulas.py` ask for.
A is the bytes of the tokens of a rank, rows × tokens × hidden × 2 over the ranks that share them; peak/A says how many
times that the peak is.
"""

from __future__ import annotations

import argparse
import itertools
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from parallel_backend.plan import ParallelPlan
from tests.support.fakes.formulas import PLANS, activation_bytes, sent_bytes
from tests.support.fakes.measure import measure, unlike_ranks
from tests.support.fakes.models import LIBRARIES, Model
from tests.support.fakes.tally import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, SEND, WEIGHTS, sent

HEAD = (
    "plan",
    "ranks",
    "weights",
    "peak",
    "peak/A",
    "TFLOP",
    ALL_TO_ALL,
    SEND,
    ALL_REDUCE,
    ALL_GATHER,
    WEIGHTS,
    "sent",
    "formula",
    "more",
)


def row(library: str, name: str, size: str, degrees: dict[str, int]) -> tuple[str, ...]:
    torch.set_num_threads(1)
    model, plan = LIBRARIES[library][name], ParallelPlan.from_json(degrees)
    figures = [measure(model, size, plan, rank) for rank in unlike_ranks(plan)]
    by_kind = [sent(each.exchanges) for each in figures]
    blocks = max(each.blocks for each in figures)
    formulas = {kind: sum(terms.values()) for kind, terms in sent_bytes(model, size, plan, blocks).items()}
    formulas[WEIGHTS] = max(each.to_fetch for each in figures) * (plan.patch_count if plan.pipefusion > 1 else 1)
    total, wanted = max(sum(each.values()) for each in by_kind), sum(formulas.values())
    peak, own = max(each.peak for each in figures), activation_bytes(model, size, plan) / plan.token_ways
    return (
        str(plan),
        str(plan.world_size),
        f"{max(each.weights for each in figures) / 1e9:.2f}",
        f"{peak / 1e9:.2f}",
        f"{peak / own:.1f}",
        f"{max(each.flops for each in figures) / 1e12:.1f}",
        *(f"{max(each[kind] for each in by_kind) / 1e6:.1f}" for kind in formulas),
        f"{total / 1e6:.1f}",
        f"{wanted / 1e6:.1f}",
        f"{100 * (total / wanted - 1):+.1f} %" if wanted else "–",
    )


def head(model: Model, name: str, size: str) -> str:
    tokens = " + ".join(str(count) for count in (model.image_tokens(size), model.text) if count)
    title = f"\n{name} ({model.model_class}), {size}, {model.rows} × {tokens} tokens\n"
    return f"{title}\n| {' | '.join(HEAD)} |\n|---|{'---:|' * (len(HEAD) - 1)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=LIBRARIES, nargs="+", default=list(LIBRARIES))
    parser.add_argument("--models", choices=PLANS, nargs="+", default=list(PLANS))
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 16, 64])
    parser.add_argument("--every-size", action="store_true", help="of latents, and not the first alone")
    options = parser.parse_args()
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        begun = []
        for library, name in itertools.product(options.library, options.models):
            model = LIBRARIES[library][name]
            for size in list(model.sizes)[: None if options.every_size else 1]:
                plans = [plan for plan in PLANS[name] if ParallelPlan.from_json(plan).world_size in options.ranks]
                begun.append((head(model, name, size), [pool.submit(row, library, name, size, plan) for plan in plans]))
        for title, rows in begun:
            print(title)
            for each in rows:
                print(f"| {' | '.join(each.result())} |", flush=True)


if __name__ == "__main__":
    main()
