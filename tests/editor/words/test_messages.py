"""The messages, tooltips and notes that a user can see are short, and there in both languages; a script lists them."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.support.messages import list_in_code, list_texts

MOST_WORDS = 24  # of a sentence
SENTENCE = re.compile(r"(?<=[.!?:;])\s+|\n")
MESSAGE_SYNTAX = re.compile(r"[{}@|]")  # of vue-i18n, by which the editor reads the locales
PLACEHOLDER = re.compile(r"\{\w+\}")
CHINESE = re.compile(r"[\u4e00-\u9fff]")
NAMES = re.compile(r"ParallelDiT|[Rr]ank|token|\{\w+\}")  # the same in both
OUTPUTS = re.compile(r"\.outputs\.\d+\.name$|\.inputs\.\w+\.name$")  # as ComfyUI names its own

ENGLISH, ALL_CHINESE = list_texts("en"), list_texts("zh")


@cache
def in_code() -> dict[str, str]:
    return dict(list_in_code())


def test_both_languages_have_the_same_messages_with_the_same_values() -> None:
    assert ENGLISH.keys() == ALL_CHINESE.keys()
    for key, text in ENGLISH.items():
        assert {*PLACEHOLDER.findall(text)} >= {*PLACEHOLDER.findall(ALL_CHINESE[key])}, key


def test_no_message_is_left_in_english() -> None:
    words = {key: NAMES.sub("", text) for key, text in ALL_CHINESE.items() if not OUTPUTS.search(key)}
    assert [key for key, text in words.items() if re.search("[a-z]{2}", text) and not CHINESE.search(text)] == []


def test_the_words_that_the_editor_itself_reads_have_nothing_that_it_would_fill_in() -> None:
    for key, text in (*ENGLISH.items(), *ALL_CHINESE.items()):
        assert not key.startswith(("nodeDefs", "settings")) or not MESSAGE_SYNTAX.search(text), key


@pytest.mark.parametrize("place", ["locales", "code"])
def test_a_sentence_is_short(place: str) -> None:
    texts = ENGLISH if place == "locales" else in_code()
    sentences = ((key, sentence) for key, text in texts.items() for sentence in SENTENCE.split(text))
    assert [(key, sentence) for key, sentence in sentences if len(sentence.split()) > MOST_WORDS] == []
