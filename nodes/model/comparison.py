"""How a lossy setting compares with the exact one: the difference of the latents, and the time of a step either way.
What was measured is kept for later prompts."""

from __future__ import annotations

import json
import logging
import os
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import folder_paths
import torch

from ...worker.host.runs import RunRecord

FOLDER, FILE = "paralleldit", "comparisons.json"  # in ComfyUI's user directory; a web page cannot read it
KEPT = 200  # newest entries
WARM_UP = 1  # untimed steps


@dataclass(frozen=True)
class Comparison:
    """error: the norm of the latents' difference divided by the norm of the exact latents. plan, exact_plan: in words.
    seconds, exact_seconds: the mean time of a step, without the first. None if there is only one step.
    """

    error: float
    plan: str
    exact_plan: str
    seconds: float | None
    exact_seconds: float | None

    @property
    def text(self) -> str:
        text = f"Compared with exact ({self.exact_plan}): the latents differ by {self.error:.2%}."
        if self.seconds is None or self.exact_seconds is None:
            return text
        factor = self.exact_seconds / self.seconds
        return (
            f"{text} A step takes {self.seconds:.3g} s ({self.plan}), and {self.exact_seconds:.3g} s exact: "
            f"×{factor:.2f} as fast."
        )


class Comparisons:
    """Comparisons by setting, in a file that outlives ComfyUI."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(folder_paths.get_system_user_directory(FOLDER), FILE)

    def get(self, key: str) -> Comparison | None:
        fields = self._read().get(key)
        return Comparison(**fields) if fields else None

    def put(self, key: str, comparison: Comparison) -> None:
        known = {**{name: each for name, each in self._read().items() if name != key}, key: asdict(comparison)}
        kept = dict(list(known.items())[-KEPT:])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(kept, indent=1), "utf-8")
        fresh.replace(self.path)

    def _read(self) -> dict[str, dict[str, Any]]:
        """Returns an empty dict if the file is missing or not in the format of `put`."""
        try:
            found = json.loads(self.path.read_text("utf-8"))
            return {key: asdict(Comparison(**fields)) for key, fields in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            logging.warning("[ParallelDiT] Earlier comparisons cannot be read (%s): %s", self.path, error)
            return {}


def mean_step(record: RunRecord) -> float | None:
    """Returns the mean seconds of a run's steps in the ranks, without the first. None if there is only one step."""
    counted = [seconds for seconds, _ in record.steps][WARM_UP:]
    return statistics.mean(counted) if counted else None


def relative_error(latents: torch.Tensor, exact: torch.Tensor) -> float:
    return float((latents.double() - exact.double()).norm() / exact.double().norm())
