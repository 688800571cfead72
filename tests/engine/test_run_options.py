"""What a run of the tests keeps of its durations, in which order it takes the files, which of them it runs, and what
it and its set-up remove."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace

import pytest

import dev
from tests.support.runs import disk, durations
from tests.support.runs.durations import Duration
from tests.support.runs.longest_first import choose, needs_of

HOST, RANKS = frozenset({"ComfyUI"}), frozenset({"forked ranks"})
NEEDS = {"a.py": HOST, "b.py": HOST | {"a browser"}, "c.py": RANKS, "d.py": RANKS, "e.py": frozenset[str]()}
SECONDS = {"a.py": 90.0, "b.py": 50.0, "c.py": 70.0, "d.py": 10.0, "e.py": 20.0}


@pytest.mark.parametrize(
    ("waiting", "own", "others", "chosen"),
    [
        ("abcde", "", "", "a.py"),
        ("bcde", "", HOST, "c.py"),  # what nobody has started
        ("bde", "", HOST | RANKS, "e.py"),  # what needs nothing
        ("bd", "", HOST | RANKS, "b.py"),
        ("acde", HOST, "", "a.py"),
        ("cde", HOST, RANKS, "e.py"),
        ("cd", HOST, RANKS, "c.py"),
        ("de", RANKS, HOST, "d.py"),
        ("bd", HOST | RANKS, "", "d.py"),  # a browser it has not
        ("dn", RANKS, "", "d.py"),
    ],
)
def test_the_longest_file_comes_first_and_a_process_keeps_to_what_it_has_started(
    waiting: str, own: Collection[str], others: Collection[str], chosen: str
) -> None:
    assert choose([f"{name}.py" for name in waiting], SECONDS, NEEDS, own, others) == chosen


def test_what_a_file_needs_is_read_from_its_fixtures(tmp_path: Path) -> None:
    fixture = "@pytest.fixture(scope='session')\ndef {}({}): ...\n"
    (tmp_path / "conftest.py").write_text(
        fixture.format("host", "models") + fixture.format("browser", "") + fixture.format("ranks", "")
    )
    (tmp_path / "editor").mkdir()
    (tmp_path / "editor" / "conftest.py").write_text(fixture.format("page", "browser, host"))
    for path, source, needed in (
        ("editor/test_page.py", "def test_it(page): ...", {"a browser", "ComfyUI"}),
        ("test_own.py", fixture.format("host", "") + "def draw(ranks): ...\ndef test_it(own): 'host'", set()),
        ("test_given.py", "@pytest.mark.parametrize(('n', 'ranks'), [(1, 2)])\ndef test_it(n, ranks): ...", set()),
        ("test_marked.py", "pytestmark = pytest.mark.usefixtures('ranks')\ndef test_it(): ...", {"forked ranks"}),
    ):
        (tmp_path / path).write_text(source)
        assert needs_of(path, tmp_path) == needed


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


def report(nodeid: str, when: str, duration: float, failed: bool = False, slow: bool = False) -> SimpleNamespace:
    keywords = {"slow": 1} if slow else {}
    return SimpleNamespace(nodeid=nodeid, when=when, duration=duration, failed=failed, keywords=keywords)


def test_durations_are_kept_by_file_and_a_failed_or_stopped_run_replaces_none(tmp_path: Path) -> None:
    kept = tmp_path / "durations.json"
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
    durations.write("gate", {"b.py": Duration(1, 1.0, 1.0), "gone.py": Duration(1, 9.0, 9.0)}, kept, tmp_path)

    def run(exitstatus: int) -> dict[str, Duration]:
        recorder = durations.Recorder(kept, tmp_path)
        for each in (
            report("a.py::one", "setup", 3.0),
            report("a.py::one", "call", 0.25),
            report("a.py::two[x]", "call", 0.5),
            report("a.py::two[x]", "teardown", 1.0),
            report("a.py::two[y]", "setup", 0.0, slow=True),
            report("b.py::one", "call", 7.0, failed=True),
            report("b.py::two", "call", 6.0, slow=True),
        ):
            recorder.pytest_runtest_logreport(each)
        recorder.pytest_sessionfinish(exitstatus)
        return durations.read("gate", kept)

    assert run(2) == {"b.py": Duration(1, 1.0, 1.0)}
    assert run(1) == {"a.py": Duration(2, 4.0, 0.8), "b.py": Duration(1, 1.0, 1.0)}
    assert durations.read("slow", kept) == {"b.py": Duration(1, 0.0, 6.0)}  # the gate's run skips a.py's
    assert durations.table("gate", durations.read("gate", kept)).splitlines()[1].split() == ["a.py", "4.8", "4.0", "2"]


def test_only_runs_of_whole_files_keep_their_durations(monkeypatch: pytest.MonkeyPatch) -> None:
    def keeps(*arguments: str) -> bool:
        commands = []
        monkeypatch.setattr(dev, "call", lambda command, env: commands.append(command) or 0)
        monkeypatch.setattr(dev.Setup, "run", lambda self, **options: None)
        monkeypatch.setattr(dev.Setup, "fetch", lambda *arguments: None)
        dev.main(["test", "--comfyui", os.environ.get("COMFYUI_PATH", ""), *arguments])
        return "--keep-durations" in commands[0]

    assert keeps() and keeps("--slow") and keeps("-n0", "-q")
    assert keeps("--slow", "-m", "slow")
    for arguments in (["-k", "plan"], ["-m", "gpu"], ["--fast"], ["tests/engine"], ["-x"]):
        assert not keeps(*arguments)


@pytest.mark.parametrize("failed", [False, True], ids=["passed", "failed"])
def test_what_a_test_file_has_written_goes_at_its_end_unless_a_test_failed(failed: bool, tmp_path: Path) -> None:
    def make(name: str) -> Path:
        (tmp_path / name).mkdir()
        return tmp_path / name

    folders = disk.TemporaryFolders(SimpleNamespace(getbasetemp=lambda: tmp_path, mktemp=make))
    shared = folders.lasting("models")
    (shared / "of the session").write_text("")
    folders.share(shared)
    first = [shared / "of a file", shared / "folder" / "of a file", make("a file's own") / "of a file"]
    first[1].parent.mkdir()
    for path in first:
        path.write_text("")
    (shared / "linked").symlink_to(shared / "of the session")
    folders.end_file(failed)
    assert [path.exists() for path in first] == [failed] * 3
    assert (shared / "linked").is_symlink() == failed
    assert first[1].parent.is_dir() and first[2].parent.is_dir(), "ComfyUI and pytest know their names"
    late = shared / "of the next file"
    late.write_text("")
    folders.end_file(failed=False)
    assert not late.exists() and (shared / "of the session").is_file()
    assert [path.exists() for path in first] == [failed] * 3, "what a failed test has left stays"


def test_the_end_says_how_much_of_the_disk_a_run_used_at_most() -> None:
    used, said = iter([5_000_000_000, 7_340_000_000, 6_000_000_000]), []

    class Use(disk.Use):
        now = staticmethod(lambda: next(used))

    use = Use()
    use.pytest_runtest_logreport()
    use.pytest_runtest_logreport()
    use.pytest_terminal_summary(SimpleNamespace(write_line=said.append))
    assert said == ["at most 2.3 GB of the disk used during the run"]
