"""One rank of a host prepares, the others wait; what they map is in memory once."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench import run_threads
from workbench.data.one_copy import mapped, prepared
from workbench.errors import DataNotFoundError


def visible(folder: Path) -> set[str]:
    """The names in a folder that are no lock."""
    return {each.name for each in folder.iterdir() if each.suffix != ".lock"}


def together(n: int, work: Any) -> list[Any]:
    """What n ranks return or raise, where none begins before all are there."""
    barrier = threading.Barrier(n)

    def rank() -> Any:
        barrier.wait()
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error

    return run_threads(n, rank)


def test_one_prepares_and_all_get_it(tmp_path: Path) -> None:
    """Of four ranks one calls the function; a file or a folder has its name when it is complete; a second call none."""
    calls = []

    def write(part: Path) -> None:
        calls.append(part)
        time.sleep(0.1)
        part.write_text("all of it")

    found = together(4, lambda: prepared(tmp_path / "deep" / "words.txt", write).read_text())
    assert found == ["all of it"] * 4
    assert len(calls) == 1
    assert prepared(tmp_path / "deep" / "words.txt", write).read_text() == "all of it"
    assert len(calls) == 1
    assert visible(tmp_path / "deep") == {"words.txt"}


def test_a_failure_reaches_those_that_waited(tmp_path: Path) -> None:
    """One rank gets the error itself, the others one that names it; the next call tries again."""
    calls = []

    def fail(part: Path) -> None:
        part.mkdir()
        (part / "half").write_text("of it")
        calls.append(part)
        time.sleep(0.3)  # all have come
        raise OSError("no space left")

    found = together(3, lambda: prepared(tmp_path / "set", fail))
    assert len(calls) == 1
    assert sorted(type(each).__name__ for each in found) == ["DataNotFoundError", "DataNotFoundError", "OSError"]
    for each in found:
        if isinstance(each, DataNotFoundError):
            assert re.search(
                r"set was not prepared: rank \d+ \(process \d+\) failed: OSError: no space left", str(each)
            )
    assert visible(tmp_path) == {".set.failed"}
    assert prepared(tmp_path / "set", lambda part: part.write_text("now")).read_text() == "now"
    assert visible(tmp_path) == {"set"}


def test_a_function_that_writes_elsewhere_is_told(tmp_path: Path) -> None:
    """Its rank learns that there is nothing at the path that it was given."""
    with pytest.raises(FileNotFoundError, match="words was not prepared: the function wrote nothing to the path"):
        prepared(tmp_path / "words", lambda part: None)


def test_a_rank_that_waits_too_long_says_for_whom(tmp_path: Path) -> None:
    """The deadline is the waiting rank's; its error names the process that prepares."""
    begun, over = threading.Event(), threading.Event()

    def slow(part: Path) -> None:
        begun.set()
        over.wait(20)
        part.write_text("late")

    thread = threading.Thread(target=prepared, args=(tmp_path / "set", slow))
    thread.start()
    begun.wait(20)
    try:
        with pytest.raises(TimeoutError, match=rf"rank 0, process {os.getpid()}\) that prepares .*set"):
            prepared(tmp_path / "set", slow, timeout_s=0.1)
    finally:
        over.set()
        thread.join()


def dies(target: Path) -> None:
    """Is killed while it prepares."""

    def half(part: Path) -> None:
        part.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    prepared(target, half)


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_after_a_killed_rank_the_next_one_prepares(tmp_path: Path) -> None:
    """Nothing of the killed one is left."""
    child = multiprocessing.get_context("fork").Process(target=dies, args=(tmp_path / "set",))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert any(name.startswith(".part-") for name in visible(tmp_path))
    assert prepared(tmp_path / "set", lambda part: part.write_text("whole")).read_text() == "whole"
    assert visible(tmp_path) == {"set"}


def test_arrays_are_mapped_and_writes_stay_private(tmp_path: Path) -> None:
    """Values and dtypes as made; a write changes neither the file nor another's array."""
    arrays = {"x": np.arange(6.0).reshape(2, 3), "y": np.array([1, 2], np.int16)}
    one, other = (mapped(tmp_path / "set", lambda: arrays) for _ in range(2))
    for name, array in arrays.items():
        assert one[name].dtype == array.dtype
        np.testing.assert_array_equal(one[name], array)
    one["x"][0, 0] = 7
    assert other["x"][0, 0] == mapped(tmp_path / "set", dict)["x"][0, 0] == 0


def test_bad_arrays_are_refused(tmp_path: Path) -> None:
    """Nothing is pickled, and a damaged file is named."""
    with pytest.raises(ValueError, match="allow_pickle"):
        mapped(tmp_path / "objects", lambda: {"x": np.array([object()])})
    for name in ("train/x", ""):
        with pytest.raises(ValueError, match=f"name is its file's, and '{name}' is none"):
            mapped(tmp_path / "names", lambda name=name: {name: np.ones(1)})
    mapped(tmp_path / "set", lambda: {"x": np.ones(100)})
    os.truncate(tmp_path / "set" / "x.npy", 300)
    with pytest.raises(ValueError, match=r"x\.npy is damaged: .*Delete its folder"):
        mapped(tmp_path / "set", dict)


RANK = """
import numpy as np
import workbench as hvd
from workbench.data.one_copy import mapped

def proportional():  # of a page that n processes share, each has an n-th
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))

hvd.init()
ways = {
    "mapped": lambda: mapped("set", lambda: {"x": np.ones(4 << 20)})["x"],
    "own": lambda: np.ones(4 << 20),
}
for name, way in ways.items():
    before = proportional()
    hvd.barrier()
    x = way()
    assert x.sum() == 4 << 20
    hvd.barrier()
    held = proportional() - before
    print(name, hvd.allreduce(np.array([float(held)]), op=hvd.Sum)[0] / x.nbytes, flush=True)
    del x
"""


@pytest.mark.parallel
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux' smaps_rollup")
def test_memory_of_a_host_has_one_copy(tmp_path: Path) -> None:
    """Two ranks together hold the array once if it is mapped, twice if each has its own."""
    command = [sys.executable, "-m", "workbench.cli.main", "run", "-n", "2", sys.executable, "-c", RANK]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=True)
    copies = {name: float(number) for name, number in re.findall(r"stdout>:(\w+) ([\d.]+)", done.stdout)}
    assert copies == {"mapped": pytest.approx(1, abs=0.3), "own": pytest.approx(2, abs=0.3)}
