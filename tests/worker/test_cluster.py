"""The command lines of docs/machines.md make one group of a cluster's job, the same on every machine of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from demo.host import REPOSITORY
from tests.support.group.direct_group import DIT, source_of
from tests.support.group.machines import PODS, PORT, ULYSSES, First, Network, Second, predicted_by_one
from tests.support.tiers import slow_but
from worker import join
from worker.join import read_node_rank
from worker.settings import SettingsError

PAGE = REPOSITORY / "docs" / "machines.md"
# In Slurm's place.
SCONTROL = 'scontrol() { [ "$*" = "show hostnames node[1-2]" ] && printf "first\\nsecond\\n"; }'


def srun_command() -> list[str]:
    """What the page has Slurm start on each node."""
    (line,) = re.findall(r"^srun (?:.*\\\n)*.*$", PAGE.read_text(), flags=re.MULTILINE)
    words = subprocess.check_output(
        ["sh", "-c", f"{SCONTROL}\nSLURM_JOB_NODELIST=node[1-2]\nprintf '%s\\n' {line}"], text=True
    ).splitlines()
    assert "--ntasks-per-node=1" in words
    return words[words.index("python") :]


def pod_command() -> list[str]:
    """What the page's Job starts in each pod, whose names are those that its headless service gives them."""
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    service, job = yaml.safe_load_all(text)
    name, spec = job["metadata"]["name"], job["spec"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": name}
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == len(PODS)
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert list(PODS) == [f"{name}-{number}.{pod['subdomain']}" for number in range(len(PODS))]
    return pod["containers"][0]["command"]


def as_slurm(node: int) -> dict[str, str]:
    return {"SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURM_LOCALID": "0"}


def as_kubernetes(node: int) -> dict[str, str]:
    return {"JOB_COMPLETION_INDEX": str(node)}


JOBS = {"srun": (srun_command, as_slurm), "indexed Job": (pod_command, as_kubernetes)}


@pytest.mark.parametrize(("command", "environment"), slow_but(("srun",), JOBS))
def test_one_command_on_all_machines_of_a_job_makes_one_group(
    command: Callable[[], list[str]], environment: Callable[[int], Mapping[str, str]], network: Network, tmp_path: Path
) -> None:
    """On the first it becomes what is behind --, here a program of the tests in ComfyUI's place."""
    words = [sys.executable if word == "python" else word for word in command()]
    cut = words.index("--") + 1
    assert words[cut + 1 :] == ["../../main.py", "--listen"]
    starters = [
        ["env", *(f"{name}={value}" for name, value in environment(node).items()), *words[:cut]] for node in range(2)
    ]
    source = source_of(DIT, tmp_path / "model")
    (tmp_path / "hidden").mkdir()
    with ExitStack() as stack:
        first = First(network, tmp_path, starters[0])
        stack.callback(first.close)
        second = Second(network, tmp_path / "second.log", tmp_path / "hidden", [*starters[1], *words[cut:]])
        stack.callback(second.end)
        answer = first.forward(source, ULYSSES)
        assert answer["error"] == "", second.said()
        expected = predicted_by_one()
        assert (first.prediction() - expected).abs().max() <= 1e-5 * expected.abs().max()
        assert "joining as machine 2 of 2 with 1 rank on cpu" in second.said()


def test_the_place_in_a_job_is_the_clusters_number() -> None:
    assert read_node_rank(as_slurm(1)) == 1
    assert read_node_rank(as_kubernetes(3)) == 3
    with pytest.raises(SettingsError, match="srun --ntasks-per-node=1"):
        read_node_rank(as_slurm(0) | {"SLURM_LOCALID": "1"})
    with pytest.raises(SettingsError, match="JOB_COMPLETION_INDEX and SLURM_NODEID are not set"):
        read_node_rank({})


def test_a_job_of_one_node_needs_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    become = Mock(side_effect=RuntimeError)  # else this process would be ComfyUI
    monkeypatch.setattr(os, "execvpe", become)
    monkeypatch.setattr(sys, "argv", ["join", f"first:{PORT}", "--", "comfyui", "-x"])
    for name, value in as_slurm(0).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError):
        join.main()
    _, command, environment = become.call_args.args
    assert command == ["comfyui", "-x"] and not environment.get("PARALLELDIT_MACHINES")


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("a:29400,b", "This is machine 3 of the job, but a:29400,b names only 2"),
        (":29400", "':29400' is not an address with a port"),
        ("a,b", "'a,b' is not an address with a port"),
    ],
)
def test_a_job_that_does_not_fit_its_machines_is_told_on_the_command_line(
    where: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["join", where, "--", "comfyui"])
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "2")
    with pytest.raises(SystemExit):
        join.main()
    assert says in capsys.readouterr().err
