"""DiT, class-conditional (https://arxiv.org/abs/2212.09748): DiT-XL/2 and the demo model."""

from dataclasses import replace

from ..errors import RequestError
from .adapter import Adapter, Config, Tensors, register_adapter, usual_spec
from .spec import BlockList
from .unpatchify import fill_square, from_square


def check(config: Config, conditions: Tensors) -> None:
    labels, null_label = conditions["class_labels"], config["num_embeds_ada_norm"]
    if labels.is_floating_point() or not ((0 <= labels) & (labels <= null_label)).all():
        raise RequestError(
            f"Class labels {labels.tolist()}: the model has classes 0 to {null_label - 1}, and {null_label} for none."
        )


BLOCKS = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img"},
    returns="img",
    attention={"attn1": "img"},
    whole=(
        "attention_mask", "encoder_hidden_states", "encoder_attention_mask", "timestep", "cross_attention_kwargs",
        "class_labels", "added_cond_kwargs",
    ),
    chained=True,
)  # fmt: skip
register_adapter(
    Adapter(
        usual_spec(
            "DiTTransformer2DModel",
            replace(BLOCKS, shared=("transformer_blocks.0.norm1.emb",)),
            head=BlockList("proj_out_2", tokens={"input": "img"}, returns="img", chained=True),
        ),
        conditions=("class_labels",),
        inputs=lambda config, latents, timestep, conditions: {
            "hidden_states": latents,
            "timestep": timestep,
            "class_labels": conditions["class_labels"],
        },
        output=lambda config, square, latents: from_square(
            square[:, : config["in_channels"]], config["patch_size"], *latents.shape[-2:]
        ),
        check=check,
        prepare=lambda model, hooks: fill_square(model.get_submodule("proj_out_2"), hooks),
    )
)
