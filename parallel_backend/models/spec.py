"""What the engine must know of a model family, and the registry that finds it by the diffusers class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from ..errors import RequestError, UnknownModelError
from ..hooks import Hooks
from .rows import BlockRow

if TYPE_CHECKING:
    import torch
    from diffusers import ModelMixin

Config = Mapping[str, Any]
Tensors = dict[str, "torch.Tensor"]


@dataclass(frozen=True)
class SideInput:
    """A per-token argument of every block, such as rotary embeddings: a tensor, or a tuple of them.

    dim: where its tokens run. streams: the token streams that it covers, in order. ndim: the number of dims with
    which the argument is per token, if a model also takes it with fewer, for all tokens at once.
    per_stream: it is a tuple with an item for each of the streams, in place of tensors that cover all of them.
    text_mask: it is a mask of the streams that attention joins before the spec's first, and attention itself lengthens
    it by ones for the tokens of the first that it sees.
    """

    name: str
    dim: int
    streams: tuple[str, ...]
    ndim: int | None = None
    per_stream: bool = False
    text_mask: bool = False


class Limits(TypedDict):
    """What bounds a plan for a model: the arguments of `ParallelPlan.check_model`."""

    heads: int
    blocks: int | None
    pipefusion: bool


def image_geometry(config: Config) -> tuple[int, tuple[int, ...]]:
    """Latent channels, and the patch that becomes one token, over the latents' last dims."""
    patch = config["patch_size"]
    return config["in_channels"], (patch, patch) if isinstance(patch, int) else tuple(patch)


class Sizes(NamedTuple):
    """What of a model bounds a plan. blocks: of all lists together."""

    heads: int
    head_dim: int
    blocks: int


def usual_sizes(config: Config) -> Sizes:
    """The sizes, by the names that most classes have for them."""
    blocks = config["num_layers"] + config.get("num_single_layers", 0)
    return Sizes(config["num_attention_heads"], config["attention_head_dim"], blocks)


@dataclass(frozen=True)
class ModelSpec:
    """A family of transformers, seen from outside. README.md beside this says how to find what goes where."""

    # The diffusers class.
    model_class: str
    # Its block lists, in the order in which they run.
    blocks: tuple[str, ...]
    # Arguments of a block's forward that carry tokens (B, S, width); the first is the one the head reads.
    streams: tuple[str, ...]
    # The block's submodules whose attention runs over shared tokens, and the streams in each, in the order in which it
    # joins them.
    self_attention: Mapping[str, tuple[str, ...]]
    # The tensors, batch first, that a request brings beside latents and timestep.
    conditions: tuple[str, ...]
    # (config, latents, timestep, conditions) to the keyword arguments of the model's forward. Latents are
    # (B, C, H, W), or (B, C, F, H, W) for video.
    inputs: Callable[[Config, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]], dict[str, Any]]
    # (config, the model's sample, latents) to the prediction in the shape of the latents.
    output: Callable[[Config, torch.Tensor, torch.Tensor], torch.Tensor]
    # The streams in the order in which a block returns them, if it is another order.
    returned: tuple[str, ...] = ()
    # Block lists that take the streams joined, in the argument and the output of the first; in which order. The first
    # list is none of them, and the image comes last.
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Layers of an MLP that is given what attention is given, if the block reads it behind attention: their rows, see
    # `overlap_rows.OTHER`. What is not for attention is computed while that exchanges tokens.
    beside: Mapping[str, str] = field(default_factory=dict)
    # Config to the heads of keys and values, where self-attention repeats each for the queries' heads that share it,
    # one after the other, before it attends. The others are not sent then.
    kv_heads: Callable[[Config], int] | None = None
    # Per-token arguments of the blocks.
    side_inputs: tuple[SideInput, ...] = ()
    # Those of the conditions that may be absent.
    optional: tuple[str, ...] = ()
    # Those that are latents too, of any size, whose tokens follow the latents' own in the first stream.
    appended: tuple[str, ...] = ()
    # Those of which `inputs` reads the first row for all.
    uniform: tuple[str, ...] = ()
    # Those that are not cast to the model's dtype.
    exact: tuple[str, ...] = ()
    # A condition's last dim, as the config's key for it.
    widths: Mapping[str, str] = field(default_factory=dict)
    # Config to heads, head dim and number of blocks.
    sizes: Callable[[Config], Sizes] = usual_sizes
    # Config to latent channels and patch.
    geometry: Callable[[Config], tuple[int, tuple[int, ...]]] = image_geometry
    # Config to whether the model is sampled with classifier-free guidance, and does not have it distilled in.
    guided: Callable[[Config], bool] = lambda _config: True
    # Config to the most patches along each of the latents' last dims, if the model has positions for so many.
    largest: Callable[[Config], tuple[int, ...]] | None = None
    # Raises RequestError for conditions that the model cannot take; sees the whole batch, on every rank.
    check: Callable[[Config, dict[str, torch.Tensor]], None] | None = None
    # The last layer, if what lies between the blocks and it works token by token: then tokens come together behind it,
    # where they are narrow, and not before it.
    head: str | None = None
    # The side input with whose per-token form that is not so: the head has it for all tokens then.
    head_unless: str | None = None
    # Modules of the model or of its blocks whose result depends on the conditions alone.
    memoised: tuple[str, ...] = ()
    # Where the first half of the blocks feeds the second, last to first, the argument that takes it: with n blocks,
    # block i gets what block n - 1 - i returned.
    skips: str | None = None
    # Submodules of blocks that the model reads outside of the blocks, so that every pipeline stage has them.
    shared: tuple[str, ...] = ()
    # Whether the image can be cut to PipeFusion's patches: in every block its tokens can be told from others, and run
    # without the text.
    pipefusion: bool = True
    # A diffusers scheduler's timestep times this is what `inputs` takes, and mostly the model's forward.
    timestep_scale: float = 1.0
    # Whether `inputs` takes a timestep for each frame too, (B, F).
    timestep_by_frame: bool = False
    # Puts on the loaded model what the family needs beyond this, by hooks that can be taken off again.
    prepare: Callable[[ModelMixin, Hooks], None] | None = None

    def __post_init__(self) -> None:
        if not self.returned:
            object.__setattr__(self, "returned", self.streams)

    def rows(self) -> tuple[BlockRow, ...]:
        """Its block lists, for pipeline stages."""
        returned = {name: self.streams[:1] if name in self.joined else self.returned for name in self.blocks}
        return tuple(BlockRow(name, returned[name], self.shared) for name in self.blocks)

    def limits(self, config: Config) -> Limits:
        """What bounds a plan for a model of this config: the arguments of `ParallelPlan.check_model`."""
        heads, _, blocks = self.sizes(config)
        return {
            "heads": heads,
            "blocks": blocks,
            "pipefusion": self.pipefusion,
        }


def needs(**rules: Callable[[Config], bool | int]) -> Callable[[Config, dict[str, torch.Tensor]], None]:
    """A `check` for optional conditions: which of them a model needs is in its config, and no other may come.

    A rule says whether the condition is needed, or how long its dim 1 has to be.
    """

    def check(config: Config, conditions: dict[str, torch.Tensor]) -> None:
        for name, rule in rules.items():
            wanted, value = rule(config), conditions.get(name)
            if (value is not None) != bool(wanted):
                if wanted:
                    raise RequestError(f"This model needs the condition {name}; it was not given.")
                raise RequestError(f"This model takes no {name}.", "Leave it out, or load the variant made for it.")
            if value is not None and wanted is not True and value.shape[1:2] != (wanted,):
                raise RequestError(f"{name} has shape {tuple(value.shape)}; this model needs {wanted} on dim 1.")

    return check


def text_within(limit: Callable[[Config], int]) -> Callable[[Config, dict[str, torch.Tensor]], None]:
    """A `check` for models that have positions for so many text tokens."""

    def check(config: Config, conditions: dict[str, torch.Tensor]) -> None:
        tokens, most = conditions["encoder_hidden_states"].shape[1], limit(config)
        if tokens > most:
            raise RequestError(f"The text has {tokens} tokens, and this model takes {most}.", "Shorten the prompt.")

    return check


_SPECS: dict[str, ModelSpec] = {}


def register(spec: ModelSpec) -> ModelSpec:
    """Adds a family to the registry."""
    _SPECS[spec.model_class] = spec
    return spec


def model_classes() -> list[str]:
    """The diffusers classes that have a spec."""
    return sorted(_SPECS)


def spec_for(model_class: str) -> ModelSpec:
    """The spec of a diffusers class. Raises UnknownModelError where there is none."""
    if model_class not in _SPECS:
        raise UnknownModelError(
            f"No spec for the transformer class {model_class}; supported are {', '.join(model_classes())}.",
            "The manual parallel_backend/models/README.md says how to add one.",
        )
    return _SPECS[model_class]
