"""The set-up of `dev.py`: it removes nothing from folders that are not its own, and repeats a step that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

import dev


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that dev.py takes for its own, with neither `.venv` nor `.host`."""
    own = tmp_path / "own"
    own.mkdir()
    venv, host = own / ".venv", own / ".host"
    for name, value in {
        "VENV": venv, "HOST": host, "STAMPS": venv / "dev-stamps", "PYTHON": venv / "bin" / "python",
        "LOGS": host / "logs", "SETUP_TMP": host / "tmp" / "setup",
    }.items():  # fmt: skip
        monkeypatch.setattr(dev, name, value)
    return own


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("linked", [".venv", ".host"])
def test_set_up_refuses_a_linked_folder_and_removes_nothing_from_it(
    linked: str, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = own_folders.parent / "others"
    for name in ("made-by-dev.py", "dev-stamps/venv", "bin/python", "tmp/setup/kept"):
        (others / name).parent.mkdir(parents=True, exist_ok=True)
        (others / name).write_text("of another folder")
    (own_folders / linked).symlink_to(others, target_is_directory=True)
    monkeypatch.setattr(dev, "call", lambda *arguments, **named: pytest.fail("a step ran"))
    before = contents(others)
    with pytest.raises(dev.SetupError, match=rf"{linked} is a link to {others}"):
        dev.Setup(None, -1).run()
    assert contents(others) == before


def test_a_stamp_outlasts_a_step_that_fails_and_goes_when_another_succeeds(own_folders: Path) -> None:
    stamp, runs = own_folders / "stamps" / "pack", []

    def fail(error: BaseException) -> None:
        runs.append("failed")
        raise error

    def run(inputs: str, error: BaseException | None = None) -> bool:
        """Whether the step ran."""
        before = len(runs)
        dev.step("installing", stamp, [inputs], lambda: fail(error) if error else runs.append(inputs))
        return len(runs) > before

    assert run("old") and not run("old")
    for error in (dev.SetupError("pip could not"), OSError("no space")):
        with pytest.raises(type(error)):
            run("new", error)
        assert not run("old"), "its stamp is there"
    assert run("new") and not run("new") and run("old")
    with pytest.raises(KeyboardInterrupt):
        run("new", KeyboardInterrupt())
    with pytest.raises(dev.SetupError):
        run("new", dev.SetupError("pip could not"))
    assert run("old"), "an interrupted step may have changed anything"
