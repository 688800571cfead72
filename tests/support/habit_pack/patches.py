"""Functions that ComfyUI's classes call at places of the model: patches of attention, of blocks, and in their place."""

import comfy.utils
import torch
from comfy.ldm.modules.attention import optimized_attention

from . import scale as scales
from .scale import scale


def sharper(q, k, v, pe=None, attn_mask=None, extra_options=None):
    """Of a Flux: before attention."""
    return {"q": scale(q)}


def sharper_with_mean(x, context, value, _options):
    """Of a UNet: before attention."""
    x = x + 0.3 * x.mean(1, keepdim=True)
    return (x, x if value is None or value.shape == x.shape else context, scale(context if value is None else value))


def write_over_text(x, context, value, _options):
    """Of a UNet: before attention, in place. ComfyUI gives a copy of its text to each call of the model."""
    context *= 1.05
    return x, context, value


class WithReference:
    """Attention to the text, and to tokens of a picture beside it."""

    def __init__(self, width, weight):
        self.tokens = torch.randn(1, 4, width, generator=torch.Generator().manual_seed(5))
        self.weight = weight

    def __call__(self, q, k, v, extra_options):
        heads, tokens = extra_options["n_heads"], self.tokens.to(q).expand(len(q), -1, -1)
        beside = optimized_attention(q, tokens, tokens, heads=heads)
        return optimized_attention(q, k, v, heads=heads) + self.weight * beside


class InRegion(WithReference):
    """In a region of the picture, as IP-Adapters add it: right more than left, and below more than above. It takes all
    pixels of the picture."""

    def __call__(self, q, k, v, extra_options):
        text = optimized_attention(q, k, v, heads=extra_options["n_heads"])
        height, width = extra_options["original_shape"][-2:]
        mask = torch.linspace(0, 1, width).expand(height, -1) * torch.linspace(0.5, 1, height)[:, None]
        rows = -(-height // round((height * width / q.shape[1]) ** 0.5))
        small = torch.nn.functional.interpolate(mask[None, None], size=(rows, q.shape[1] // rows), mode="bilinear")
        return torch.lerp(text, super().__call__(q, k, v, extra_options), small.flatten()[None, :, None].to(q))


def louder_output(out, _options):
    return out + 0.3 * out.mean(1, keepdim=True)


def louder_block(h, options):
    return scale(h) if options["block"][1] % 2 else h


def louder_middle(given):
    return {"h": scale(given["h"])}


def later(emb, _channels, _options):
    return scale(emb)


class Shrinking:
    """Fewer pixels in the depth."""

    def __init__(self, block, factor):
        self.block, self.factor = block, factor

    def down(self, h, options):
        if options["block"][1] != self.block:
            return h
        height, width = (round(self.factor * size) for size in h.shape[-2:])
        return comfy.utils.common_upscale(h, width, height, "bicubic", "disabled")

    def up(self, h, skip, _options):
        return comfy.utils.common_upscale(h, skip.shape[-1], skip.shape[-2], "bilinear", "disabled"), skip


class Windows:
    """Attention within windows: before it the tokens of each window become a row, behind it they come back."""

    def __init__(self, count):
        self.count, self.rows = count, None

    def part(self, x, context, value, _options):
        self.rows = len(x)
        return tuple(each.reshape(self.rows * self.count, -1, each.shape[-1]) for each in (x, context, value))

    def join(self, out, _options):
        return out.reshape(self.rows, -1, out.shape[-1])


def skip_block(given, _extra):
    return given


def replacing(weight):
    """A block whose result is mixed with what it was given."""

    def replaced(given, extra):
        before = given["img"].clone()  # some blocks write to it
        found = extra["original_block"](given)
        return {**found, "img": torch.lerp(before, found["img"], weight)}

    return replaced


def behind_block(given):
    return {"img": scale(given["img"]) if given["block_index"] == 0 else given["img"]}


class Chunked:
    """A feed-forward that gets its tokens in parts."""

    def __init__(self, forward, parts):
        self.forward, self.parts = forward, parts

    def __call__(self, tokens):
        return torch.cat([self.forward(each) + scales.STRENGTH * each for each in tokens.chunk(self.parts, 1)], 1)
