"""The first run under an automatic plan measures the machine, and what its steps took is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from demo.host import ComfyHost
from tests.conftest import EXTRA_ARGS, HOST_ENV
from tests.support.host.graphs import groups, latents
from tests.support.host.stock_prompts import prompt, write_cases

MODEL, STEPS = "longcat-image", 5


@pytest.mark.slow
def test_the_first_run_measures_and_the_next_knows_what_its_steps_took(
    comfyui: Path, models: Path, own_base: Path, tmp_path: Path
) -> None:
    write_cases(comfyui, models, [MODEL])
    folder = tmp_path / "measured here"
    env = {**HOST_ENV, "PARALLELDIT_MEASURED": str(folder)}
    with ComfyHost(comfyui, own_base, extra_args=EXTRA_ARGS, env=env) as host:
        runs = []
        for more in range(2):  # ComfyUI runs the same prompt once
            latents(host, prompt(MODEL, {}, cfg=1.0, steps=STEPS + more))
            runs.append(groups(host)[0]["runs"][0])
        (file,) = folder.glob("*.json")
        kept = json.loads(file.read_text())
        assert len(kept["figures"]["speeds"]) == 2 and len(kept["made_of"]["devices"]) == 2
        assert all(run["is_measured"] and run["predicted"] > 0 for run in runs)
        assert all(run["alone"] > 0 for run in runs)
        assert runs[0]["is_alone_run"] == (runs[0]["plan"] == "dp=2"), "one device, where links are slow"
        (steps,) = kept["steps"].values()
        # Steps of one device have one name, whether others have no rows or no part of the plan (`Prediction.words`).
        assert ("one rank" if runs[0]["is_alone_run"] else runs[0]["plan"]) in steps
        if runs[1]["plan"] == runs[0]["plan"]:
            assert sorted(seconds for seconds, _ in runs[0]["steps"])[0] <= runs[1]["predicted"], "as a step took"
        assert host.log.read_text().count("Measured 2 ranks") == 1
