"""Settings come from the environment before the file, from the file before the defaults; a wrong one is an error."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from demo.host import REPOSITORY
from worker.settings import Settings, SettingsError


def test_the_environment_goes_before_the_file_and_the_file_before_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "paralleldit.json"
    assert Settings.read({}, file) == Settings()
    file.write_text(json.dumps({"restarts": 5, "silence_seconds": 20, "machines": ["10.0.0.1:29400", "10.0.0.2"]}))
    settings = Settings.read({"PARALLELDIT_RESTARTS": "7", "PARALLELDIT_ON_FREE": "unload", "OTHER": "1"}, file)
    machines = ("10.0.0.1:29400", "10.0.0.2")
    assert settings == Settings(restarts=7, silence_seconds=20.0, machines=machines, on_free="unload")
    assert Settings.read({"PARALLELDIT_MACHINES": "10.0.0.1:29400, 10.0.0.2"}, file).machines == machines


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"restart": 5}', "'restart', which is not a setting. The settings are device, ranks"),
        ('{"restarts": "many"}', "restarts to 'many'; it must be a number"),
        ('{"on_free": "burn"}', "one of park, unload, keep"),
        ('{"when_not_parallel": "wait"}', "one of run, refuse"),
        ('{"silence_seconds": 0}', "more than 0"),
        ('{"restarts": -1}', "more than 0"),
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


def test_every_setting_has_its_row_in_the_page() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| `(\w+)` \|", (REPOSITORY / "docs" / "workers.md").read_text(), flags=re.MULTILINE
    )
    names = [setting.name for setting in fields(Settings)]
    assert sorted(rows) == sorted((name, f"PARALLELDIT_{name.upper()}") for name in names)
