"""A group whose socket is attacked while it starts and while it samples."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from parallel_backend.plan import ParallelPlan
from tests.support.group.direct_group import DIT, pass_of, source_of
from worker.comfyui.source import HostSource
from worker.host.client import WorkerGroup
from worker.wire.private_folder import CONTROL, short_path
from worker.wire.sampler_call import SamplerCall

ATTACKER = """
import os, socket, sys, time
refused = 0
while True:
    for said in (b"", b"GET / HTTP/1.1\\r\\n\\r\\n", b"PDiT\\0\\1\\0\\0\\1\\0" + bytes(8), os.urandom(300)):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(1)
        try:
            connection.connect(sys.argv[1])
            connection.sendall(said)
        except OSError:
            refused += 1
            connection.close()
        print(refused, flush=True)
        held = connection  # until the next
        time.sleep(0.002)
"""


@contextlib.contextmanager
def attacked(address: str, out: Path) -> Iterator[None]:
    """Meanwhile, another process connects to the address hundreds of times a second, and says nonsense or nothing."""
    with out.open("w") as log:
        attacker = subprocess.Popen([sys.executable, "-c", ATTACKER, address], stdout=log)
        try:
            yield
        finally:
            attacker.kill()
            attacker.wait()


def test_a_group_under_attack_starts_and_works_as_ever(group_of_two: WorkerGroup, tmp_path: Path) -> None:
    """Its address is attacked while it starts and while it samples; the latents are the same as without."""
    source = source_of(DIT, tmp_path / "model")
    peace = sampled(source, group_of_two)
    log, folder = tmp_path / "attack.txt", tmp_path / "group"
    folder.mkdir(mode=0o700)
    with short_path(folder / CONTROL) as address, attacked(address.replace("self", str(os.getpid())), log):
        group = WorkerGroup("cpu", folder)
        try:
            assert sampled(source, group, log).equal(peace)
        finally:
            group.stop()
    refused = [int(line) for line in log.read_text().split()]
    assert 0 < refused[0] and len(refused) - refused[-1] > 100  # refused before the ranks, then let in and dropped


def sampled(source: HostSource, group: WorkerGroup, attacks: Path | None = None) -> torch.Tensor:
    """What a group makes of the same noise, in all steps."""
    latents, _, conditions = DIT.inputs(1, 16, 16)
    steps: list[int] = []
    group.load(source.to_json(), ParallelPlan(ulysses=2).to_json(), 2, lambda: None)
    before = attacks.stat().st_size if attacks else 0
    result = group.sample(
        SamplerCall(scheduler="DDIM", steps=50),
        {"noise": latents},
        [pass_of(DIT, conditions)],
        lambda: None,
        lambda event, _: steps.append(event["step"]),
    )
    assert attacks is None or attacks.stat().st_size > before
    assert steps == list(range(50))
    return result
