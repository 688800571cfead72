"""Mochi 1 (https://github.com/genmoai/mochi), from text. Its text is narrower than its video."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from .joint import COGVIDEOX
from .usual import register_usual, replace_processors


def rotated(x_BLHD: torch.Tensor, cosines_LHE: torch.Tensor, sines_LHE: torch.Tensor) -> torch.Tensor:
    """Turns neighbouring channels as pairs."""
    even, odd = x_BLHD.float().unflatten(-1, (-1, 2)).unbind(-1)
    pairs = even * cosines_LHE - odd * sines_LHE, even * sines_LHE + odd * cosines_LHE
    return torch.stack(pairs, -1).flatten(-2).to(x_BLHD.dtype)


def attend(
    attn: Any,
    hidden_states: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    attention_mask: torch.Tensor,
    image_rotary_emb: tuple[torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes a block's attention in one call for all rows. The class's own makes a call for each row, of tokens that
    count there. Here a mask leaves the others out. Returns the image's tokens and the text's. attention_mask: of the
    text, (B, L)."""

    def heads(layer: torch.nn.Module, tokens_BLD: torch.Tensor) -> torch.Tensor:
        return layer(tokens_BLD).unflatten(2, (attn.heads, -1))

    image, text = hidden_states, encoder_hidden_states
    image_qk = ((attn.norm_q, attn.to_q), (attn.norm_k, attn.to_k))
    text_qk = ((attn.norm_added_q, attn.add_q_proj), (attn.norm_added_k, attn.add_k_proj))
    own = [rotated(norm(heads(layer, image)), *image_rotary_emb) for norm, layer in image_qk]
    others = [norm(heads(layer, text)) for norm, layer in text_qk]
    pairs = zip([*own, heads(attn.to_v, image)], [*others, heads(attn.add_v_proj, text)], strict=True)
    query, key, value = (torch.cat(pair, 1).transpose(1, 2) for pair in pairs)
    mask = F.pad(attention_mask.bool(), (image.shape[1], 0), value=True)[:, None, None]
    out_BLD = F.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2).flatten(2)
    of_image, of_text = out_BLD.split([image.shape[1], text.shape[1]], 1)
    return attn.to_out[0](of_image), of_text if attn.context_pre_only else attn.to_add_out(of_text)


BLOCKS = replace(
    COGVIDEOX,
    attention={"attn1": "img+txt"},
    sides={"image_rotary_emb": (0, "img"), "encoder_attention_mask": (1, "txt")},
    local_masks={"attn1": ""},
    whole=("temb",),
)
register_usual("MochiTransformer3DModel", BLOCKS, prepare=replace_processors(attend))
