"""What a machine can is measured once, by its ranks, and kept; predictions follow it and the steps that were made."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from parallel_backend import rates
from parallel_backend.costs.alike import APART, BELIEVED, Doubt, choose_figures
from parallel_backend.costs.correct import FASTEST, MEASURED, STAYED, TRIED_NEXT, Correction, choose_prediction
from parallel_backend.costs.machine import Machine
from parallel_backend.costs.predict import Prediction
from parallel_backend.groups.mesh import Axis
from parallel_backend.plan import ParallelPlan
from tests.support.group.direct_group import go_on
from tests.support.host.quick_machine import two_ranks
from worker.errors import RequestRefused
from worker.host.client import WorkerGroup
from worker.host.measured import MeasuredFile

DEVICES = ["one card", "another"]
ULYSSES, ALONE = ParallelPlan(ulysses=2), ParallelPlan(dp=2)
CFG, RING = ParallelPlan(cfg=2), ParallelPlan(ring=2)


def test_ranks_measure_what_they_can_and_keep_their_model(group_of_two: WorkerGroup, tmp_path: Path) -> None:
    group = group_of_two
    figures = group.measure(2, "fp32", go_on)
    machine = Machine.of(figures)
    assert machine.names == ("cpu", "cpu") and machine.is_measured
    for speed in machine.speeds:
        assert 1e8 < speed.attention < 1e13 and 1e8 < speed.linear < 1e13
        assert 1e-8 < speed.operation < 1e-2 and speed.memory > 1e7 and speed.weights > 1e7
    assert 0 < machine.hides <= 1
    for link in (machine.all_to_all, machine.all_gather, machine.send):
        assert 1e5 < link.rate <= max(speed.memory for speed in machine.speeds) and 1e-6 < link.latency < 1
    with pytest.raises(RequestRefused, match="none of them"):
        group.measure(2, "fp8", go_on)


def test_a_link_is_never_faster_than_the_memory_even_if_its_few_bytes_were_delayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rates, "quickest", lambda action, device: 0.003)
    monkeypatch.setattr(rates, "exchange", lambda kind, size, axis, device: None)
    found = rates.links_of(Axis(None, 2, 0), torch.device("cpu"), rates.OF_CORES, 2e10)
    assert [rate for rate, _ in found.values()] == pytest.approx([2e10] * len(found))


def test_a_hidden_exchange_is_measured_on_a_busy_device_as_a_forward_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an idle one it would begin at once, and hide better than in a forward."""
    order: list[str] = []
    seconds = iter([1.0, 1.0, 1.0, 2.5])  # of the exchange, a product, the products, and both

    def send() -> Callable[[], None]:
        order.append("send")
        return lambda: order.append("wait")

    def usual(action: Callable[[], object], _device: torch.device) -> float:
        order.clear()
        action()
        return next(seconds)

    monkeypatch.setattr(rates, "start_exchange", lambda *_: send)
    monkeypatch.setattr(rates, "usual", usual)
    monkeypatch.setattr(torch, "mm", lambda *_, **__: order.append("compute"))
    share = rates.hidden_share(Axis(None, 2, 0), torch.device("cpu"), torch.float32, rates.OF_CORES)
    assert order == ["compute", "send", "compute", "wait"]
    assert share == pytest.approx(0.5)


def test_figures_last_and_are_for_the_devices_that_they_name(tmp_path: Path) -> None:
    kept = MeasuredFile(tmp_path, DEVICES, "bf16")
    assert kept.figures is None and not kept.problem
    kept.keep({"host": 1})
    kept.note("flux", {"computing": 2})
    again = MeasuredFile(tmp_path, DEVICES, "bf16")
    assert (again.figures, again.steps) == ({"host": 1}, {"flux": {"computing": 2}})
    for other in (MeasuredFile(tmp_path, DEVICES[::-1], "bf16"), MeasuredFile(tmp_path, DEVICES, "fp16")):
        assert other.figures is None
    again.keep({"host": 2})
    assert MeasuredFile(tmp_path, DEVICES, "bf16").steps == {}, "of what was measured before"


def measure_often(slower: list[float], devices: list[str]) -> list[Machine]:
    """The figures that are kept after each of these measurements."""
    kept, doubt, now, found = None, Doubt(), 1e9, []
    for each in slower:
        kept, doubt = choose_figures(two_ranks(each).to_json(), kept, doubt, devices, now)
        found.append(Machine.of(kept))
        assert not doubt.is_due(now + APART / 2), "the same process may still keep a core busy"
        now += APART
        assert doubt.is_due(now) == (0 < doubt.times < BELIEVED)
    return found


def test_devices_of_one_name_count_as_equal_if_something_else_ran_while_they_were_measured() -> None:
    """A process kept a core busy: 1 to 0.66. Measured again, they are equal."""
    busy, quiet = two_ranks(1.52), two_ranks(1.0)
    assert measure_often([1.52, 1.0], ["a core", "a core"]) == [quiet, quiet]
    assert measure_often([1.52, 1.52, 1.0, 1.52], ["a core", "a core"]) == [quiet] * 4, "not in a row"
    assert measure_often([1.4], ["a core", "a core"]) == [two_ranks(1.4)], "with which they share alike"
    assert measure_often([1.52], ["a core", "another"]) == [busy], "which may be true"
    assert measure_often([1.52], ["a core machine-1", "a core machine-2"]) == [busy]


def test_a_difference_that_lasts_is_believed() -> None:
    """As in tests/benchmarks/speed/throttle.py, where a rank is twice as slow."""
    quiet, slow = two_ranks(1.0), two_ranks(2.0)
    assert measure_often([2.0] * BELIEVED, ["a card", "a card"]) == [*[quiet] * (BELIEVED - 1), slow]


def test_doubt_lasts_until_the_next_start_and_forgets_no_steps(tmp_path: Path) -> None:
    kept = MeasuredFile(tmp_path, DEVICES, "bf16")
    kept.keep({"host": 1}, Doubt(1, 5.0))
    kept.note("flux", {"computing": 2})
    kept.keep({"host": 1}, Doubt(2, 6.0))
    again = MeasuredFile(tmp_path, DEVICES, "bf16")
    assert (again.doubt, again.steps) == ((2, 6.0), {"flux": {"computing": 2}})


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"made_of": {}}', "other versions", "\0"])
def test_a_file_that_is_damaged_or_of_other_versions_is_measured_again_and_said(damage: str, tmp_path: Path) -> None:
    kept = MeasuredFile(tmp_path, DEVICES, "bf16")
    kept.keep({"host": 1})
    held = json.loads(kept.path.read_text())
    held["made_of"]["torch"] = "0.1"
    kept.path.write_text(json.dumps(held) if damage == "other versions" else damage)
    again = MeasuredFile(tmp_path, DEVICES, "bf16")
    assert again.figures is None and "measured again" in again.problem
    again.keep({"host": 2})
    assert MeasuredFile(tmp_path, DEVICES, "bf16").figures == {"host": 2}


def test_fixed_figures_are_not_corrected(tmp_path: Path) -> None:
    kept = MeasuredFile(tmp_path, DEVICES, "bf16")
    kept.keep({"host": 1})
    kept.path.write_text(json.dumps({**json.loads(kept.path.read_text()), "fixed": True}))
    fixed = MeasuredFile(tmp_path, DEVICES, "bf16")
    fixed.note("flux", {})
    assert fixed.figures == {"host": 1} and not fixed.steps


def test_a_folder_that_cannot_be_written_to_keeps_figures_for_as_long_as_comfyui(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = MeasuredFile(tmp_path / "file" / "folder", DEVICES, "bf16")
    kept.keep({"host": 1})
    assert kept.figures == {"host": 1}


def test_after_a_step_its_plan_is_predicted_to_take_what_it_took() -> None:
    told = Prediction(ULYSSES, 1.0, 0.5, 10)
    noted = Correction().add_step(told, 4.0, 2.0)
    again = Correction.from_json(json.loads(json.dumps(noted.to_json()))).correct(told)
    assert (again.computing, again.waiting) == (2.0, 2.0)
    ring = noted.correct(Prediction(ParallelPlan(ring=2), 1.1, 0.25, 10))
    assert (ring.computing, ring.waiting) == pytest.approx((2.2, 1.0)), "both parts are off alike for others"
    assert noted.correct(Prediction(ALONE, 2.0, 0.0, 10)).seconds == pytest.approx(4.0)


def test_ranks_that_wait_for_each_other_do_so_under_other_plans_too() -> None:
    noted = Correction().add_step(Prediction(ULYSSES, 1.0, 0.001, 10), 1.5, 0.5)
    assert noted.correct(Prediction(ParallelPlan(ring=2), 1.0, 0.001, 10)).waiting == pytest.approx(0.5, abs=0.01)
    assert noted.correct(Prediction(ALONE, 2.0, 0.0, 10)).waiting == 0


def test_another_plan_is_tried_where_it_may_be_as_fast() -> None:
    """A link that is slower than it was measured: after a step, one device may be as fast."""
    told = [Prediction(ULYSSES, 1.0, 0.2, 10), Prediction(ALONE, 2.0, 0.0, 10)]
    assert choose_prediction(told, Correction()).plan == ULYSSES
    for waited, chosen in ((0.7, ULYSSES), (0.9, ALONE), (1.3, ALONE)):
        noted = Correction().add_step(told[0], 1.0 + waited, waited)
        found = sorted(map(noted.correct, told), key=lambda each: each.seconds)
        assert choose_prediction(found, noted).plan == chosen


@pytest.mark.parametrize(("seconds", "chosen"), [(1.7, ULYSSES), (4.0, ALONE)])
def test_one_device_is_tried_where_sharing_tokens_itself_may_have_made_a_step_slow(
    seconds: float, chosen: ParallelPlan
) -> None:
    """A step computed for longer than predicted. One device may or may not do so, too."""
    told = [Prediction(ULYSSES, 1.0, 0.1, 10), Prediction(ALONE, 2.0, 0.0, 10)]
    noted = Correction().add_step(told[0], seconds, 0.1)
    found = sorted(map(noted.correct, told), key=lambda each: each.seconds)
    assert found[0].plan == ULYSSES and found[1].seconds > 1.1 * found[0].seconds
    assert choose_prediction(found, noted).plan == chosen
    noted = noted.add_step(told[1], 5.0, 0.0)
    found = sorted(map(noted.correct, told), key=lambda each: each.seconds)
    assert choose_prediction(found, noted).plan == ULYSSES, "one device has been measured, and is slower"


@pytest.mark.parametrize("slower", [1.5, 1.9, 2.5, 4.0])
@pytest.mark.parametrize("has_run", [True, False], ids=["compared", "not compared"])
def test_a_plan_that_was_measured_slower_than_one_device_is_never_kept(slower: float, has_run: bool) -> None:
    """A machine whose ranks slow each other down: the plans that share the work compute for longer than predicted. Auto
    ends with the fastest plan that has run. One device has run if a person compared plans, or else if the plans take
    clearly longer than predicted."""
    one = ParallelPlan()
    told = {CFG: (1.0, 0.01), ULYSSES: (1.05, 0.2), RING: (1.05, 0.3), one: (2.0, 0.0)}
    raw = {plan: Prediction(plan, *parts, 10, is_alone=plan == one) for plan, parts in told.items()}
    took = {CFG: 1.2 * slower, ULYSSES: 1.1 * slower, RING: 1.3 * slower, one: 2.0}
    noted, ran = Correction(), []
    if has_run:
        noted = noted.add_step(raw[one], took[one], 0.0)
    for _ in range(6):
        choice = choose_prediction(sorted(map(noted.correct, raw.values()), key=lambda each: each.seconds), noted)
        ran.append(choice.plan)
        noted = noted.add_step(raw[choice.plan], took[choice.plan], 0.0)
    known = {took[plan] for plan in raw if str(plan) in noted.plans}
    assert took[ran[-1]] == min(known) and ran[-1] == ran[-2], "the fastest that has run is kept"
    if has_run or slower > 2:
        assert took[one] in known and (ran[-1] == one) == (took[ULYSSES] > took[one])


def run_prompts(took: dict[ParallelPlan, float], noise: float, prompts: int) -> list[ParallelPlan]:
    """The plan of each of these prompts, if each takes up to so much longer or shorter."""
    chance, noted, ran = random.Random(0), Correction(), []
    raw = {plan: Prediction(plan, 1.0, 0.0, 10, is_alone=plan == ParallelPlan()) for plan in took}
    for _ in range(prompts):
        found = sorted(map(noted.correct, raw.values()), key=lambda each: each.seconds)
        ran.append(choose_prediction(found, noted).plan)
        seconds = took[ran[-1]] * chance.uniform(1 - noise, 1 + noise)
        noted = noted.add_step(raw[ran[-1]], seconds, 0.0)
        noted = Correction.from_json(json.loads(json.dumps(noted.to_json())))
    return ran


def count_changes(ran: list[ParallelPlan]) -> int:
    return sum(one != other for one, other in itertools.pairwise(ran))


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05, 0.08])
@pytest.mark.parametrize("one", [0.99, 1.005, 2.0], ids=["one device is fastest", "as fast", "slower"])
def test_auto_stays_with_a_plan_that_others_beat_by_noise_alone(noise: float, one: float) -> None:
    took = {CFG: 1.0, ULYSSES: 1.01, RING: 0.995, ParallelPlan(): one}
    ran = run_prompts(took, noise, prompts=60)
    assert count_changes(ran[10:]) <= 1, ran
    if one == 2.0:
        assert ran[-1] != ParallelPlan()


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
def test_auto_takes_a_plan_that_is_faster_by_more_than_the_noise(noise: float) -> None:
    ran = run_prompts({CFG: 1.0, ULYSSES: 0.8, RING: 1.02, ParallelPlan(): 2.0}, noise, prompts=12)
    assert {*ran[6:]} == {ULYSSES}


def test_the_plan_that_ran_last_stays_and_the_choice_says_so_but_not_if_one_device_was_faster() -> None:
    told = [Prediction(CFG, 1.0, 0.0, 10), Prediction(ParallelPlan(), 1.0, 0.0, 10, is_alone=True)]
    noted = Correction().add_step(told[0], 1.0, 0.0).add_step(told[1], 1.03, 0.0)
    choice = choose_prediction(sorted(map(noted.correct, told), key=lambda each: each.seconds), noted)
    assert (choice.plan, choice.why, choice.best.plan) == (ParallelPlan(), STAYED, CFG)
    noted = noted.add_step(told[0], 1.04, 0.0)
    choice = choose_prediction(sorted(map(noted.correct, told), key=lambda each: each.seconds), noted)
    assert (choice.plan, choice.why) == (ParallelPlan(), MEASURED)


def test_while_plans_are_tried_the_choice_says_which_of_how_many() -> None:
    told = [Prediction(plan, 1.0, waiting, 10) for plan, waiting in ((CFG, 0.01), (ULYSSES, 0.02), (RING, 0.03))]
    noted, said = Correction(), []
    for _ in range(4):
        choice = choose_prediction(sorted(map(noted.correct, told), key=lambda each: each.seconds), noted)
        said.append((choice.plan, choice.why, choice.tried))
        noted = noted.add_step(next(each for each in told if each.plan == choice.plan), 1.0, choice.prediction.waiting)
    assert said[:3] == [(CFG, FASTEST, None), (ULYSSES, TRIED_NEXT, (2, 3)), (RING, TRIED_NEXT, (3, 3))]
    assert said[3][1:] == (MEASURED, None)


def test_one_device_that_has_run_is_known_however_it_is_written() -> None:
    """By hand it is a plan of one rank; auto writes it for one image as dp, whose other ranks have no row."""
    by_hand = Prediction(ParallelPlan(), 2.0, 0.0, 10, is_alone=True)
    noted = Correction().add_step(by_hand, 3.0, 0.0)
    assert noted.correct(Prediction(ALONE, 2.0, 0.0, 10, is_alone=True)).seconds == 3.0
    assert Prediction(ALONE, 1.0, 0.0, 10).words == "dp=2", "whose rows are two"


def test_once_three_have_run_another_has_to_be_faster_to_be_tried() -> None:
    plans = [ULYSSES, ParallelPlan(ring=2), ALONE, ParallelPlan(cfg=2)]
    noted, ran = Correction(), []
    for seconds in (1.0, 1.05, 1.02):
        found = sorted((noted.correct(Prediction(plan, 1.0, 0.0, 10)) for plan in plans), key=lambda each: each.seconds)
        ran.append(choose_prediction(found, noted).plan)
        noted = noted.add_step(Prediction(ran[-1], 1.0, 0.0, 10), seconds, 0.0)
    assert len(set(ran)) == 3
    last = Prediction(next(plan for plan in plans if plan not in ran), 1.0, 0.0, 10)
    found = [Prediction(plan, *noted.plans[str(plan)], 10) for plan in ran]
    for factor, chosen in ((0.98, ran[-1]), (0.9, last.plan)):
        mixed = sorted([*found, replace(last, computing=factor)], key=lambda each: each.seconds)
        assert choose_prediction(mixed, noted).plan == chosen


def test_a_folder_that_cannot_be_written_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the setting that names another. A step is noted many times a minute."""
    (tmp_path / "closed").write_text("a file, so no folder")
    file = MeasuredFile(tmp_path / "closed", ["card"], "bf16")
    for number in range(3):
        file.note("model", {"seconds": number})
    (said,) = [each.getMessage() for each in caplog.records if "cannot be saved" in each.getMessage()]
    assert "The setting `measured` names another folder" in said
