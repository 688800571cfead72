"""What is asked of an accelerator is asked of its own kind, in words that torch has for it; other kinds are refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from parallel_backend import device
from parallel_backend.device import BACKENDS, CPU, Card, like_first
from parallel_backend.errors import PlanError, RequestError, is_out_of_memory
from parallel_backend.groups.mesh import start_distributed
from parallel_backend.groups.timeline import COMMUNICATION, STEP, Timeline
from parallel_backend.seams.exchange import ring
from parallel_backend.seams.kernels.backends import choose_backend
from worker.rank.job_groups import JobGroups
from worker.rank.memory import sensors
from worker.rank.memory.device_memory import DeviceMemory, memory_use
from worker.rank.memory.sensors import find_sensors

GB = 1 << 30
BIG, SMALL = ("RTX 3090", 24 * GB, (8, 6)), ("GTX 1660", 6 * GB, (7, 5))


class Machine:
    """A pretended machine with accelerators of a kind. asked: of torch's module for it, with the device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, hip: str | None, *cards: tuple) -> None:
        self.patch, self.kind, self.asked = monkeypatch, kind, []
        self.module = torch.get_device_module(kind)
        self.device = torch.device(kind, 1)
        numbers = ({"major": major, "minor": minor} if kind == "cuda" else {} for _, _, (major, minor) in cards)
        properties = [
            SimpleNamespace(name=name, total_memory=total, **more)
            for (name, total, _), more in zip(cards, numbers, strict=True)
        ]
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(dist, "is_backend_available", lambda name: name in ("gloo", BACKENDS[kind]))
        self.answers("device_count", lambda: len(cards))
        self.answers("get_device_properties", lambda of: properties[getattr(of, "index", of)])
        self.answers("get_device_name", lambda of: properties[of.index].name)
        self.answers("mem_get_info", lambda of: (5 * GB, properties[of.index].total_memory))
        self.answers("memory_allocated", lambda _: 2 * GB)
        self.answers("memory_reserved", lambda _: 3 * GB)
        pinned = SimpleNamespace(empty_host_cache=lambda: self.asked.append(("empty_host_cache",)))
        monkeypatch.setattr(torch.accelerator, "memory", pinned, raising=False)  # since torch 2.9
        for name in ("set_device", "synchronize", "empty_cache"):
            self.answers(name, lambda *of, name=name: self.asked.append((name, *of)))

    def answers(self, name: str, answer: Callable[..., Any]) -> None:
        """Raises AttributeError where torch has no such name for this kind."""
        self.patch.setattr(self.module, name, answer)


@pytest.fixture(params=[("cuda", None), ("cuda", "6.4"), ("xpu", None)], ids=["cuda", "rocm", "xpu"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch, *request.param, BIG, SMALL, BIG)


def test_the_kind_that_is_there_is_asked_for_everything(machine: Machine) -> None:
    own, small = machine.device, SMALL[1]
    assert (device.default_kind(), device.count(machine.kind)) == (machine.kind, 3)
    assert device.group_backends(machine.kind) == {"cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}[own.type]
    assert device.name_of(own) == "GTX 1660"
    assert DeviceMemory.now(own) == DeviceMemory(small, 2 * GB, 6 * GB)
    assert memory_use(own)["accelerator"] == 3 * GB and memory_use(own)["total"] == small
    assert find_sensors(own)() == {}, "nobody tells"
    device.synchronise(own)
    device.empty_caches(own)
    assert machine.asked == [("synchronize", own), ("empty_cache",), ("empty_host_cache",)]
    places = [f"{machine.kind}:{index}" for index in range(3)]
    machine.patch.setattr(machine.module, "default_generators", places)
    assert device.generators(own) == [torch.default_generator, f"{machine.kind}:1"]


def test_nvidias_library_is_asked_for_the_ranks_own_card(machine: Machine) -> None:
    properties, nvml = device.module_of(machine.kind).get_device_properties(machine.device), Mock()
    nvml.nvmlDeviceGetHandleByUUID.side_effect = {"GPU-0123-4567": "own"}.__getitem__
    nvml.nvmlDeviceGetUtilizationRates.side_effect = [SimpleNamespace(gpu=97, memory=12), OSError("Not Supported")]
    nvml.nvmlDeviceGetTemperature.side_effect = lambda *given: {("own", 0): 71}[given]
    machine.patch.setitem(sys.modules, "pynvml", nvml)
    assert find_sensors(machine.device)() == {}, "torch does not tell which card it is"
    machine.patch.setattr(properties, "uuid", "0123-4567", raising=False)
    read = find_sensors(machine.device)
    assert read() == {"busy": 97, "celsius": 71}
    assert read() == {"celsius": 71}


def test_linuxs_files_tell_of_a_card_that_no_library_knows(machine: Machine, tmp_path: Path) -> None:
    properties = device.module_of(machine.kind).get_device_properties(machine.device)
    for name, number in (("domain", 0), ("bus", 0x41), ("device", 1)):
        machine.patch.setattr(properties, f"pci_{name}_id", number, raising=False)
    machine.patch.setattr(sensors, "PCI", tmp_path)
    read = find_sensors(machine.device)
    assert read() == {}, "such as for Intel's"
    (tmp_path / "0000:41:01.0/hwmon/hwmon3").mkdir(parents=True)
    (tmp_path / "0000:41:01.0/gpu_busy_percent").write_text("42\n")
    assert read() == {"busy": 42}
    (tmp_path / "0000:41:01.0/hwmon/hwmon3/temp1_input").write_text("63000\n")
    assert read() == {"busy": 42, "celsius": 63}
    assert find_sensors(torch.device(CPU))() == {}


def test_a_timeline_is_told_by_the_events_of_the_kind(machine: Machine) -> None:
    class Event:
        made = 0

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.at = 0.0

        def record(self) -> None:
            Event.made += 1
            self.at = 2.0 * Event.made

        def synchronize(self) -> None: ...

        def query(self) -> bool:
            return True

        def elapsed_time(self, later: Event) -> float:
            return later.at - self.at

    machine.answers("Event", Event)
    machine.answers("current_stream", lambda of: SimpleNamespace(synchronize=lambda: machine.asked.append(of)))
    timeline = Timeline(machine.device)
    with timeline.request("sample"), timeline.step("step"), timeline.communication("all_gather"):
        pass
    lengths = {span.category: (span.end - span.begin) / 1e6 for span in timeline.spans()}
    assert (lengths[COMMUNICATION], lengths[STEP]) == (2.0, 6.0)
    assert machine.asked == [machine.device]


@pytest.mark.parametrize(("local_rank", "index"), [(0, 0), (1, 2), (2, 1)])
def test_a_ranks_card_is_the_first_then_those_like_it_then_the_others(
    local_rank: int, index: int, machine: Machine
) -> None:
    asked = machine.asked
    machine.patch.setattr(dist, "init_process_group", lambda backends, device_id: asked.append((backends, device_id)))
    machine.patch.setenv("LOCAL_RANK", str(local_rank))
    machine.patch.setenv("LOCAL_WORLD_SIZE", "3")
    found = start_distributed()
    assert found == torch.device(machine.kind, index)
    assert asked == [("set_device", found), (device.group_backends(machine.kind), found)]


@pytest.mark.parametrize(("gpus", "order"), [((0, 1), (0, 1)), ((1, 2), (1, 2)), ((0, 1, 2), (0, 2, 1)), ((2,), (2,))])
def test_only_chosen_cards_take_part_in_the_same_order(
    gpus: tuple[int, ...], order: tuple[int, ...], machine: Machine
) -> None:
    machine.patch.setattr(dist, "init_process_group", lambda _backends, device_id: None)
    machine.patch.setenv("LOCAL_WORLD_SIZE", str(len(gpus)))
    for local_rank, index in enumerate(order):
        machine.patch.setenv("LOCAL_RANK", str(local_rank))
        assert start_distributed(machine.kind, gpus) == torch.device(machine.kind, index)
    machine.patch.setenv("LOCAL_WORLD_SIZE", str(len(gpus) + 1))
    with pytest.raises(PlanError, match=rf"{len(gpus) + 1} ranks were started for {len(gpus)} GPUs"):
        start_distributed(machine.kind, gpus)


def test_attention_is_left_to_torch_where_nvidias_kernels_do_not_run(machine: Machine) -> None:
    machine.patch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    machine.patch.setattr("parallel_backend.seams.kernels.backends.Backend.is_there", lambda _: True)
    is_nvidia = machine.kind == "cuda" and torch.version.hip is None
    chosen = choose_backend("auto", machine.device, torch.bfloat16, 64, ring=2)
    assert chosen.name == ("flash3" if is_nvidia else "native")
    if not is_nvidia:
        with pytest.raises(PlanError, match=r"flash runs on NVIDIA's GPUs, and the ranks compute on GTX 1660\."):
            choose_backend("flash", machine.device, torch.bfloat16, 64, ring=1)


def test_the_communication_of_a_job_is_cut_where_its_library_can(machine: Machine) -> None:
    machine.patch.setattr(dist, "get_world_size", lambda: 2)
    assert JobGroups(machine.device, Timeline(torch.device(CPU))).can_be_cut == (machine.kind == "cuda")


def test_where_the_driver_does_not_tell_what_is_free_it_is_what_this_process_has_not(machine: Machine) -> None:
    said = RuntimeError("The device doesn't support querying the available free memory.")
    machine.answers("mem_get_info", Mock(side_effect=said))
    assert device.free_bytes(machine.device) == SMALL[1] - 3 * GB


def test_a_torch_that_cannot_give_pinned_memory_back_keeps_it(machine: Machine) -> None:
    machine.patch.delattr(torch.accelerator, "memory")
    device.empty_caches(machine.device)
    assert machine.asked == [("empty_cache",)]


def test_without_an_accelerator_the_cpu_is_used_and_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))  # of the build
    own = torch.device(CPU)
    assert (device.default_kind(), device.group_backends(CPU), device.name_of(own)) == (CPU, "gloo", "cpu")
    device.synchronise(own)
    device.empty_caches(own)
    assert device.generators(own) == [torch.default_generator]


@pytest.mark.parametrize("kind", ["mps", "npu", "privateuseone"])
def test_another_kind_is_refused_by_name_with_what_to_do(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: SimpleNamespace(type=kind))
    monkeypatch.setenv("LOCAL_RANK", "0")
    for given in (None, kind):
        with pytest.raises(RequestError, match=rf"cannot compute on {kind}.*\n\n.*PARALLELDIT_DEVICE=cpu"):
            start_distributed(given)


def test_a_torch_without_the_library_of_the_kind_is_named(machine: Machine) -> None:
    machine.patch.setattr(dist, "is_backend_available", lambda name: name == "gloo")
    with pytest.raises(RequestError, match=rf"has no {BACKENDS[machine.kind]}, which {machine.kind} devices need"):
        device.group_backends(machine.kind)


@pytest.mark.parametrize(
    ("others", "alike"),
    [
        ([BIG, BIG], [0, 1, 2]),
        ([SMALL, BIG], [0, 2]),
        ([SMALL, SMALL], [0]),
        ([(BIG[0], 12 * GB, BIG[2])], [0]),
        ([(BIG[0], BIG[1] - GB // 4, BIG[2])], [0, 1]),
        ([(BIG[0], BIG[1], (8, 9))], [0]),
        ([], [0]),
    ],
    ids=["alike", "one other", "more others", "half the memory", "a display's memory", "another generation", "alone"],
)
def test_like_cards_are_those_of_the_same_name_memory_and_capability(others: list[tuple], alike: list[int]) -> None:
    cards = [Card(index, *card) for index, card in enumerate([BIG, *others])]
    found, left = like_first(cards)
    assert [card.index for card in found] == alike
    assert sorted(found + left) == cards
    assert str(cards[0]) == "GPU 0 (RTX 3090, 24 GB)"


@pytest.mark.parametrize(
    "said",
    ["HIP error: out of memory", "error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"],
)
def test_lack_of_memory_is_known_in_the_words_of_every_maker(said: str) -> None:
    assert is_out_of_memory(RuntimeError(said))


@pytest.mark.parametrize("mask_shape", [None, (1, 1, 1, 9), (2, 1, 7, 9), (2, 3, 7, 9)], ids=str)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_without_a_kernel_for_the_log_sum_exp_is_that_of_the_kernel(
    mask_shape: tuple | None, scale: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "QUERIES", 3)
    generator = torch.Generator().manual_seed(5)
    q_BhRD, k_BhKD, v_BhKD = (torch.randn(2, 3, tokens, 8, generator=generator) for tokens in (7, 9, 9))
    mask = torch.randn(mask_shape, generator=generator) if mask_shape else None
    expected = ring.attention_with_lse(q_BhRD, k_BhKD, v_BhKD, scale, mask)
    found = ring.plain_attention_with_lse(q_BhRD, k_BhKD, v_BhKD, mask, scale)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_rank_warms_up_and_a_full_card_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU in place of a card."""
    asked: list[str] = []
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(device, "is_accelerator", lambda _device: True)
    monkeypatch.setattr(device, "synchronise", lambda _device: asked.append("synchronise"))
    monkeypatch.setattr(device, "empty_caches", lambda _device: asked.append("empty_caches"))

    full = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory."))
    broken = Mock(side_effect=RuntimeError("CUDA error: an illegal memory access was encountered"))
    for kernel in (attend, full):
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", kernel)
        device.warm_up(torch.device(CPU))
    assert asked == ["synchronise", "empty_caches"]
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", broken)
    with pytest.raises(RuntimeError, match="illegal"):
        device.warm_up(torch.device(CPU))
