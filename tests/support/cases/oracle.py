"""PipeFusion by definition, in one process: the oracle that every parallel run is compared with.

Written from the definition (design, section 3), on plain diffusers models with hooks of its own; it shares nothing
with `parallel_backend` but the model. Patches are ranges of image tokens; the text goes with patch 0. A step before
`sync_steps` runs whole and keeps every attention's keys and values; after that, patch by patch, a patch replaces its
own keys and values and attends to all.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import torch
import torch.nn.functional as F

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Anatomy:
    """What the oracle must know of a family.

    blocks: block lists. attention: attention modules and the order in which they join "text" and "image"; none where
    the image cannot be cut to patches.
    sides: arguments with an entry for each token, such as rotary embeddings: token dim, and what it covers.
    patch: latent pixels a token, over the latents' last dims. image_out: its place in a block's returned tuple.
    text_cut: where the last block returns text and image joined, or the model joins them, whether it cuts off the
    "whole" text, by the length that it has before the blocks, or what is "running" of it.
    """

    blocks: tuple[str, ...]
    attention: dict[str, tuple[str, ...]]
    patch: tuple[int, ...] = (2, 2)
    has_text: bool = False
    sides: tuple[tuple[str, int, tuple[str, ...]], ...] = ()
    image_out: int | None = None
    text_cut: str | None = None
    timestep_scale: float = 1.0


ANATOMIES = {
    "dit": Anatomy(("transformer_blocks",), {"attn1": ("image",)}),
    "pixart-alpha": Anatomy(("transformer_blocks",), {"attn1": ("image",)}),
    "sd3.5": Anatomy(
        ("transformer_blocks",), {"attn": ("image", "text"), "attn2": ("image",)}, has_text=True, image_out=1
    ),
    "flux-dev": Anatomy(
        ("transformer_blocks", "single_transformer_blocks"),
        {"attn": ("text", "image")},
        has_text=True,
        sides=(("image_rotary_emb", 0, ("text", "image")),),
        image_out=1,
        timestep_scale=1e-3,
    ),
    "bria": Anatomy(
        ("transformer_blocks", "single_transformer_blocks"),
        {"attn": ("text", "image")},
        has_text=True,
        sides=(("image_rotary_emb", 0, ("text", "image")),),
        image_out=1,
    ),
    "cogvideox-5b": Anatomy(
        ("transformer_blocks",),
        {"attn1": ("text", "image")},
        patch=(1, 2, 2),
        has_text=True,
        sides=(("image_rotary_emb", 0, ("image",)),),
        image_out=0,
    ),
    "cogview4": Anatomy(
        ("transformer_blocks",),
        {"attn1": ("text", "image")},
        has_text=True,
        sides=(("image_rotary_emb", 0, ("image",)),),
        image_out=0,
    ),
    "easyanimate": Anatomy(
        ("transformer_blocks",),
        {"attn1": ("text", "image")},
        patch=(1, 2, 2),
        has_text=True,
        sides=(("image_rotary_emb", 0, ("image",)),),
        image_out=0,
    ),
    "allegro": Anatomy(
        ("transformer_blocks",), {"attn1": ("image",)}, patch=(1, 2, 2), sides=(("image_rotary_emb", 1, ("image",)),)
    ),
    "consisid": Anatomy(
        ("transformer_blocks",),
        {"attn1": ("text", "image")},
        patch=(1, 2, 2),
        has_text=True,
        sides=(("image_rotary_emb", 0, ("image",)),),
        image_out=0,
        text_cut="whole",
    ),
    "mochi": Anatomy(
        ("transformer_blocks",),
        {"attn1": ("image", "text")},
        patch=(1, 2, 2),
        has_text=True,
        sides=(("image_rotary_emb", 0, ("image",)), ("encoder_attention_mask", 1, ("text",))),
        image_out=0,
    ),
    "hunyuandit-1.2": Anatomy(("blocks",), {"attn1": ("image",)}, sides=(("image_rotary_emb", 0, ("image",)),)),
    "wan-t2v": Anatomy(("blocks",), {"attn1": ("image",)}, patch=(1, 2, 2), sides=(("rotary_emb", 1, ("image",)),)),
    "skyreels-t2v": Anatomy(
        ("blocks",), {"attn1": ("image",)}, patch=(1, 2, 2), sides=(("rotary_emb", 1, ("image",)),)
    ),
    "ltx": Anatomy(
        ("transformer_blocks",),
        {"attn1": ("image",)},
        patch=(1, 1, 1),
        sides=(("image_rotary_emb", 1, ("image",)),),
        timestep_scale=1e-3,
    ),
    "chroma": Anatomy(
        ("transformer_blocks", "single_transformer_blocks"),
        {"attn": ("text", "image")},
        has_text=True,
        sides=(("image_rotary_emb", 0, ("text", "image")),),
        text_cut="running",
        timestep_scale=1e-3,
    ),
    "flux2-dev": Anatomy(
        ("transformer_blocks", "single_transformer_blocks"),
        {"attn": ("text", "image")},
        patch=(1, 1),
        has_text=True,
        sides=(("image_rotary_emb", 0, ("text", "image")),),
        text_cut="whole",
        timestep_scale=1e-3,
    ),
    "kandinsky5": Anatomy(
        ("visual_transformer_blocks",),
        {"self_attention": ("image",)},
        patch=(1, 2, 2),
        sides=(("rope", 1, ("image",)),),
    ),
    "cosmos-predict2": Anatomy(
        ("transformer_blocks",),
        {"attn1": ("image",)},
        patch=(1, 2, 2),
        sides=(("image_rotary_emb", 0, ("image",)),),
        timestep_scale=1e-3,
    ),
    "hidream": Anatomy(("double_stream_blocks", "single_stream_blocks"), {}),
    "omnigen": Anatomy(("layers",), {}),
    "sana": Anatomy(("transformer_blocks",), {}),
    "hunyuanvideo": Anatomy(("transformer_blocks", "single_transformer_blocks"), {}, patch=(1, 2, 2)),
    "qwenimage": Anatomy(("transformer_blocks",), {}, patch=(1, 2, 2), timestep_scale=1e-3),
    "z-image": Anatomy(("layers",), {}, timestep_scale=1e-3),
    "lumina2": Anatomy(("layers",), {}, timestep_scale=1e-3),
    "auraflow": Anatomy(
        ("joint_transformer_blocks", "single_transformer_blocks"),
        {"attn": ("text", "image")},
        has_text=True,
        text_cut="running",
        timestep_scale=1e-3,
    ),
}
ANATOMIES["ovis"] = replace(ANATOMIES["bria"], timestep_scale=1e-3)


class Oracle:
    """The model with its tokens cut to one patch, or whole."""

    def __init__(self, model: torch.nn.Module, anatomy: Anatomy) -> None:
        self.anatomy = anatomy
        self.range: tuple[int, int] | None = None
        self.counts: dict[str, int] = {}
        self.cache: dict[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}
        self.attending: torch.nn.Module | None = None
        self.order: dict[torch.nn.Module, tuple[str, ...]] = {}
        blocks = [block for name in anatomy.blocks for block in getattr(model, name)]
        blocks[0].register_forward_pre_hook(self.cut, with_kwargs=True)
        for block in blocks:
            block.register_forward_pre_hook(self.cut_sides, with_kwargs=True)
            for name, order in anatomy.attention.items():
                module = getattr(block, name, None)
                if module is not None:
                    self.order[module] = order
                    module.register_forward_pre_hook(self.enter)
                    module.register_forward_hook(self.leave)
        blocks[-1].register_forward_hook(self.widen)

    def tokens_of(self, kind: str) -> range:
        """The tokens of a stream that are running."""
        if self.range is None:
            return range(self.counts[kind])
        if kind == "text":
            return range(self.counts["text"] if self.range[0] == 0 else 0)
        return range(*self.range)

    def cut(self, _block: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        names = ["hidden_states", "encoder_hidden_states"]
        values = dict(zip(names, args, strict=False)) | kwargs
        self.counts = {"image": values["hidden_states"].shape[1]}
        cut = {"hidden_states": values["hidden_states"][:, list(self.tokens_of("image"))]}
        if self.anatomy.has_text:
            self.counts["text"] = values["encoder_hidden_states"].shape[1]
            cut["encoder_hidden_states"] = values["encoder_hidden_states"][:, list(self.tokens_of("text"))]
        kwargs = {name: cut.get(name, value) for name, value in kwargs.items()}
        return tuple(cut.get(name, value) for name, value in zip(names, args, strict=False)) + args[2:], kwargs

    def cut_sides(self, block: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        names = [*inspect.signature(block.forward).parameters]
        for name, dim, covers in self.anatomy.sides:
            rows, start = [], 0
            for kind in covers:
                rows += [start + token for token in self.tokens_of(kind)]
                start += self.counts[kind]
            if name in kwargs:
                kwargs = {**kwargs, name: cut_side(kwargs[name], dim, rows, start)}
            else:
                place = names.index(name)
                args = (*args[:place], cut_side(args[place], dim, rows, start), *args[place + 1 :])
        return args, kwargs

    def enter(self, module: torch.nn.Module, _args: tuple) -> None:
        self.attending = module

    def leave(self, _module: torch.nn.Module, _args: tuple, _output: object) -> None:
        self.attending = None

    def widen(self, _block: torch.nn.Module, _args: tuple, output: torch.Tensor | tuple) -> torch.Tensor | tuple:
        if self.range is None:
            return output
        place, cut = self.anatomy.image_out, self.anatomy.text_cut
        text = self.counts["text"] if cut == "whole" else len(self.tokens_of("text")) if cut else 0
        if place is None:
            return self.in_place(output, text)
        others = [out.new_zeros(len(out), text, out.shape[2]) if cut else out for out in output]
        return (*others[:place], self.in_place(output[place], 0), *others[place + 1 :])

    def in_place(self, part: torch.Tensor, text: int) -> torch.Tensor:
        """The running image tokens at the end of a tensor, in their places among all, behind so many text tokens."""
        image = part[:, -len(self.tokens_of("image")) :]
        whole = part.new_zeros(len(part), text + self.counts["image"], part.shape[2])
        whole[:, [text + token for token in self.tokens_of("image")]] = image
        return whole

    def attend(self, plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def attention(query, key, value, *rest, **options):
            module = self.attending
            if module is None:
                return plain(query, key, value, *rest, **options)
            if self.range is None:
                self.cache[module] = (key.clone(), value.clone())
                return plain(query, key, value, **options)
            rows, start = [], 0
            for kind in self.order[module]:
                rows += [start + token for token in self.tokens_of(kind)]
                start += self.counts[kind]
            for cached, fresh in zip(self.cache[module], (key, value), strict=True):
                cached[:, :, rows] = fresh
            return plain(query, *self.cache[module], **options)

        return attention

    @contextmanager
    def installed(self) -> Iterator[None]:
        with mock.patch.object(F, "scaled_dot_product_attention", self.attend(F.scaled_dot_product_attention)):
            yield


def cut_side(value: torch.Tensor | tuple, dim: int, rows: list[int], tokens: int) -> torch.Tensor | tuple:
    """These rows of each tensor that has an entry for each token."""
    if isinstance(value, tuple):
        return tuple(cut_side(part, dim, rows, tokens) for part in value)
    index = torch.tensor(rows, dtype=torch.long)
    return value.index_select(dim, index) if value.shape[dim] == tokens else value


@torch.inference_mode()
def sample(
    model: torch.nn.Module,
    anatomy: Anatomy,
    reference: Callable[[torch.nn.Module, torch.Tensor, torch.Tensor, Tensors], torch.Tensor],
    scheduler: object,
    latents: torch.Tensor,
    conditions: Tensors,
    negative: Tensors | None = None,
    guidance: float = 1.0,
    patches: int = 1,
    sync_steps: int | None = None,
) -> torch.Tensor:
    """Denoises with stale keys and values; with `sync_steps` None, exactly. Guidance runs its two branches in turn."""
    schedulers = [copy.deepcopy(scheduler) for _ in range(patches)]
    owner = pixel_owners(latents, anatomy.patch, patches)
    tokens = owner_bounds(latents, anatomy.patch, patches)
    models = [copy.deepcopy(model) for _ in range(1 if negative is None else 2)]
    branches = [Oracle(branch_model, anatomy) for branch_model in models]
    branch_conditions = [conditions] if negative is None else [conditions, negative]

    def predict(step: int, inputs: torch.Tensor, bounds: tuple[int, int] | None) -> torch.Tensor:
        timestep = torch.full((len(inputs),), float(scheduler.timesteps[step]) * anatomy.timestep_scale)
        outputs = []
        for oracle, branch_model, branch in zip(branches, models, branch_conditions, strict=True):
            oracle.range = bounds
            with oracle.installed():
                outputs.append(reference(branch_model, inputs, timestep, branch))
        return outputs[0] if negative is None else outputs[1] + guidance * (outputs[0] - outputs[1])

    def advance(patch: int, prediction: torch.Tensor, step: int, now: torch.Tensor) -> torch.Tensor:
        return schedulers[patch].step(prediction, scheduler.timesteps[step], now, return_dict=False)[0]

    for step in range(len(scheduler.timesteps)):
        inputs = torch.empty_like(latents)
        for patch in range(patches):
            scaled = latents
            if hasattr(scheduler, "scale_model_input"):
                scaled = schedulers[patch].scale_model_input(latents, scheduler.timesteps[step])
            inputs = torch.where(owner == patch, scaled, inputs)
        if sync_steps is None or step < sync_steps:
            prediction = predict(step, inputs, None)
            after = [advance(patch, prediction, step, latents) for patch in range(patches)]
        else:
            after = [advance(patch, predict(step, inputs, tokens[patch]), step, latents) for patch in range(patches)]
        for patch in range(patches):
            latents = torch.where(owner == patch, after[patch], latents)
    return latents


def owner_bounds(latents: torch.Tensor, patch: tuple[int, ...], patches: int) -> list[tuple[int, int]]:
    """Token ranges of the patches: as even as can be, the longer ones first."""
    tokens = 1
    for size, side in zip(latents.shape[2:], patch, strict=True):
        tokens *= size // side
    bounds, start = [], 0
    for index in range(patches):
        stop = start + tokens // patches + (index < tokens % patches)
        bounds.append((start, stop))
        start = stop
    return bounds


def pixel_owners(latents: torch.Tensor, patch: tuple[int, ...], patches: int) -> torch.Tensor:
    """The patch that each latent pixel belongs to, in the latents' last dims."""
    token = torch.zeros(latents.shape[2:], dtype=torch.long)
    for dim, side in enumerate(patch):
        size = latents.shape[2 + dim]
        index = (torch.arange(size) // side).reshape([-1 if d == dim else 1 for d in range(len(patch))])
        token = token * (size // side) + index
    owner = torch.zeros_like(token)
    for index, (start, stop) in enumerate(owner_bounds(latents, patch, patches)):
        owner[(token >= start) & (token < stop)] = index
    return owner
