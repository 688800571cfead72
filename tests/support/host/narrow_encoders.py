"""Test-only node pack: the host's text encoders, narrow inside.

ComfyUI builds T5-XXL at full size from whatever is in its file: 20 s a prompt. Here T5 and CLIP keep their tokenizer
and their width, with few layers and heads, small MLPs, 1,024 words, seeded weights.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from comfy.clip_model import CLIPTextModel
from comfy.sd1_clip import SDClipModel
from comfy.text_encoders.t5 import T5

NODE_CLASS_MAPPINGS = {}

WORDS = 1024
T5_SIZES = {"num_layers": 2, "num_heads": 4, "d_ff": 64, "vocab_size": WORDS}
LAYERS = 4  # of CLIP

build = SDClipModel.__init__


def narrow_sizes(model_class: type) -> dict[str, int]:
    """What replaces the encoder's configuration; nothing for encoders that are of no kind known here."""
    if issubclass(model_class, T5):
        return T5_SIZES
    return {"num_hidden_layers": LAYERS} if issubclass(model_class, CLIPTextModel) else {}


@functools.wraps(build)
def build_narrow(self: SDClipModel, *args: Any, **options: Any) -> None:
    """SDClipModel's constructor with other sizes, by the option that it takes them from."""
    sizes, model_options = narrow_sizes(options.get("model_class", CLIPTextModel)), options.get("model_options", {})
    nameless = "clip_l" if options.get("textmodel_json_config") is None else ""
    key = f"{model_options.get('model_name', nameless)}_model_config"
    options["model_options"] = {**model_options, key: {**model_options.get(key, {}), **sizes}}
    build(self, *args, **options)
    if sizes:
        fill(self.transformer)
        wrap_words(self.transformer.get_input_embeddings())


def fill(encoder: torch.nn.Module) -> None:
    """Seeded weights: no file holds any of these sizes."""
    noise = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
    for name, parameter in encoder.named_parameters():
        if parameter.ndim < 2:
            parameter.data.fill_("norm" in name and name.endswith("weight"))
            continue
        scale = 1.0 if "embed" in name or "shared" in name else parameter[0].numel() ** -0.5
        scaled = (noise * scale).to(parameter.dtype)
        for part in parameter.data.view(-1).split(len(noise)):
            part.copy_(scaled[: len(part)])


def wrap_words(embedding: torch.nn.Embedding) -> None:
    """Every word of the tokenizer's has a row, some the same."""
    look_up, rows = embedding.forward, embedding.num_embeddings
    embedding.forward = lambda tokens, *args, **options: look_up(tokens % rows, *args, **options)


SDClipModel.__init__ = build_narrow
