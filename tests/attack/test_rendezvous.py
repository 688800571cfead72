"""Who reaches the places where ranks find each other does not get into the group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from demo.host import REPOSITORY
from tests.support.ranks.pool import RankPool
from worker.host.client import WorkerGroup
from worker.wire.private_folder import STORE

NOBODY = 65534
SECONDS = 60
# As another user: asks each port for a store, and looks at the group's folder and at its processes.
INTRUDER = """
import json, os, sys, threading
from datetime import timedelta
import torch.distributed as dist

folder, ports, pids = json.loads(sys.argv[1])
found = []

def ask_for_store(port):
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=1), wait_for_workers=False)
        store.set("paralleldit/broken", "x")
        found.append(f"a store at port {port}")
    except (RuntimeError, ValueError):
        pass

asking = [threading.Thread(target=ask_for_store, args=(port,), daemon=True) for port in ports]
for each in asking:
    each.start()
for each in asking:
    each.join(5)
places = [folder, *(f"{folder}/{name}" for name in ("store", "heartbeat", "socket", "expected.json"))]
places += [f"/proc/{pid}/{name}" for pid in pids for name in ("environ", "fd", "mem")]
for place in places:
    try:
        found.append(f"{place}: {os.listdir(place) if os.path.isdir(place) else open(place, 'rb').read(1)!r}")
    except OSError:
        pass
print(json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="to act as another user, the test runs as root")
def test_another_user_finds_no_store_of_a_running_group(group_of_two: WorkerGroup) -> None:
    group_of_two.start(2)
    pids = group_of_two.status()["pids"]
    parent = psutil.Process(pids[0]).parent()
    assert parent and group_of_two.session
    processes = [parent, *map(psutil.Process, pids)]
    listened = {
        each.pid: [one.laddr for one in each.net_connections("inet") if one.status == psutil.CONN_LISTEN]
        for each in processes
    }
    assert listened[parent.pid] == [], "torchrun's store is within its process"
    addresses = sum(listened.values(), [])
    assert {address.ip for address in addresses} <= {"127.0.0.1"}
    folder = group_of_two.session.process.folder
    assert (folder / STORE).exists() and folder.stat().st_mode & 0o777 == 0o700
    given = json.dumps([str(folder), [address.port for address in addresses], [each.pid for each in processes]])
    done = subprocess.run(
        [sys.executable, "-c", INTRUDER, given],
        cwd=REPOSITORY, user=NOBODY, group=NOBODY, extra_groups=[], env={**os.environ, "HOME": "/"},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == []
    assert group_of_two.status()["pids"] == pids


@pytest.mark.parametrize(
    ("machines", "said"),
    [
        (1, "ValueError: cannot mmap an empty file"),
        (2, "ProtocolError: A frame does not"),
    ],
)
def test_a_first_rank_without_the_token_is_not_obeyed(
    machines: int, said: str, ranks: RankPool, tmp_path: Path
) -> None:
    """It has the store, and so it is rank 0 for the other. That one reads none of its frames."""
    ranks.run(2, "group.relay_ranks", str(machines), str(tmp_path / "said"))
    assert (tmp_path / "said.1").read_text().startswith(said)
