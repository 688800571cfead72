"""torch's flex attention with a mask of tiles: a compiled kernel that skips the blocks that the mask leaves out.

Shapes: B batch, h heads, S tokens, D head dim, N blocks of tokens, T tiles.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn.attention import flex_attention as flex

from ...compat import allow_recompiles, why_no_compiler
from ...device import is_accelerator
from ...errors import PlanError
from ...plan import OFF, ParallelPlan

BLOCK = 128  # tokens; flex attention's own size
LEAST_HEAD_DIM = 16
MOST_KERNELS = 64  # by number of heads, head dim, dtype, and one row of the batch or several


def check_flex(plan: ParallelPlan, device: torch.device, head_dim: int) -> None:
    """Raises PlanError if the plan's sparse attention needs a kernel that this device cannot have."""
    if plan.sparse == OFF or not is_accelerator(device):
        return
    why = why_no_compiler(is_cpu=False)
    if head_dim < LEAST_HEAD_DIM:
        why = f"it takes head dims from {LEAST_HEAD_DIM} on; the model's is {head_dim}"
    if why:
        raise PlanError(
            f"sparse={plan.sparse} needs torch's compiled flex attention, and {why}.", f"Use sparse={OFF}.", "sparse"
        )


def build_block_mask(pairs_TT: torch.Tensor, tile_of_S: torch.Tensor) -> flex.BlockMask:
    """Returns the mask under which a token attends to another if its tile attends to the other's tile.

    Everything is computed on the tensors' device, so the host waits for nothing. A block whose pairs all attend is
    computed without the mask; one of which none attends is skipped.
    """
    tokens, device = len(tile_of_S), tile_of_S.device
    blocks = -(-tokens // BLOCK)
    block_of_S = torch.arange(tokens, device=device) // BLOCK
    has_tile_NT = torch.zeros(blocks, len(pairs_TT), device=device)
    has_tile_NT.index_put_((block_of_S, tile_of_S), torch.ones((), device=device))
    attended_NN = has_tile_NT @ pairs_TT.float() @ has_tile_NT.T
    left_out_NN = has_tile_NT @ (~pairs_TT).float() @ has_tile_NT.T
    is_whole_N = torch.arange(1, blocks + 1, device=device) * BLOCK <= tokens
    full_NN = (left_out_NN == 0) & is_whole_N & is_whole_N.unsqueeze(1)
    partial_NN = (attended_NN > 0) & ~full_NN

    def attends(_batch: Any, _head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return pairs_TT[tile_of_S[query], tile_of_S[key]]

    return flex.BlockMask.from_kv_blocks(
        *list_blocks(partial_NN),
        *list_blocks(full_NN),
        BLOCK_SIZE=BLOCK,
        mask_mod=attends,
        seq_lengths=(tokens, tokens),
        compute_q_blocks=False,
    )


def list_blocks(blocks_NN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns for each row how many blocks are true, and the places of all, the true ones first."""
    places = blocks_NN.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks_NN.sum(-1, dtype=torch.int32)[None, None], places.to(torch.int32)[None, None]


@functools.cache
def compile_flex() -> Any:
    """Returns flex attention as a kernel. Without compiling, it would compute all scores, and keep them in memory."""
    return torch.compile(flex.flex_attention, fullgraph=True)


def flex_attention(
    q_BhSD: torch.Tensor, k_BhSD: torch.Tensor, v_BhSD: torch.Tensor, mask: flex.BlockMask, scale: float | None
) -> torch.Tensor:
    """Computes attention under a mask of `build_block_mask`, BhSD."""
    with allow_recompiles(MOST_KERNELS):
        return compile_flex()(q_BhSD, k_BhSD, v_BhSD, block_mask=mask, scale=scale)
