"""DiT, class-conditional (https://arxiv.org/abs/2212.09748): DiT-XL/2 and the demo model."""

from ..errors import RequestError
from .spec import Config, ModelSpec, Tensors, register
from .unpatchify import fill_square, from_square


def check(config: Config, conditions: Tensors) -> None:
    labels, null_label = conditions["class_labels"], config["num_embeds_ada_norm"]
    if labels.is_floating_point() or not ((0 <= labels) & (labels <= null_label)).all():
        raise RequestError(
            f"Class labels {labels.tolist()}: the model has classes 0 to {null_label - 1}, and {null_label} for none."
        )


register(
    ModelSpec(
        model_class="DiTTransformer2DModel",
        blocks=("transformer_blocks",),
        streams=("hidden_states",),
        self_attention={"attn1": ("hidden_states",)},
        conditions=("class_labels",),
        inputs=lambda config, latents, timestep, conditions: {
            "hidden_states": latents,
            "timestep": timestep,
            "class_labels": conditions["class_labels"],
        },
        output=lambda config, square, latents: from_square(
            square[:, : config["in_channels"]], config["patch_size"], *latents.shape[-2:]
        ),
        head="proj_out_2",
        check=check,
        shared=("transformer_blocks.0.norm1.emb",),
        prepare=lambda model, hooks: fill_square(model.get_submodule("proj_out_2"), hooks),
    )
)
