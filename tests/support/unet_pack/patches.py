"""What runs inside of the UNet."""

import torch
import torch.nn.functional as F
from comfy.ldm.modules.attention import optimized_attention

PLACES = (("input", 1), ("middle", 0), ("output", 5))
WIDTH = 24  # of the text


def waves(*shape):
    """Numbers between -1 and 1. Code that draws random numbers would not run in the ranks."""
    return torch.arange(float(torch.Size(shape).numel())).mul(1.7).sin().reshape(shape)


class ImagePrompt:
    """Attention to an image's tokens beside the text's, in a region of the picture, as IP-Adapters add it."""

    def __init__(self, weight):
        self.weight = weight
        self.tokens = waves(1, 5, WIDTH)

    def __call__(self, query, key, value, options):
        text = optimized_attention(query, key, value, options["n_heads"])
        tokens = self.tokens.to(query)
        keys, values = (
            (scale * tokens @ waves(WIDTH, query.shape[-1]).to(query)).expand(len(query), -1, -1) for scale in (1, 3)
        )
        image = optimized_attention(query, keys, values, options["n_heads"])
        return text + self.weight * image * self.region(options, query)

    def region(self, options, query):
        """The right of the picture, and more below than above. It takes all pixels of the picture."""
        height, width = options["original_shape"][-2:]
        mask = torch.linspace(0, 1, width).expand(height, -1) * torch.linspace(0.5, 1, height)[:, None]
        rows = -(-height // round((height * width / query.shape[1]) ** 0.5))
        small = F.interpolate(mask[None, None], size=(rows, query.shape[1] // rows), mode="bilinear")
        return small.flatten()[None, :, None].to(query)


def image_prompt(patcher):
    for place in PLACES:
        patcher.set_model_attn2_replace(ImagePrompt(0.6), *place)
