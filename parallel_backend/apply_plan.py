"""Applies a plan to an unmodified model. Each technique of the plan adds its hooks from outside."""

from __future__ import annotations

from functools import partial

import torch

from .axes import TOKEN_AXES
from .groups.mesh import Mesh
from .groups.mesh_layout import stages_of
from .hooks import Hooks
from .models.attention_sizes import AttentionSizes
from .models.checks import attention_paths, attention_sizes_of, check_class, check_module, modules_at
from .models.spec import BlockList, ModelSpec
from .plan import ParallelPlan
from .seams.attention import ParallelAttention, install_attention
from .seams.bands.model import share_rows
from .seams.boundary import install_boundary
from .seams.forward import ForwardSlot
from .seams.kernels.backends import NATIVE, Backend, choose_backend
from .seams.layout import TokenLayout
from .seams.mlp_overlap import MlpOverlap
from .seams.module_attention import ModuleAttention, attend_locally
from .seams.pipeline.stages import StageLink, StandIn, keep_stage
from .weights.sizes import WeightSizes


def apply_plan(
    model: torch.nn.Module,
    spec: ModelSpec | None,
    mesh: Mesh,
    dtype: torch.dtype,
    weights: WeightSizes,
    slot: ForwardSlot,
    hooks: Hooks,
) -> tuple[list[torch.nn.Module], StageLink | None, ParallelAttention | None, TokenLayout | None]:
    """Applies a plan to a model that has none, technique by technique. Each technique wraps the later ones.

    The batch (dp, cfg) is split outside all of them, where the model is called. `ParallelModel` compiles blocks and
    fetches their weights outside the hooks. dtype: what the model computes in. hooks: undo everything. Returns the
    blocks of this rank's stage; and, if there are any, the link to the neighbouring stages, the attention of shared
    tokens, and the layout of the blocks' tokens. Raises PlanError and leaves the model unchanged then.
    """
    plan = mesh.plan
    check_module(plan, model)
    sizes = None
    if spec and not spec.unshared and (shares_tokens(plan) or spec.is_diffusers):  # else a host's class runs its own
        sizes = attention_sizes_of(model, spec)
    kernel = choose_kernel(sizes, mesh, dtype)
    blocks = keep_own_blocks(model, spec, mesh, weights, hooks)  # pipefusion: removes other stages' blocks
    stages_alone = spec is not None and spec.unshared and plan.pipefusion > 1
    if spec is None or (not stages_alone and (sizes is None or kernel is None)):
        return blocks, None, None, None
    if kernel and not shares_tokens(plan):  # this rank has all tokens
        replace_kernel(model, spec, kernel, slot, hooks)
        return blocks, None, None, None
    if spec.bands and kernel:  # ulysses, ring: layers see this rank's rows, and attention sees all pixels
        return blocks, None, share_rows(model, spec.bands, mesh, slot, kernel, hooks), None
    layout = TokenLayout(spec.image, mesh["sequence"], slot)
    link = StageLink(mesh, layout) if plan.pipefusion > 1 else None  # pipefusion: passes tokens between stages
    install_boundary(model, spec, layout, hooks, link)  # ulysses, ring, patches: blocks see this rank's tokens
    if sizes is None or kernel is None:
        return blocks, link, None, layout
    overlap_mlp(model, spec, sizes, mesh, slot, hooks)  # ulysses, ring: an MLP is computed while tokens travel
    attention = ParallelAttention(mesh, layout, kernel)
    share_attention(model, spec, sizes, attention, hooks)  # ulysses, ring, patches: attention sees all tokens
    return blocks, link, attention, layout


def apply_plan_inside(
    network: torch.nn.Module, spec: ModelSpec, layout: TokenLayout, mesh: Mesh, dtype: torch.dtype, hooks: Hooks
) -> None:
    """Applies the plan of a model whose tokens are shared to a network that runs inside of it.

    layout: of the model. dtype: what the network computes in. Raises PlanError and leaves the network unchanged then.
    """
    check_class(network, spec, [axis for axis in TOKEN_AXES if getattr(mesh.plan, axis) > 1])
    sizes = attention_sizes_of(network, spec) if spec.attends else None
    kernel = choose_kernel(sizes, mesh, dtype)
    hooks.replace(layout, "starts", {**layout.starts, **(spec.inside or {})})
    install_boundary(network, spec, layout, hooks, None)
    if sizes and kernel:
        share_attention(network, spec, sizes, ParallelAttention(mesh, layout, kernel), hooks)


def shares_tokens(plan: ParallelPlan) -> bool:
    """Returns whether a block sees only some tokens, or a rank has only some blocks."""
    return plan.token_ways * plan.pipefusion * plan.patch_count > 1


def choose_kernel(sizes: AttentionSizes | None, mesh: Mesh, dtype: torch.dtype) -> Backend | None:
    """Returns the kernel of shared attention. None if blocks keep the model's own attention. Raises PlanError."""
    if sizes is None:
        return None
    kernel = choose_backend(mesh.plan.attention, mesh.device, dtype, sizes.head_dim, mesh.plan.ring)
    return kernel if shares_tokens(mesh.plan) or kernel is not NATIVE else None


def keep_own_blocks(
    model: torch.nn.Module, spec: ModelSpec | None, mesh: Mesh, weights: WeightSizes, hooks: Hooks
) -> list[torch.nn.Module]:
    """Removes other stages' blocks from the model, and returns the others."""
    lists, plan = spec.blocks if spec else (), mesh.plan
    count = sum(len(modules_at(model, blocks.path)) for blocks in lists)
    own = stages_of(plan, weights.blocks)[mesh["pipefusion"].index] if plan.pipefusion > 1 else range(count)
    return keep_stage(model, lists, own, hooks, spec.shared if spec else ())


def overlap_mlp(
    model: torch.nn.Module, spec: ModelSpec, sizes: AttentionSizes, mesh: Mesh, slot: ForwardSlot, hooks: Hooks
) -> None:
    """Makes blocks with a parallel MLP compute it while attention's tokens travel."""
    if mesh.plan.token_ways == 1:
        return
    width = sizes.heads * sizes.head_dim
    for blocks, block in own_blocks(model, spec):
        MlpOverlap(block, blocks.parallel_mlp, width, slot).install(hooks)


def share_attention(
    model: torch.nn.Module, spec: ModelSpec, sizes: AttentionSizes, attention: ParallelAttention, hooks: Hooks
) -> None:
    """Passes the attention of every block to `attention`."""
    for blocks, block in own_blocks(model, spec):
        for path in attention_paths(block, blocks):
            module, streams = block.get_submodule(path), blocks.attention[path]
            calls = (streams,) if isinstance(streams, str) else streams
            attends = [ModuleAttention(attention, model, module, blocks, path, call, sizes) for call in calls]
            install_attention(block, path, attends, hooks, attention.layout.slot)


def replace_kernel(model: torch.nn.Module, spec: ModelSpec, kernel: Backend, slot: ForwardSlot, hooks: Hooks) -> None:
    """Makes this kernel compute the self-attention of every block, or of a UNet's layers."""
    attention = partial(attend_locally, kernel)
    for path in spec.bands.attention_paths(model) if spec.bands else ():
        install_attention(model, path, [attention], hooks, slot, is_local=True)
    for blocks, block in own_blocks(model, spec):
        for path in attention_paths(block, blocks):
            install_attention(block, path, [attention], hooks, slot, is_local=True)


def own_blocks(model: torch.nn.Module, spec: ModelSpec) -> list[tuple[BlockList, torch.nn.Module]]:
    """Returns the blocks of this stage, each with its list."""
    every = [(blocks, block) for blocks in spec.blocks for block in modules_at(model, blocks.path)]
    return [(blocks, block) for blocks, block in every if not isinstance(block, StandIn)]
