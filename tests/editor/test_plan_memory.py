"""A plan says before it is queued what its ranks keep of the weights, need with a forward and fetch, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import expect

from tests.support.editor.editor import PLAN_NODE, Editor
from tests.support.editor.examples import open_demo
from tests.support.programs import run_program

GIB = 1 << 30
STAGES = "the plan pipefusion=2 × 2 patches, 1 sync"
ROUTE = "**/paralleldit/plan"
SAVED = f"() => {PLAN_NODE}.serialize().size"
LATENT = {"width": 1024, "height": 1024}
MEASURED = {"kind": "host", "link": 2e10}
FLUX = 22.2  # GiB in bf16: 11.9 billion weights
# In 57 blocks; two blocks of two streams, which are the largest, are the buffers that others come to.
LARGEST = 0.633
COMMUNICATORS = 72 / 1024  # GiB, of two ranks that gather and send messages, see docs/dev/06-gpu-path.md


class Case(NamedTuple):
    """cards: their GB; none: the CPU. told: by the group, of its weights. plan: values of the node, {} being auto. ram:
    what is free, in GB."""

    cards: tuple[int, ...]
    plan: dict[str, Any]
    model: str = "flux"
    picture: dict[str, int] | None = LATENT
    cfg: float | None = 1.0
    sampler: str = "KSampler"
    told: dict[str, Any] = {}
    ram: int = 64

    def question(self) -> list[Any]:
        values = {"mode": "manual", **self.plan} if self.plan else {"mode": "auto"}
        sampler = {"type": self.sampler, "cfg": self.cfg, "picture": self.picture}
        question = {"values": values, "files": {"unet_name": self.model}, "samplers": [sampler]}
        return [self.cards, self.told, question, 0, self.ram]


CASES = {
    "fits": Case((80, 80), {"ulysses": 2}),
    "does not fit": Case((20, 20), {"ulysses": 2}),
    "the smaller card counts": Case((80, 20), {"ulysses": 2}),
    "a larger picture": Case((20, 20), {"ulysses": 2}, picture={**LATENT, "width": 2048, "batch_size": 4}),
    "no picture": Case((20, 20), {"ulysses": 2}, picture=None),
    "auto": Case((20, 20), {}, told=MEASURED),
    "whole does not fit": Case((20, 20), {"ulysses": 2, "weights": "whole"}),
    "guidance split": Case((80, 80), {"cfg": 2, "weights": "shared"}, cfg=3.0),
    "stages": Case(
        (24, 24), {"pipefusion": 2, "patches": 2, "weights": "host", "weight_blocks": 4}, sampler="ParallelDiT_Sampler"
    ),
    "open patches": Case((80, 80), {"pipefusion": 2}),
    "open patches, fetched": Case((12, 12), {"pipefusion": 2}),
    "open patches, little RAM": Case((12, 12), {"pipefusion": 2}, ram=2),
    "no blocks known": Case((4, 4), {"cfg": 2}, "ace-step"),
    "no blocks to share": Case((4, 4), {"cfg": 2, "weights": "shared"}, "ace-step"),
    "a UNet in part": Case((4, 4), {"cfg": 2}, "sdxl"),
    "nobody to share with": Case((24, 24), {"ulysses": 1, "weights": "shared"}),
    "stages would": Case((20, 20), {"ulysses": 2, "weights": "whole"}, sampler="ParallelDiT_Sampler"),
    "more ranks would": Case((20, 20), {"ulysses": 1, "weights": "whole"}, sampler="ParallelDiT_Sampler"),
    "one card is small": Case((80, 20), {"ulysses": 2, "weights": "whole"}),
    "nothing would": Case((2, 2), {"ulysses": 2, "weights": "shared"}),
    "a smaller picture would": Case((20, 20), {"ulysses": 2, "weights": "host"}, picture={**LATENT, "batch_size": 64}),
    "auto of a batch": Case((80, 80), {}, picture={**LATENT, "batch_size": 4}, cfg=3.0),
    "no guidance": Case((80, 80), {"cfg": 2}),
    "no guidance, and no tokens to share": Case((80, 80), {"cfg": 2}, "ace-step"),
    "no guidance, and rows to share": Case((80, 80), {"cfg": 2}, "sdxl"),
    "too few cards": Case((24, 24), {"ulysses": 25}),
    "no file": Case((24, 24), {"ulysses": 2}, "no such file"),
    "auto without a file": Case((24, 24), {}, "no such file"),
    "eight": Case((24,) * 8, {"cfg": 2, "ulysses": 4}, cfg=3.0),
    "on the CPU": Case((), {"ulysses": 2, "weights": "shared"}),
    "whole on the CPU": Case((), {"ulysses": 2}, ram=128),
    "little RAM on the CPU": Case((), {"ulysses": 2}, ram=24),
    "one rank on the CPU": Case((), {"ulysses": 1}, ram=64),
    "host weights, little RAM": Case((24, 24), {"ulysses": 2, "weights": "host"}, ram=16),
    "dp of one image": Case((80, 80), {"dp": 2}),
    "dp of one image with guidance": Case((80, 80), {"dp": 2}, cfg=3.0),
    "dp of two images": Case((80, 80), {"dp": 2}, picture={**LATENT, "batch_size": 2}),
}


@pytest.fixture(scope="module")
def answers(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    asked, folder = [case.question() for case in CASES.values()], tmp_path_factory.mktemp("models")
    said = run_program(comfyui, "tests.support.host.plans_on_cards", folder, given=asked)
    return dict(zip(CASES, said, strict=True))


def kept(answer: dict[str, Any]) -> list[float]:
    """GiB at rest, by stage."""
    return [size / GIB for size in answer["memory"]["kept"]]


def remarks(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is said of memory, by key."""
    return {each["key"]: each["values"] for each in answer["remarks"] if not each["key"].startswith("auto_")}


def test_the_working_memory_is_comfyuis_estimate_for_a_ranks_part_of_the_picture(answers: dict) -> None:
    one, more = (answers[name]["memory"]["working"] for name in ("fits", "a larger picture"))
    assert 0.3 * GIB < one < GIB and more == pytest.approx(8 * one)
    assert answers["no picture"]["memory"]["working"] is None
    assert [answers[name]["sized"] for name in ("fits", "no picture", "no file")] == [True, False, False]


def test_the_number_of_patches_goes_by_the_cards_and_not_by_the_ram_that_is_free_now(answers: dict) -> None:
    """It changes the image, so the same prompt has to give the same number again."""
    names = ("open patches", "open patches, fetched", "open patches, little RAM")
    room, fetched, little = (answers[name]["plan"].split(",")[0] for name in names)
    assert (room, fetched) == ("pipefusion=2 × 8 patches", "pipefusion=2 × 2 patches")
    assert little == fetched


@pytest.mark.parametrize("name", ["does not fit", "the smaller card counts", "a larger picture", "no picture", "auto"])
def test_auto_has_as_few_blocks_fetched_as_must_be_and_says_why(name: str, answers: dict) -> None:
    """What stays is no more than there is room for, and with a block less it would be."""
    memory, said = answers[name]["memory"], remarks(answers[name])
    beside = max(0.8 * GIB, memory["working"] or 0) + 0.4 * GIB  # what ComfyUI keeps free, reserved memory included
    room = 20 - beside / GIB - COMMUNICATORS
    assert room - LARGEST < kept(answers[name])[0] <= room
    assert float(said["whole_does_not_fit"]["room"].split()[0]) == pytest.approx(room, abs=0.06)
    assert said["whole_does_not_fit"]["plan"] == "ulysses=2" and said["whole_does_not_fit"]["whole"] == "22.2 GiB"
    assert 0 < said["weights_host"]["going"] < said["weights_host"]["blocks"] == 57
    assert said["weights_host"]["size"] == f"{memory['fetched'] / GIB:.1f} GiB"
    assert "one_forward" in said and ("link_measured" in said) == (name == "auto") == ("link_assumed" not in said)


@pytest.mark.parametrize(
    "name", ["fits", "auto", "auto of a batch", "guidance split", "eight", "little RAM on the CPU"]
)
def test_a_plan_in_the_list_needs_what_the_plan_of_the_node_needs(name: str, answers: dict) -> None:
    memory, predicted = answers[name]["memory"], answers[name]["predicted"]
    for each in (predicted["plan"], *(each for each in predicted["best"] if each["plan"] == predicted["plan"]["plan"])):
        assert (each["bytes"], each["fits"]) == (memory["tight"]["needs"], memory["tight"]["fits"])


def test_what_does_not_fit_is_told_with_what_is_there(answers: dict) -> None:
    tight = answers["whole does not fit"]["memory"]["tight"]
    assert tight["needs"] / GIB == pytest.approx(
        FLUX + answers["whole does not fit"]["memory"]["working"] / GIB, abs=0.1
    )
    assert tight["usable"] < 20 * GIB and tight["card"]["index"] == 0 and tight["fits"] is False
    assert answers["one card is small"]["memory"]["tight"]["card"]["index"] == 1, "which has the least"
    assert answers["fits"]["memory"]["tight"]["fits"] is True
    assert answers["no blocks known"]["memory"]["tight"]["fits"] is None
    assert "partly_in_ram" in remarks(answers["no blocks known"])


@pytest.mark.parametrize("name", ["whole on the CPU", "little RAM on the CPU", "one rank on the CPU"])
def test_the_weights_of_all_cpu_ranks_are_counted_against_the_ram(name: str, answers: dict) -> None:
    tight, ram, ranks = answers[name]["memory"]["tight"], 0.9 * CASES[name].ram, CASES[name].plan["ulysses"]
    needs = 44.4 * ranks
    assert tight["needs"] / GIB == pytest.approx(needs, rel=0.01) and tight["card"] is None
    assert tight["usable"] / GIB == pytest.approx(ram, abs=0.01) and tight["fits"] == (needs <= ram)
    assert tight["fits"] or answers[name]["memory"]["remedies"]["words"] in ("would_fit", "nothing_fits")


def test_weights_that_wait_in_ram_are_counted_against_it(answers: dict) -> None:
    tight = answers["host weights, little RAM"]["memory"]["tight"]
    assert tight["card"] is None and tight["fits"] is False
    assert 20 < tight["needs"] / GIB < FLUX and tight["usable"] / GIB == pytest.approx(0.9 * 16, abs=0.01)


def test_a_unets_layers_are_fetched_if_they_do_not_fit(answers: dict) -> None:
    answer = answers["a UNet in part"]
    assert answer["memory"]["fits"] == [True, True] and {"weights_host", "whole_does_not_fit"} <= {*remarks(answer)}
    assert kept(answer)[0] == pytest.approx(2.3, abs=0.1), "of 4.8 GiB"


@pytest.mark.parametrize("name", ["no blocks to share", "nobody to share with"])
def test_weights_that_cannot_be_shared_are_an_error_at_their_widget(name: str, answers: dict) -> None:
    assert answers[name]["error"] and (answers[name]["widgets"], answers[name]["memory"]) == (["weights"], None)


def remedies(answer: dict[str, Any]) -> tuple[str, list[str]]:
    found = answer["memory"]["remedies"]
    return found["words"], [each["text"] for each in found["found"]]


def test_each_card_is_told_and_whether_it_has_room(answers: dict) -> None:
    fits = answers["fits"]["memory"]
    assert kept(answers["fits"]) == [pytest.approx(FLUX, abs=0.05)] and remarks(answers["fits"]) == {}
    assert (fits["fits"], fits["fetched"], fits["remedies"]) == ([True, True], 0, None)
    assert answers["fits"]["ranks"][1]["card"] == {"index": 1, "name": "80 GB", "total": 80 * GIB}
    assert answers["one card is small"]["memory"]["fits"] == [True, False]
    assert answers["on the CPU"]["memory"]["fits"] == [] and answers["on the CPU"]["ranks"][0]["card"] is None
    assert set(remarks(answers["on the CPU"])) == {"weights_shared", "one_forward"}, "there is no link to speak of"
    assert answers["no blocks known"]["memory"]["fits"] == [None, None], "ComfyUI's partial loading sees to it"


@pytest.mark.parametrize(
    ("name", "words", "found"),
    [
        ("whole does not fit", "would_fit", ["fp8 weights", "shared weights", "weights in RAM", STAGES]),
        ("one card is small", "would_fit", ["fp8 weights", "shared weights", "weights in RAM", STAGES]),
        ("more ranks would", "would_fit", ["fp8 weights", "weights in RAM", STAGES]),
        ("stages would", "would_fit", ["fp8 weights", "shared weights", "weights in RAM", STAGES]),
        ("nothing would", "nothing_fits", []),
        ("auto", "whole_would", ["fp8 weights"]),
        ("a UNet in part", "whole_would", ["fp8 weights"]),
    ],
)
def test_what_would_fit_is_named_if_it_does_on_the_ranks_at_hand(
    name: str, words: str, found: list[str], answers: dict
) -> None:
    """A stock sampler has no stages."""
    assert remedies(answers[name]) == (words, found)


def test_a_smaller_picture_is_named_where_that_is_what_fits(answers: dict) -> None:
    assert remedies(answers["a smaller picture would"])[1][-1] == "1024 × 1024 in batches of 1"


def test_a_step_is_told_beside_one_device_and_what_it_was_chosen_for(answers: dict) -> None:
    told, said = answers["auto of a batch"], remarks(answers["auto of a batch"])
    own, one = told["predicted"]["plan"], told["predicted"]["one_device"]
    assert own["plan"] == told["plan"] and one["plan"] == "one rank"
    assert 1.5 < one["seconds"] / own["seconds"] <= 2
    assert not told["predicted"]["is_measured"] and not own["has_run"]
    assert said["for_guided"] == {"size": "1024 × 1024", "images": 4} and said["fastest_of"]["count"] == 4
    stages = answers["stages"]["predicted"]
    assert stages["plan"]["plan"].startswith("pipefusion=2 × 2 patches") and stages["plan"]["seconds"] > 0
    assert not any(each["values"]["pipefusion"] > 1 for each in stages["best"]), "auto has it only where it is allowed"


def test_advice_can_be_followed_with_what_is_there(answers: dict) -> None:
    notes = {name: {each["key"]: each["values"] for each in answer["note"]} for name, answer in answers.items()}
    assert notes["no guidance"] == {"no_guidance": {"plan": "ulysses=2"}}
    assert notes["no guidance, and rows to share"] == {"no_guidance": {"plan": "ulysses=2"}}
    assert notes["no guidance, and no tokens to share"] == {"no_guidance_alone": {}}
    assert notes["dp of one image"] == {"no_batch": {"plan": "ulysses=2", "parts": 1, "ways": 2}}
    assert notes["dp of one image with guidance"] == notes["dp of two images"] == {}, "cond and uncond are parts, too"
    assert "Lower a degree until their product is 2 or less." in answers["too few cards"]["error"]
    assert list(remarks(answers["no file"])) == ["unchecked_file"] and answers["no file"]["unknown"] == []
    assert answers["no file"]["missing"] == [{"model": "no such file", "folder": "diffusion_models"}]
    assert list(remarks(answers["auto without a file"])) == ["needs_file"]


def test_an_answer_is_no_change_of_the_workflow(editor: Editor, answers: dict) -> None:
    sizes = []
    for name in "auto", "whole does not fit":
        with editor.routed(ROUTE, answers[name]):
            open_demo(editor)
            expect(editor.plan("title")).to_have_count(1)
            sizes.append(editor.page.evaluate(SAVED))
    assert sizes[0] == sizes[1] and editor.problems == []
