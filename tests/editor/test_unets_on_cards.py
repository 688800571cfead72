"""The plan of SDXL tells before the run what 2 and 4 cards give on their link, and where one card is faster."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.links.profiles import PROFILES
from tests.support.programs import run_program

MODEL = "sdxl"  # of the published size, without its weights
PICTURE = {"width": 1024, "height": 1024}
LINKS = ("NVLink", "PCIe 4.0 x16", "10 Gbit/s Ethernet")
CARDS = (2, 4)
GUIDED = {False: 1.0, True: 7.0}
ONE, BANDS = "one rank", ("ulysses", "ring")
Answers = dict[tuple[str, int, bool], dict[str, Any]]


@pytest.fixture(scope="module")
def answers(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """By link, cards and guidance, what the route answers of an automatic plan."""
    keys, asked = list(itertools.product(LINKS, CARDS, GUIDED)), []
    for link, cards, guided in keys:
        sampler = {"type": "KSampler", "cfg": GUIDED[guided], "picture": PICTURE}
        question = {"values": {"mode": "auto"}, "files": {"ckpt_name": MODEL}, "samplers": [sampler]}
        asked.append([[24] * cards, {}, question, PROFILES[link].link])
    folder = tmp_path_factory.mktemp("models")
    said = run_program(comfyui, "tests.support.host.plans_on_cards", folder, given=json.dumps(asked))
    return dict(zip(keys, json.loads(said.splitlines()[-1]), strict=True))


def predicted(answers: Answers, *key: Any) -> dict[str, Any]:
    return answers[key]["predicted"]


def said(answer: dict[str, Any]) -> str:
    return " ".join(each["text"] for each in answer["remarks"])


def seconds_of_bands(answers: Answers, *key: Any) -> float:
    """Of the best plan that shares rows."""
    return min(
        each["seconds"] for each in predicted(answers, *key)["best"] if any(each["values"][axis] > 1 for axis in BANDS)
    )


@pytest.mark.parametrize("guided", GUIDED)
@pytest.mark.parametrize("cards", CARDS)
@pytest.mark.parametrize("link", LINKS)
def test_the_fastest_plan_is_chosen_and_told_beside_one_card(
    link: str, cards: int, guided: bool, answers: Answers
) -> None:
    answer, told = answers[link, cards, guided], predicted(answers, link, cards, guided)
    seconds = [each["seconds"] for each in told["best"]]
    assert told["is_measured"] and answer["world"] == cards
    assert answer["plan"] == told["plan"]["plan"] == told["best"][0]["plan"]
    assert len(seconds) == 3 and seconds == sorted(seconds)
    assert seconds[0] <= told["one_device"]["seconds"] * 1.001
    assert told["one_device"] == {**predicted(answers, "NVLink", 2, guided)["one_device"], "plan": ONE}


def test_bands_are_faster_on_more_cards_and_on_a_faster_link(answers: Answers) -> None:
    for guided in GUIDED:
        for link in LINKS[:2]:
            two, four = (seconds_of_bands(answers, link, cards, guided) for cards in CARDS)
            one = predicted(answers, link, 2, guided)["one_device"]["seconds"]
            assert one / 4 < four < two < one and one / 2 < two
        for cards in CARDS:
            by_link = [seconds_of_bands(answers, link, cards, guided) for link in LINKS]
            assert by_link == sorted(by_link)


def test_with_guidance_cond_and_uncond_run_side_by_side_first(answers: Answers) -> None:
    for link, cards in itertools.product(LINKS, CARDS):
        values = answers[link, cards, True]["predicted"]["plan"]["values"]
        assert values["cfg"] == 2
        assert (values["ulysses"] * values["ring"] > 1) == (cards == 4 and link != LINKS[2])


def test_where_one_card_is_fastest_without_guidance_it_is_said(answers: Answers) -> None:
    for link, cards in itertools.product(LINKS, CARDS):
        answer = answers[link, cards, False]
        told, is_slow = answer["predicted"], link == LINKS[2]
        assert told["alone"] == is_slow
        assert (told["plan"]["seconds"] == pytest.approx(told["one_device"]["seconds"])) == is_slow
        assert ("One device is faster here: " in said(answer)) == is_slow


def test_where_two_of_four_cards_are_fastest_it_is_said(answers: Answers) -> None:
    answer = answers[LINKS[2], 4, True]
    assert not answer["predicted"]["alone"]
    assert "2 devices are faster here: " in said(answer)
    assert "One device" not in said(answer)
