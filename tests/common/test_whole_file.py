"""Files that are written as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.common.whole_file import write_whole


@pytest.mark.parametrize("fault", [OSError, KeyboardInterrupt])
def test_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: type[BaseException]) -> None:
    """A private file stays private, a link leads where it led; whatever interrupts it, the old file stays, alone."""
    path, link = tmp_path / "marks.csv", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o600)
    link.symlink_to(path)
    write_whole(link, b"new")
    assert (path.read_text(), path.stat().st_mode & 0o777, link.is_symlink()) == ("new", 0o600, True)

    def interrupted(*_: object) -> None:
        raise fault

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(fault):
        write_whole(path, b"newer")
    assert path.read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["link", "marks.csv"]


def test_what_is_no_file_is_written_through(tmp_path: Path) -> None:
    """A pipe stays a pipe, and its reader gets all."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert pipe.is_fifo()
