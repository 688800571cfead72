"""Long attacks. Memory stays flat, the processes are the same, and a good request afterwards gives the same."""

from __future__ import annotations

import random
import socket
import threading
from pathlib import Path

import psutil
import pytest

from tests.support.group.direct_group import DIT, call_request, direct_on, go_on, sample_request
from tests.support.group.mutations import mutate_json
from worker.host.client import WorkerGroup
from worker.wire.endpoint import Endpoint, connect
from worker.wire.handshake import MAX_STRANGERS
from worker.wire.private_folder import FOLDER, TOKEN, short_path
from worker.wire.protocol import FAILED, MEMORY

REQUESTS, WARM = 10_000, 500
CONNECTIONS = 100_000
GROWTH = 64 << 20


@pytest.mark.slow
def test_ten_thousand_wrong_requests_to_a_running_group(group_of_two: WorkerGroup, tmp_path: Path) -> None:
    direct = direct_on(group_of_two, tmp_path, DIT, ulysses=2)
    session, pids, chance = group_of_two.session, direct.pids(), random.Random(7)
    assert session
    before, valid = direct.forward(16, 16), [call_request(DIT), sample_request(DIT, steps=2)]
    memory: list[int] = []
    refused = 0
    for number in range(WARM + REQUESTS):
        if number == WARM:
            memory = [psutil.Process(pid).memory_info().rss for pid in pids]
        header, tensors = chance.choice(valid)
        wrong = mutate_json(header, chance)
        wrong = wrong if isinstance(wrong, dict) and wrong.get("op") in ("call", "sample") else {"op": "?"}
        reply, _ = session.request(wrong, tensors, go_on)
        refused += "error" in reply
        if reply.get("kind") in (FAILED, MEMORY):  # after which the ranks have no model
            direct.load()
    assert refused > REQUESTS // 2
    grown = [psutil.Process(pid).memory_info().rss - was for pid, was in zip(pids, memory, strict=True)]
    assert max(grown) < GROWTH and direct.pids() == pids
    direct.load()
    assert direct.forward(16, 16).equal(before)


@pytest.mark.slow
def test_a_hundred_thousand_connections_to_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the owner's own process; nobody else gets to it."""
    endpoint = Endpoint(tmp_path)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv(TOKEN, endpoint.token)
    process, chance = psutil.Process(), random.Random(7)
    held: list[socket.socket] = []
    with short_path(endpoint.path) as address:
        for number in range(CONNECTIONS):
            stranger = socket.socket(socket.AF_UNIX)
            stranger.connect(address)
            stranger.sendall(chance.randbytes(chance.randrange(1, 64)))
            held.append(stranger)
            if len(held) == MAX_STRANGERS // 2:
                assert not endpoint.accept(0.01)
                for each in held:
                    each.close()
                held.clear()
            if number == CONNECTIONS // 10:
                memory = process.memory_info().rss
    assert process.memory_info().rss - memory < GROWTH
    ranks = threading.Thread(target=lambda: [connect(channel) for channel in ("job", "control")])
    ranks.start()
    while not endpoint.accept(0.05):
        pass
    ranks.join()
    endpoint.close()
