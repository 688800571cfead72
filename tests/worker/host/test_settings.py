"""Settings come from the environment before the file, from the file before the defaults; a wrong one is an error."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from demo.host import REPOSITORY
from tests.support.host.node_defs import read
from worker.settings import CHOICES, NOT_FROM_A_PAGE, Settings, SettingsError, read_object, write_object

NAMES = [setting.name for setting in fields(Settings)]


def test_the_environment_goes_before_the_file_and_the_file_before_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "paralleldit.json"
    assert Settings.read({}, file) == Settings()
    file.write_text(json.dumps({"restarts": 5, "silence_seconds": 20, "machines": ["10.0.0.1:29400", "10.0.0.2"]}))
    settings = Settings.read({"PARALLELDIT_RESTARTS": "7", "PARALLELDIT_ON_FREE": "unload", "OTHER": "1"}, file)
    machines = ("10.0.0.1:29400", "10.0.0.2")
    assert settings == Settings(restarts=7, silence_seconds=20.0, machines=machines, on_free="unload")
    assert Settings.read({"PARALLELDIT_MACHINES": "10.0.0.1:29400, 10.0.0.2"}, file).machines == machines
    for given in ([2, 0], "2,0", " 0, 2 "):
        assert Settings.of({"gpus": given}, {}, "a file").gpus == (0, 2)
    assert Settings.of({"gpus": [1]}, {"PARALLELDIT_GPUS": "0,2"}, "a file").gpus == (0, 2)
    assert Settings.of({"gpus": ""}, {}, "a file").gpus == Settings.of({"gpus": []}, {}, "a file").gpus == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"restart": 5}', "'restart', which is not a setting. The settings are device, gpus, ranks"),
        ('{"restarts": "many"}', "restarts to 'many'; it must be a whole number"),
        ('{"ranks": 1.5}', "ranks to 1.5; it must be a whole number"),
        ('{"ranks": Infinity}', "ranks to inf; it must be a whole number"),
        ('{"restarts": true}', "restarts to True; it must be a whole number"),
        ('{"start_seconds": "long"}', "it must be a number"),
        ('{"gpus": [0, 0]}', "a list of GPUs, each a different whole number"),
        ('{"gpus": [-1]}', "a list of GPUs, each a different whole number"),
        ('{"gpus": 1}', "a list of GPUs, each a different whole number"),
        ('{"on_free": "burn"}', "one of park, unload, keep"),
        ('{"when_not_parallel": "wait"}', "one of run, refuse"),
        ('{"silence_seconds": 0}', "more than 0"),
        ('{"restarts": -1}', "more than 0"),
        ('{"start_seconds": NaN}', "more than 0"),
        ('{"silence_seconds": 1e11}', "it must be at most 10000000"),
        ('{"log_megabytes": Infinity}', "it must be at most 10000000"),
        ('{"cpu_ranks": 2000}', "it must be at most 1024"),
        ("[1]", "not a JSON object"),
        ("{", "cannot be read as JSON"),
    ],
)
def test_a_wrong_setting_is_named_with_its_source(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "paralleldit.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match=says) as error:
        Settings.read({}, file)
    assert str(file) in str(error.value)


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(SettingsError, match="PARALLELDIT_DEVICE sets device to 'tpu'; it must be one of cpu, cuda"):
        Settings.read({"PARALLELDIT_DEVICE": "tpu"}, Path("nowhere.json"))


def test_the_file_is_replaced_in_one_step_and_a_link_to_it_stays(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    file, link = tmp_path / "elsewhere" / "kept.json", tmp_path / "paralleldit.json"
    link.symlink_to(file)
    write_object(link, {"gpus": [0, 1], "restarts": 4})
    assert read_object(link) == {"gpus": [0, 1], "restarts": 4} and link.is_symlink()
    assert [each.name for each in file.parent.iterdir()] == ["kept.json"]
    with pytest.raises(SettingsError, match=r"nowhere.*cannot be written"):
        write_object(tmp_path / "nowhere" / "paralleldit.json", {})


def test_every_setting_has_its_row_in_the_page_in_the_dialogs_words() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| `(\w+)` \| .+? \| (.+) \|$",
        (REPOSITORY / "docs" / "workers.md").read_text(),
        flags=re.MULTILINE,
    )
    words = read("en", "settings.json")
    expected = [(name, f"PARALLELDIT_{name.upper()}", words[f"ParallelDiT_{name}"]["tooltip"]) for name in NAMES]
    assert sorted((name, variable, text.replace("`", "")) for name, variable, text in rows) == sorted(expected)


def test_the_dialog_has_every_setting_and_words_for_each_choice() -> None:
    groups = (REPOSITORY / "web" / "settings.mjs").read_text().partition("const GROUPS = {")[2].partition("\n}")[0]
    names = re.findall(r"'(\w+)'", groups)
    assert sorted(names) == sorted(NAMES) and tuple(names[-3:]) == NOT_FROM_A_PAGE
    for name, choices in CHOICES.items():
        assert {*read("en", "settings.json")[f"ParallelDiT_{name}"]["options"]} == {each or "own" for each in choices}
