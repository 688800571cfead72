"""A rank's log: takes all that the process writes, stays within its size, and never ends the rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from demo.host import REPOSITORY
from worker.launch.logs import TAIL_BYTES, log_path, tail
from worker.wire.private_folder import FOLDER

RANK = 3
ROOM = 300 << 10
SHOUT = '''
def shout(megabytes):
    """A line is 64 bytes."""
    for number in range(int(megabytes * (1 << 14))):
        print(f"line {number:<58}")
        if not number % 100:
            log.rotate()
'''


def rank_script(folder: Path, script: str, megabytes: float = 8) -> list[str]:
    """The command of a process that logs as a rank does, and then does this."""
    begin = (
        f"import ctypes, logging, os, shutil, sys\nfrom worker.launch.logs import open_log\n{SHOUT}\nlog = open_log()\n"
    )
    environment = {FOLDER: folder, "PARALLELDIT_LOG_MEGABYTES": megabytes, "RANK": RANK}
    return ["env", *(f"{name}={value}" for name, value in environment.items()), sys.executable, "-c", begin + script]


def run(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)


def test_all_that_a_rank_writes_is_in_its_log_with_rank_and_time(tmp_path: Path) -> None:
    script = """
print("printed")
print("complained", file=sys.stderr)
logging.info("logged")
libc = ctypes.CDLL(None)
libc.puts(b"from C")
libc.fflush(None)
raise RuntimeError("the end of it")
"""
    result = run(rank_script(tmp_path / "made" / "for it", script))
    assert (result.returncode, result.stdout, result.stderr) == (1, "", "")
    text = (tmp_path / "made" / "for it" / f"rank-{RANK}.log").read_text()
    for line in ("printed", "complained", "from C", "RuntimeError: the end of it"):
        assert line in text.splitlines()
    assert re.search(rf"^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ rank {RANK} INFO logged$", text, re.MULTILINE)


def test_a_log_over_its_size_is_rotated_and_one_old_file_kept(tmp_path: Path) -> None:
    assert run(rank_script(tmp_path, "shout(1)", megabytes=0.2)).returncode == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"rank-{RANK}.log", f"rank-{RANK}.log.1"]
    assert all(file.stat().st_size < 250 << 10 for file in tmp_path.iterdir())
    old, new = ((tmp_path / f"rank-{RANK}.log{suffix}").read_text().splitlines() for suffix in (".1", ""))
    numbers = [int(line.split()[1]) for line in old + new]
    assert numbers == list(range(numbers[0], 1 << 14)), "lines were lost on the way"


def test_a_log_whose_folder_is_removed_is_begun_again(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    script = f'print("before")\nshutil.rmtree({str(folder)!r})\nprint("lost")\nlog.rotate()\nprint("after")'
    assert run(rank_script(folder, script)).returncode == 0
    assert (folder / f"rank-{RANK}.log").read_text() == "after\n"
    assert folder.stat().st_mode & 0o777 == 0o700, "others may not read it"


def test_a_folder_that_cannot_be_made_does_not_end_the_rank(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run(rank_script(tmp_path / "file" / "logs", 'log.rotate()\nprint("lives")'))
    assert (result.returncode, result.stdout) == (0, "lives\n")


def test_a_full_disk_loses_lines_and_not_the_rank_and_logs_go_on_when_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size="$0",mode=700 tmpfs "$1" && shift && exec "$@"']
    mounted += [str(ROOM), str(disk)]
    if run([*mounted, "true"]).returncode:
        pytest.skip("no file system of its own can be mounted here: that takes root and mount namespaces")
    script = f"""
import errno
ballast = open({str(disk / "ballast")!r}, "wb", buffering=0)
shout(3)
try:
    while ballast.write(bytes(100)): pass
except OSError as error:
    assert error.errno == errno.ENOSPC
shout(1)
logging.info("nobody reads this")
ctypes.CDLL(None).puts(b"nor this")
os.truncate(log.path, 0)
print("there is room again")
shutil.copy(log.path, {str(tmp_path / "seen.log")!r})
"""
    result = run([*mounted, *rank_script(disk, script)])
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "seen.log").read_text() == "there is room again\n"


def test_the_tail_of_a_huge_log_is_as_quick_as_of_a_small_one(tmp_path: Path) -> None:
    with (tmp_path / "rank-0.log").open("wb") as log:
        os.truncate(log.fileno(), 1 << 40)
        log.seek(0, os.SEEK_END)
        log.write(b"\nthe last line\n")
    text = tail(log_path(tmp_path, 0), 5)
    assert text.endswith("\nthe last line") and len(text) <= TAIL_BYTES
