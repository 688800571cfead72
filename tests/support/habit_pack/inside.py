"""What runs inside of the model: functions, objects and modules."""

import comfy.ldm.flux.layers
import comfy.ldm.flux.model
import comfy.ldm.modules.attention
import torch

from . import scale as scales
from .scale import first, scale


def louder(function):
    """The function with a larger result, as node packs wrap a method."""

    def forward(*args, **kwargs):
        return scale(function(*args, **kwargs))

    return forward


def louder_method(function):
    def forward(self, *args, **kwargs):
        return scale(function(self, *args, **kwargs))

    return forward


def hook_after(_module, _args, output):
    return scale(output)


def hook_before(_module, args, kwargs):
    if args:
        return (scale(args[0]), *args[1:]), kwargs
    name = next(name for name, value in kwargs.items() if isinstance(value, torch.Tensor))
    return args, {**kwargs, name: scale(kwargs[name])}


class Turned:
    """Holds numbers of a kind that is not sent to a rank, as tables of positions are."""

    def __init__(self):
        self.turns = torch.polar(torch.full((4,), 1.1), torch.arange(4.0))

    def __call__(self, _module, _args, output):
        factor = self.turns.abs().mean()
        return factor * output if isinstance(output, torch.Tensor) else tuple(factor * each for each in output)


def random_hook(_module, _args, output):
    noise = 1 + 0.1 * torch.rand(1)
    return noise * output if isinstance(output, torch.Tensor) else tuple(noise * each for each in output)


class Adapter(torch.nn.Module):
    """A block with a small network beside it."""

    def __init__(self, block, width):
        super().__init__()
        self.block, self.width = block, width
        self.down = torch.nn.Linear(width, 4, bias=False)
        self.register_buffer("gain", torch.tensor(0.5))
        weight = torch.randn(4, width, generator=torch.Generator().manual_seed(3))
        self.down.weight = torch.nn.Parameter(weight, requires_grad=False)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("block"), name)

    def beside(self, tokens):
        return self.gain * self.down(tokens[..., : self.width]).sigmoid()[..., :1]

    def forward(self, *args, **kwargs):
        output = self.block(*args, **kwargs)
        if isinstance(output, torch.Tensor):
            return output * (1 + self.beside(output))
        return (output[0] * (1 + self.beside(output[0])), *output[1:])


class LouderFlux(comfy.ldm.flux.layers.DoubleStreamBlock):
    """A class of the pack's own, which it derives from the block's."""

    def forward(self, *args, **kwargs):
        return scale(super().forward(*args, **kwargs))


class LouderWhole(comfy.ldm.flux.model.Flux):
    """A class in place of the whole model's, with a part of its forward."""

    def forward_orig(self, img, *args, **kwargs):
        return scale(super().forward_orig(scale(img), *args, **kwargs))


class OwnWhole(LouderWhole):
    """One with a forward of its own, which runs no wrappers."""

    def forward(self, x, timestep, context, y=None, guidance=None, ref_latents=None, control=None, **kwargs):
        side, (height, width) = self.patch_size, x.shape[-2:]
        img, img_ids = self.process_img(x)
        ids = torch.zeros((len(x), context.shape[1], 3), device=x.device, dtype=torch.float32)
        options = kwargs["transformer_options"]
        out = self.forward_orig(img, img_ids, context, ids, timestep, y, guidance, control, transformer_options=options)
        rows, columns = -(-height // side), -(-width // side)
        out = out.reshape(len(x), rows, columns, -1, side, side).permute(0, 3, 1, 4, 2, 5)
        return scale(out.reshape(len(x), -1, rows * side, columns * side)[..., :height, :width])


class AroundWhole(comfy.ldm.flux.model.Flux):
    """One whose forward goes on to the model's own."""

    def forward(self, x, *args, **kwargs):
        return super().forward(scale(x), *args, **kwargs)


class Cache:
    """A block whose result is kept, and used again in every other call, as the caches of steps do."""

    def __init__(self, forward):
        self.forward = forward
        self.calls = 0
        self.kept = None
        self.skipped = []
        self.last = self.before = None

    def __call__(self, *args, **kwargs):
        self.calls += 1
        key = first(args if args else list(kwargs.values())).shape
        if self.kept is None or self.calls % 2 or self.kept[0] != key:
            self.kept = (key, self.forward(*args, **kwargs))
        else:
            self.skipped.append(self.calls)
        self.before, self.last = self.last, first(self.kept[1])
        return self.kept[1]


class FirstBlockCache(torch.nn.Module):
    """In place of a model's blocks: runs the first one, and the others only if its change is another than before."""

    def __init__(self, blocks):
        super().__init__()
        self.blocks = torch.nn.ModuleList(blocks)
        self.change = self.rest = None

    def run(self, block, tokens, text, args, kwargs):
        if "img" not in kwargs:
            return block(tokens, *args[1:], **kwargs), text
        return block(**{**kwargs, "img": tokens, "txt": text})

    def forward(self, *args, **kwargs):
        tokens, text = (kwargs["img"], kwargs["txt"]) if "img" in kwargs else (args[0], None)
        before = tokens.clone()
        first, text = self.run(self.blocks[0], tokens, text, args, kwargs)
        change = first - before
        if self.change is not None and ((change - self.change).abs().mean() / self.change.abs().mean()).item() < 0.5:
            scales.CALLS["count"] += 1
            tokens = first + self.rest
        else:
            tokens = first.clone()
            for block in self.blocks[1:]:
                tokens, text = self.run(block, tokens, text, args, kwargs)
            self.change, self.rest = change, tokens - first
        return tokens if "img" not in kwargs else (tokens, text)


def counting(function):
    """A closure that counts, and does something else each time."""
    calls = 0
    seen = {}

    def forward(*args, **kwargs):
        nonlocal calls
        calls += 1
        seen[calls] = True
        output = function(*args, **kwargs)
        factor = 1 + 0.1 * calls + 0.01 * len(seen)
        return factor * output if isinstance(output, torch.Tensor) else tuple(factor * each for each in output)

    return forward


class AnyType(str):
    """Stands for any kind of input in node packs. A rank cannot have it."""


class Tally:
    """Counts on the class."""

    RETURN_TYPES = (AnyType("*"),)
    calls = 0

    @classmethod
    def louder(cls, output):
        cls.calls += 1
        factor = 1 + 0.1 * cls.calls
        return factor * output if isinstance(output, torch.Tensor) else tuple(factor * each for each in output)


class Noise:
    @staticmethod
    def louder(output):
        return random_hook(None, None, output)


def by_class(cls, function):
    """Calls a class that it has closed over."""
    Tally.calls = 0

    def forward(*args, **kwargs):
        return cls.louder(function(*args, **kwargs))

    return forward


def counting_on_the_module(module, _args, output):
    """Keeps its count on the module, as TeaCache does."""
    module.habit_calls = getattr(module, "habit_calls", 0) + 1
    scales.CALLS["count"] += 1
    factor = 1 + 0.1 * module.habit_calls
    return factor * output if isinstance(output, torch.Tensor) else tuple(factor * each for each in output)


def attention_with_mean(q, k, v, heads, *args, **kwargs):
    return with_mean(comfy.ldm.modules.attention.attention_pytorch(q, k, v, heads, *args, **kwargs))


def attention_override(function, *args, **kwargs):
    return with_mean(function(*args, **kwargs))


def with_mean(output):
    return output + 0.5 * output.mean(-2, keepdim=True)


def counting_from_outside(module, _args, output):
    """Goes on with a number that the pack has put on the module."""
    module.habit_factor += 0.1
    factor = module.habit_factor + getattr(module, "_habit_more", 0)
    return factor * output if isinstance(output, torch.Tensor) else tuple(factor * each for each in output)


class Region:
    """A patch that weighs tokens by a mask, as regional prompting does."""

    def __init__(self, weight):
        self.weight = weight

    def output(self, out, _options):
        return out * torch.linspace(1, 1 + self.weight, out.shape[1], device=out.device)[None, :, None].to(out)

    def block(self, given, extra):
        found = extra["original_block"](given)
        return {**found, "img": scale(found["img"])}


def mixing_rows(out, _options):
    """Needs all rows of its call."""
    return out + 0.1 * out.mean(0, keepdim=True)


def own_forward(self, x, timesteps, context=None, **kwargs):
    """In place of a model's forward. It runs a method of the class, as copies of forwards run the model's parts."""
    forward = getattr(type(self), "_forward", type(self).forward)
    return scale(forward(self, scale(x), timesteps, context, **kwargs))


def own_inner_forward(self, *args, **kwargs):
    return scale(type(self)._forward(self, *args, **kwargs))
