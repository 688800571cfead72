"""What ComfyUI's server says of the worker group: its status, its timeline and its logs."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from demo.host import ComfyHost
from tests.support.host.graphs import Job, latents, ranks, status


def test_the_host_serves_status_trace_and_logs_and_none_of_them_by_post(host: ComfyHost) -> None:
    latents(host, Job("tiny-dit", plan={"ulysses": 2}, scheduler="Euler").prompt())
    assert status(host)["last_run"]["operation"] == "sample"
    code, text = get(host, "trace")
    assert code == 200 and {event["tid"] for event in json.loads(text)["traceEvents"]} == {*range(len(ranks(host)))}
    code, text = get(host, "logs?rank=1&lines=5000")
    assert code == 200 and "rank 1 INFO loaded" in text
    assert len(get(host, "logs?rank=1&lines=1")[1].splitlines()) == 1
    assert get(host, "logs?rank=7")[0] == 404
    for query in ("rank=../1", "rank=-1", "lines=0", "lines=999999999"):
        assert get(host, f"logs?{query}")[0] == 400
    for route in ("status", "trace", "logs"):
        assert get(host, route, method="POST")[0] == 405


def get(host: ComfyHost, route: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(f"{host.url}/paralleldit/{route}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
