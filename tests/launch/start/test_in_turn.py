"""Starts in turn: as many at once as are allowed, and nobody waits for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from workbench.launch.start.in_turn import in_turn

HOLDS = """
import sys
from workbench.launch.start.in_turn import in_turn
with in_turn(30.0, lambda: None, 1, sys.argv[1]):
    print("has it", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """A process that has the only turn, until its input ends."""
    words = [sys.executable, "-c", HOLDS, str(folder)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "has it\n"
    return process


def test_the_next_one_begins_when_a_turn_ends(tmp_path: Path) -> None:
    """Also when its process was killed. It is told once that it waits."""
    for end in (lambda process: process.stdin.close(), lambda process: process.kill()):
        with holder(tmp_path) as process:
            waits, begun = threading.Event(), threading.Event()

            def begin(waits: threading.Event = waits, begun: threading.Event = begun) -> None:
                with in_turn(30.0, waits.set, 1, str(tmp_path)):
                    begun.set()

            other = threading.Thread(target=begin)
            other.start()
            assert waits.wait(10)
            assert not begun.is_set()
            end(process)
            assert begun.wait(10)
            other.join()


def test_two_turns_are_two_at_once_and_the_third_waits_no_longer_than_it_says(tmp_path: Path) -> None:
    """Then it starts without a turn: somebody who keeps one for ever stops nobody."""
    told: list[str] = []
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(in_turn(0.0, lambda: told.append("waits"), 2, str(tmp_path)))
        assert told == []  # nobody is told to wait who does not
        with in_turn(0.3, lambda: told.append("waits"), 2, str(tmp_path)):
            assert told == ["waits"]


def test_a_link_or_a_folder_in_a_files_place_stops_nobody(tmp_path: Path) -> None:
    """Nothing is opened through another user's link, and no pipe is waited for."""
    (tmp_path / "workbench-starts-0").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "workbench-starts-1")
    with in_turn(0.0, lambda: None, 2, str(tmp_path)):
        assert not (tmp_path / "elsewhere").exists()
