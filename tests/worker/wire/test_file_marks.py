"""A file's mark tells it from one that overwrites it, and a copy on another machine has the part that counts there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from worker.errors import ModelFileError
from worker.wire.file_marks import PIECE_BYTES, PIECES, check_mark, mark_files

SIZE = 4 * PIECES * PIECE_BYTES


def test_a_file_that_differs_where_no_piece_is_read_has_another_mark(tmp_path: Path) -> None:
    """As one that a training has written anew, of which some blocks have not changed."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(SIZE))
    os.utime(file, (1000, 1000))
    mark = mark_files([file])
    check_mark(file, [file], mark)
    contents = bytearray(SIZE)
    contents[2 * PIECE_BYTES] = 1
    file.write_bytes(contents)
    assert mark_files([file]) != mark
    with pytest.raises(ModelFileError, match="was overwritten after it was loaded"):
        check_mark(file, [file], mark)


def test_on_another_machine_a_copy_may_be_older_but_not_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, copied = tmp_path / "model.safetensors", tmp_path / "copy.safetensors"
    file.write_bytes(bytes(SIZE))
    shutil.copyfile(file, copied)
    os.utime(copied, (1000, 1000))
    mark = mark_files([file])
    monkeypatch.setenv("GROUP_RANK", "1")
    check_mark(file, [copied], mark)
    copied.write_bytes(bytes(SIZE - 1))
    with pytest.raises(ModelFileError, match="is another model now"):
        check_mark(file, [copied], mark)
