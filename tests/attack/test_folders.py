"""What another user puts into /tmp beforehand does no harm, and what lives is not removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from demo.host import REPOSITORY
from parallel_backend.errors import NoRoomError
from tests.support.host.faults import wait_until
from worker.errors import Explanation, WorkerGroupError
from worker.host.session import Session
from worker.launch.logs import RankLog, log_path, tail
from worker.launch.process import FAILURE, Failure, WorkerProcess
from worker.settings import Settings
from worker.wire import private_folder as private_folder_module
from worker.wire.private_folder import (
    COMPILED,
    LOCK,
    SECONDS_TO_LOCK,
    find_room,
    is_only_ours,
    keep_compiled_code,
    private_folder,
)

NOBODY = 65534
DEEP = 2000  # more than Python's recursion
HOLDER = "import sys; from worker.wire.private_folder import private_folder as of; print(of('x'), flush=True)"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def put(folder: Path, owner: int = -1) -> Path:
    """A private folder as of an hour ago."""
    folder.mkdir(mode=0o700)
    (folder / LOCK).touch()
    age(folder)
    if owner >= 0:
        os.chown(folder, owner, owner)
    return folder


def age(folder: Path) -> None:
    then = time.time() - 60 * SECONDS_TO_LOCK
    os.utime(folder / LOCK, (then, then))


def put_deep_tree(folder: Path) -> None:
    put(folder)
    start = os.getcwd()
    os.chdir(folder)
    try:
        for _ in range(DEEP):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(start)


def test_names_that_are_no_pids_and_deep_trees_stop_nobody(temporary: Path) -> None:
    put(temporary / "paralleldit-99999999999999999999-x")
    put_deep_tree(temporary / "paralleldit-deep")
    (temporary / "paralleldit-file").write_text("")
    (temporary / "paralleldit-link").symlink_to("/etc")
    leftover = put(temporary / "paralleldit-group1-old")
    assert private_folder("socket").is_dir()
    assert not leftover.exists(), "what comes after the others is still looked at"
    assert Path("/etc/passwd").exists()
    subprocess.run(["rm", "-rf", str(temporary / "paralleldit-deep")], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="to act as another user, the test runs as root")
def test_another_users_folder_is_left_alone(temporary: Path) -> None:
    folder = put(temporary / "paralleldit-group1-theirs", NOBODY)
    private_folder("group1")
    assert folder.exists()


def test_a_persons_own_folder_is_left_alone(temporary: Path) -> None:
    """Its name may begin as ours do."""
    folder = put(temporary / "paralleldit-models")
    (folder / LOCK).unlink()
    private_folder("group1")
    assert folder.exists()


def test_a_folder_that_a_process_holds_stays_and_goes_with_it(temporary: Path) -> None:
    """Whatever its PID is: in another container it may be the same as of this process."""
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{HOLDER}; sys.stdin.read()"],
        cwd=REPOSITORY, env={**os.environ, "TMPDIR": str(temporary)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert holder.stdout
    folder = Path(holder.stdout.readline().strip())
    age(folder)
    private_folder("other")
    assert folder.exists()
    holder.kill()
    holder.wait()

    def is_removed() -> bool:
        with contextlib.suppress(FileNotFoundError):  # its caretaker removes it at the same time
            age(folder)
        private_folder("other")
        return not folder.exists()

    wait_until(is_removed)


def test_weights_go_to_the_disk_if_the_folder_in_memory_cannot_be_used(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_folder_module, "MEMORY", Path("/proc/self"))  # nothing can be made there
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 40))
    folder = find_room(1, 1 << 40)
    assert folder.parent == temporary and find_room(1, 1 << 40) == folder
    shutil.rmtree(folder)
    assert find_room(1, 1 << 40).is_dir()
    monkeypatch.setattr(tempfile, "tempdir", "/proc/self")
    with pytest.raises(NoRoomError, match="/proc/self"):
        find_room(1, 1 << 40)


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in COMPILED:
        monkeypatch.setenv(name, "")


def compiled() -> list[Path]:
    return [Path(os.environ[name]) for name in COMPILED]


def test_compiled_code_is_kept_where_nobody_else_writes(
    tmp_path: Path, unset: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_compiled_code(tmp_path / "own")
    assert all(folder.parent == tmp_path / "own" and is_only_ours(folder) for folder in compiled())
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in compiled()] == [0o700] * 2
    open_folder = tmp_path / "torchinductor_root"  # torch's own choice, which another user has made first
    open_folder.mkdir()
    open_folder.chmod(0o777)
    chosen = tmp_path / "chosen"
    chosen.mkdir(mode=0o700)
    monkeypatch.setenv(COMPILED[0], str(open_folder))
    monkeypatch.setenv(COMPILED[1], str(chosen))
    keep_compiled_code(tmp_path / "own")
    assert compiled() == [tmp_path / "own" / "torchinductor", chosen], "an operator's own folder stays"


def put_foreign(folder: Path, kind: str) -> None:
    """A folder, or a link to one, that another user may write to or replace."""
    folder.parent.mkdir(exist_ok=True)
    if kind == "a link":
        (folder.parent / f"behind-{folder.name}").mkdir(mode=0o700)
        folder.symlink_to(folder.parent / f"behind-{folder.name}")
        return
    folder.mkdir(mode=0o700)
    folder.chmod(0o777) if kind == "open" else os.chown(folder, NOBODY, NOBODY)


FOREIGN = pytest.mark.parametrize("kind", ["open", "a link", pytest.param("another's", marks=pytest.mark.skipif(
    os.geteuid() != 0, reason="to act as another user, the test runs as root"))])  # fmt: skip


@FOREIGN
def test_a_folder_that_others_write_to_is_not_used(kind: str, temporary: Path, unset: None) -> None:
    for name in ("torchinductor", "triton"):
        put_foreign(temporary / "own" / name, kind)
    keep_compiled_code(temporary / "own")
    assert all(is_only_ours(folder) and folder.parent.name != "own" for folder in compiled())


@FOREIGN
def test_no_group_starts_in_a_folder_that_others_have_made_anew(kind: str, temporary: Path) -> None:
    """A cleaner has removed the group's own. The ranks would import code from where a file in it says."""
    put_foreign(temporary / "group", kind)
    with pytest.raises(WorkerGroupError, match="others can write to its folder"):
        Session(2, "cpu", Settings(), temporary / "group", lambda: None, {"model_class": "Flux"})
    assert not list((temporary / "group").iterdir())


@FOREIGN
def test_a_group_neither_writes_nor_reads_through_what_others_have_put_into_its_folder(
    kind: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleaner has removed it while the group ran. A link in it may lead to any file of this user, and a pipe holds up
    who reads it."""
    own, folder = temporary / "own file", temporary / "group"
    own.write_text("a secret")
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # or this process's own output would go there
    monkeypatch.setattr(RankLog, "__init__", lambda self, path: setattr(self, "path", path))
    log = RankLog(log_path(folder, 0))  # pyright: ignore[reportCallIssue, reportArgumentType]
    put_foreign(folder, kind)
    log.rotate()
    assert not list(folder.iterdir())
    log.path.symlink_to(own)
    (folder / FAILURE).symlink_to(own)
    Failure(Explanation("It has ended.")).write(folder)
    assert own.read_text() == "a secret" == tail(own, 1)
    assert tail(log.path, 1) == ""
    (folder / FAILURE).unlink()
    os.mkfifo(folder / FAILURE)
    process = WorkerProcess.__new__(WorkerProcess)
    process.folder, process.popen = folder, SimpleNamespace(pid=1, returncode=7)  # pyright: ignore[reportAttributeAccessIssue]
    assert "exit code 7" in process.failure().reason.cause
