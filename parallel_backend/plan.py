"""The parallel plan: one degree per axis. It is checked against a model before anything starts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from .axes import AXES, REPLICA_AXES, TOKEN_AXES
from .errors import PlanError

MAX_DEGREE = 1024
MAX_SPEED = 1e6
LOSSY_ATTENTION = ("sage", "sage_fp8", "sage_fp16")  # they multiply in 8 bits
ATTENTION = ("auto", "native", "flash3", "flash", "cudnn", *LOSSY_ATTENTION)
AUTO = "auto"
WHOLE, SHARED, HOST = "whole", "shared", "host"
WEIGHTS = (AUTO, WHOLE, SHARED, HOST)
OFF, ON = "off", "on"
COMPILE = (OFF, ON, AUTO)
COMPILED_STEPS = 16  # auto compiles from this many steps on; see docs/dev/10-decisions.md
# The most parts that heads are exchanged in. Attention waits only for the first part's way in and the last's way out.
EXCHANGE_PARTS = 4
MODEL, INT4 = EXCHANGE_DTYPES = ("model", "int4")
TIME, MEMORY = "time", "memory"
BALANCES = (AUTO, TIME, MEMORY)
EXCHANGE_BLOCK = 64  # the most numbers of a head that share a scale, in a lossy exchange
CHOICES = {
    "attention": ATTENTION,
    "weights": WEIGHTS,
    "exchange_dtype": EXCHANGE_DTYPES,
    "compile": COMPILE,
    "balance": BALANCES,
}
FROM_ZERO = ("patches", "weight_blocks")


@dataclass(frozen=True)
class ParallelPlan:
    """How ranks share a model's work: degrees, execution, placement. The world size is the product of the degrees.

    Degrees:
    dp: groups that split the batch by images.
    cfg: groups that split the batch so that cond and uncond of classifier-free guidance run side by side.
    pipefusion: stages that split the blocks (https://arxiv.org/abs/2405.14430).
    ring: ranks that split the tokens; keys and values travel round (https://arxiv.org/abs/2310.01889).
    ulysses: ranks that split the tokens; attention is parallel over heads (https://arxiv.org/abs/2309.14509).
    ring × ulysses together is USP (https://arxiv.org/abs/2405.07719).

    Execution:
    patches: how many parts PipeFusion cuts the image's tokens into; 0 means one per stage.
    sync_steps: how many steps run whole, and so exactly, before patches use stale keys.
    attention: the attention kernel; auto chooses the best exact one that the device has.
    compile: whether blocks run through `torch.compile`. auto compiles on a GPU, for samplings of at least
    COMPILED_STEPS steps.
    exchange_dtype: the dtype in which ulysses and ring send keys, values, queries and results. It is the model's own,
    or int4, which is lossy: the differences to the step before, with a scale for each block of a token's head; ulysses
    only. The first step is exact.

    Placement:
    balance: what the stages' parts of the blocks are balanced by: time or memory. auto counts as time.
    `fit_stages` makes it memory where stages balanced by time do not fit the devices.
    weights: where the weights are kept: whole on each rank, split over the ranks that compute with the same weights, or
    in the host's memory. Split and host weights are fetched block by block for each forward. auto keeps them whole if
    they fit, and else fetches as few blocks as possible.
    weight_blocks: how many of a rank's blocks are fetched; 0 means all. auto also chooses these.
    speeds: the relative speed of each rank's device, by rank, in any unit. Ranks share work in this proportion. Empty
    means that all are alike.
    """

    # Degrees.
    dp: int = 1
    cfg: int = 1
    pipefusion: int = 1
    ring: int = 1
    ulysses: int = 1
    # Execution.
    patches: int = 0
    sync_steps: int = 1
    attention: str = "auto"
    compile: str = OFF
    exchange_dtype: str = MODEL
    # Placement.
    balance: str = AUTO
    weights: str = AUTO
    weight_blocks: int = 0
    speeds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        numbers = {name: value for name, value in vars(self).items() if name != "speeds"}
        for name, choices in CHOICES.items():
            if (value := numbers.pop(name)) not in choices:
                raise PlanError(f"There is no {name}={value!r} in a plan.", f"Use {', '.join(choices)}.", name)
        for name, value in numbers.items():
            least = 0 if name in FROM_ZERO else 1
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_DEGREE:
                raise PlanError(
                    f"{name}={value!r} does not work.", f"Use a whole number from {least} to {MAX_DEGREE}.", name
                )
        if self.exchange_dtype == INT4 and (self.ring > 1 or self.patch_count > 1):
            raise PlanError(
                f"exchange_dtype={INT4} sends differences under ulysses alone, and this plan has "
                f"{'ring' if self.ring > 1 else 'pipefusion or patches'}.",
                f"Use exchange_dtype={MODEL}, or ulysses in place of ring and pipefusion.",
                "exchange_dtype",
            )
        object.__setattr__(self, "speeds", self.normalise_speeds())

    def normalise_speeds(self) -> tuple[float, ...]:
        """Returns the speeds. Equal speeds become empty, so that plans of one effect are equal. Raises PlanError."""
        speeds = self.speeds
        if not isinstance(speeds, (list, tuple)) or not all(map(is_speed, speeds)):
            raise PlanError(
                f"speeds={speeds!r:.200} does not work.",
                f"Use a positive number for each rank, from {1 / MAX_SPEED:g} to {MAX_SPEED:g}, or none.",
                "speeds",
            )
        if speeds and len(speeds) != self.world_size:
            raise PlanError(
                f"There are {len(speeds)} speeds, and the plan {replace(self, speeds=())} has "
                f"{self.world_size} {'rank' if self.world_size == 1 else 'ranks'}.",
                "Give one for each rank, or none if all are alike.",
                "speeds",
            )
        return tuple(map(float, speeds)) if len(set(speeds)) > 1 else ()

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ParallelPlan:
        """Returns the plan with these values. Raises PlanError for an unknown name."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise PlanError(f"There is no {name!r} in a plan; there are {', '.join(known)}.")
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """Returns the values that `from_json` takes."""
        return vars(self) | {"speeds": [*self.speeds]}

    def degrees(self) -> dict[str, int]:
        """Returns the degree of each axis by name, outermost axis first."""
        return {axis: getattr(self, axis) for axis in AXES}

    def compiles(self, steps: int) -> bool:
        """Returns whether blocks run compiled in a sampling of this many steps."""
        return self.compile == ON or self.compile == AUTO and steps >= COMPILED_STEPS

    @property
    def patch_count(self) -> int:
        """The number of patches of the image's tokens."""
        return self.patches or self.pipefusion

    @property
    def leaves_patches(self) -> bool:
        """Whether the number of patches is decided by the work."""
        return self.pipefusion > 1 and not self.patches

    @property
    def keeps_differences(self) -> bool:
        """Whether ranks exchange what differs from the step before, and so keep that step."""
        return self.exchange_dtype == INT4 and self.token_ways > 1

    @property
    def whole_steps(self) -> int:
        """How many of a sampling's first steps run exactly, before others that do not. 0 if all steps are alike."""
        return self.sync_steps if self.patch_count > 1 else 0

    @property
    def world_size(self) -> int:
        return math.prod(self.degrees().values())

    def ways(self, axes: Iterable[str]) -> int:
        """Returns the number of parts that these axes together split their work into."""
        return math.prod(getattr(self, axis) for axis in axes)

    @property
    def token_ways(self) -> int:
        """Outside attention, a rank computes one of this many parts of an image's tokens."""
        return self.ways(TOKEN_AXES)

    def check_model(
        self,
        heads: int,
        blocks: int | None = None,
        pipefusion: bool = True,
    ) -> None:
        """Raises PlanError, with the degree and its nearest valid value, if the model's sizes forbid the plan.

        pipefusion: whether the model's family supports it, as its spec says. blocks: their total number, if known.
        """
        self.check_weights()
        if self.patch_count > 1 and not pipefusion:
            raise PlanError(
                f"pipefusion={self.pipefusion} with {self.patch_count} patches runs parts of the image by themselves, "
                "and this model's blocks need the text with them.",
                f"Use patches=1, or ring={max(self.pipefusion, 2)} or ulysses with pipefusion=1 and patches=0.",
                "pipefusion",
                "patches",
            )
        if blocks is not None and self.pipefusion > blocks:
            raise PlanError(
                f"pipefusion={self.pipefusion} has more stages than the model has blocks.",
                f"Use {blocks} or less.",
                "pipefusion",
            )
        if self.ulysses > heads:
            raise PlanError(
                f"ulysses={self.ulysses} is more than the model's {heads} heads.",
                f"Lower it to {heads} or less, or take ring={self.ulysses}.",
                "ulysses",
            )

    def check_weights(self) -> None:
        """Raises PlanError if no other rank has the same weights to share."""
        if self.weights == SHARED and self.replicas == 1:
            raise PlanError(
                f"weights={SHARED} needs ranks that compute with the same weights, and this plan has no two that do.",
                f"Use weights={HOST}, or a degree of {' or '.join(REPLICA_AXES)} above 1.",
                "weights",
            )

    def fit_devices(self, devices: int, cores: bool) -> ParallelPlan:
        """Returns this plan, or a plan of one rank if there is only one device. So a plan made elsewhere still runs.

        cores: whether the devices are CPU cores. Too few cores count as one device. Raises PlanError if there are
        several accelerators, but too few.
        """
        if self.world_size <= devices:
            return self
        if devices != 1 and not cores:
            raise PlanError(
                f"The plan {self} needs {self.world_size} devices and this machine has {devices}.",
                f"Lower a degree until their product is {devices} or less.",
                *(axis for axis, degree in self.degrees().items() if degree > 1),
            )
        weights = AUTO if self.weights == SHARED else self.weights
        kept = {name: getattr(self, name) for name in ("attention", "weight_blocks", "compile", "sync_steps")}
        return ParallelPlan(weights=weights, **kept)

    @property
    def lossy_fields(self) -> tuple[str, ...]:
        """The names of the fields that make the image differ from one device's."""
        found = {
            "patches": self.patch_count > 1,
            "exchange_dtype": self.exchange_dtype != MODEL,
            "attention": self.attention in LOSSY_ATTENTION,
        }
        return tuple(name for name, is_lossy in found.items() if is_lossy)

    @property
    def replicas(self) -> int:
        """How many ranks compute with the same weights and can share them."""
        return self.ways(REPLICA_AXES)

    def __str__(self) -> str:
        parts = [f"{axis}={degree}" for axis, degree in self.degrees().items() if degree > 1]
        if self.patch_count > 1:
            parts.append(f"{self.patch_count} patches, {self.sync_steps} sync")
        if self.pipefusion > 1 and self.balance == MEMORY:
            parts.append("stages by memory")
        if self.attention != "auto":
            parts.append(f"{self.attention} attention")
        if self.weights != AUTO:
            count = self.weight_blocks
            parts.append(f"{self.weights} weights for {count} blocks" if count else f"{self.weights} weights")
        if self.compile != OFF:
            parts.append("compiled" if self.compile == ON else f"compiled from {COMPILED_STEPS} steps on")
        if self.exchange_dtype != MODEL:
            parts.append(f"{self.exchange_dtype} exchange")
        if self.speeds:
            parts.append("speeds " + ":".join(f"{speed / max(self.speeds):.3g}" for speed in self.speeds))
        return " × ".join(parts) or "one rank"


def is_speed(value: object) -> bool:
    """Returns whether a value is a valid speed."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 1 / MAX_SPEED <= value <= MAX_SPEED
