"""The ranks measure the machine once. A file keeps the figures, and what steps took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallel_backend.costs.machine import Machine
from tests.support.group.direct_group import go_on
from worker.errors import RequestRefused
from worker.host.client import WorkerGroup
from worker.host.measured import MeasuredFile

DEVICES = ["one card", "another"]


def test_ranks_measure_what_they_can_and_keep_their_model(group_of_two: WorkerGroup, tmp_path: Path) -> None:
    group = group_of_two
    figures = group.measure(2, "fp32", go_on)
    machine = Machine.of(figures)
    assert [speed.name for speed in machine.speeds] == ["cpu", "cpu"] and machine.is_measured
    for speed in machine.speeds:
        assert 1e8 < speed.attention < 1e13 and 1e8 < speed.linear < 1e13
        assert 1e-8 < speed.operation < 1e-2 and speed.memory > 1e7
    assert machine.hides == 0, "on a CPU"
    for link in (machine.all_to_all, machine.all_gather, machine.send):
        assert 1e5 < link.rate <= max(speed.memory for speed in machine.speeds) and 1e-6 < link.latency < 1
    with pytest.raises(RequestRefused, match="none of them"):
        group.measure(2, "fp8", go_on)


def test_figures_last_and_are_for_the_devices_that_they_name(tmp_path: Path) -> None:
    kept = MeasuredFile(tmp_path, DEVICES, "bf16")
    assert kept.figures is None
    kept.keep({"host": 1})
    kept.note("flux", {"ulysses=2": [1.5, 1e12]})
    again = MeasuredFile(tmp_path, DEVICES, "bf16")
    assert (again.figures, again.steps) == ({"host": 1}, {"flux": {"ulysses=2": [1.5, 1e12]}})
    for other in (MeasuredFile(tmp_path, DEVICES[::-1], "bf16"), MeasuredFile(tmp_path, DEVICES, "fp16")):
        assert other.figures is None
    again.keep({"host": 2})
    assert MeasuredFile(tmp_path, DEVICES, "bf16").steps == {}, "of what was measured before"


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"made_of": {}}', "other versions", "\0"])
def test_a_file_that_is_damaged_or_of_other_versions_is_measured_again_and_said(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = MeasuredFile(tmp_path, DEVICES, "bf16")
    kept.keep({"host": 1})
    held = json.loads(kept.path.read_text())
    held["made_of"]["torch"] = "0.1"
    kept.path.write_text(json.dumps(held) if damage == "other versions" else damage)
    again = MeasuredFile(tmp_path, DEVICES, "bf16")
    assert again.figures is None and "measured again" in caplog.text
    again.keep({"host": 2})
    assert MeasuredFile(tmp_path, DEVICES, "bf16").figures == {"host": 2}


def test_a_folder_that_cannot_be_written_is_told_of_once_and_figures_last_as_long_as_comfyui(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the setting that names another. A step is noted many times a minute."""
    (tmp_path / "closed").write_text("a file, so no folder")
    file = MeasuredFile(tmp_path / "closed", ["card"], "bf16")
    file.keep({"host": 1})
    for number in range(3):
        file.note("model", {"seconds": number})
    assert file.figures == {"host": 1}
    (said,) = [each.getMessage() for each in caplog.records if "cannot be saved" in each.getMessage()]
    assert "The setting `measured` names another folder" in said
