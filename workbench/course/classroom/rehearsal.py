"""``workbench class --rehearse N``: plays lessons as N learners at once on this machine, the day before.

Each learner has a folder with the lessons and a kernel for each notebook, runs all cells, starts engines where the
lesson does, solves the exercises with their solutions and checks them. They begin within a minute. All that they start
has their number in a variable, by which its memory and its time are counted, and by which it is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import psutil
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from traitlets.config import Config

from workbench.cli.learn import built
from workbench.common.text import count
from workbench.config import child_environment
from workbench.course.progress_file import PREDICTIONS
from workbench.course.tasks import task
from workbench.errors import LaunchError
from workbench.launch.start.cores import paid_for

_LEARNER = "WORKBENCH_LEARNER"
_ALL_BEGIN_S = 60.0
_HANG_S = 180.0
_LOOK_S = 2.0
_GIB = 1 << 30
_FIRST_GUESS = _GIB  # bytes of a learner, as long as nobody has been seen
_PATIENCE_S = 30.0  # so long a learner waits where all do the same thing at the same time
_EXERCISE = re.compile(r'@exercise\("([\w.]+)"\)')
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass
class Learner:
    """What one has played.

    Args:
        number: from 1.
        folder: with the lessons.

    Attributes:
        at: the notebook and the cell that runs.
        first_verdict_s: from the opening of its first exercise's notebook.
        problems: what failed, with its notebook and cell.
        hangs: the cells that did not end.
        done: were all notebooks played?
        given_up: why it was ended.
        bytes: the most memory of its processes, each page shared among those that have it.
        cpu_s: time of a core until the first verdict.
    """

    number: int
    folder: Path
    at: str = "the start"
    first_verdict_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    done: bool = False
    given_up: str = ""
    bytes: int = 0
    cpu_s: float = 0.0

    def play(self, notebooks: list[Path], mark: str) -> None:
        """Run each notebook in a kernel of its own."""
        with tempfile.TemporaryDirectory(prefix="workbench-") as ipython:
            for each in notebooks:
                if not self.given_up:
                    self._run(self.folder / each, ipython, mark)
        self._look_at_progress(notebooks)
        self.done = not self.given_up

    def _run(self, path: Path, ipython: str, mark: str) -> None:
        env = child_environment(IPYTHONDIR=ipython, IPP_NONINTERACTIVE="1", NO_COLOR="1", **{_LEARNER: mark})
        notebook, opened = nbformat.read(path, as_version=4), time.monotonic()  # type: ignore[no-untyped-call]
        for cell in notebook.cells:
            if found := _EXERCISE.match(cell.source):
                cell.source = task(found[1]).cell(True)

        def begins(cell: Any, cell_index: int) -> None:
            self.at = f"{path.stem}, cell {cell_index}"

        def ended(cell: Any, cell_index: int, execute_reply: Any) -> None:
            if not self.first_verdict_s and "check(" in cell.source and path.parent.name == "exercises":
                self.first_verdict_s = time.monotonic() - opened
                self.cpu_s = sum(
                    cpu_s(process) for known, process in marked(mark.partition("/")[0]) if known == self.number
                )

        kernel = {"transport": "ipc", "connection_file": f"{ipython}/kernel.json"}
        client = NotebookClient(
            notebook,
            resources={"metadata": {"path": str(path.parent)}},
            config=Config({"KernelManager": kernel}),
            timeout=int(_HANG_S),
            extra_arguments=["--log-level=ERROR"],
            on_cell_start=begins,
            on_cell_executed=ended,
        )
        try:
            asyncio.run(client.async_execute(env=env))
        except CellTimeoutError:
            self.hangs.append(self.at)
        except (CellExecutionError, DeadKernelError, RuntimeError, OSError, AssertionError) as error:
            # AssertionError: of nbclient's, where its kernel is ended while it starts
            if not self.given_up:
                said = [line for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
                self.problems.append(f"{self.at}: {said[-1] if said else type(error).__name__}")

    def _look_at_progress(self, notebooks: list[Path]) -> None:
        """Each exercise must have been passed."""
        passed = set()
        for file in self.folder.rglob("progress.json"):
            with contextlib.suppress(OSError, ValueError):
                known = json.loads(file.read_text())
                passed |= {name for name, entry in known.items() if name != PREDICTIONS and entry.get("passed")}
        for each in notebooks:
            if not (self.given_up or self.problems or self.hangs):
                asked = set(_EXERCISE.findall((self.folder / each).read_text().replace('\\"', '"')))
                self.problems += [f"{each.stem}: {name} was not passed" for name in sorted(asked - passed)]


class Rehearsal:
    """N learners at once.

    Args:
        n: how many.
        minutes: so long at most.
        lessons: the first and the last, such as ``00-04``.
    """

    def __init__(self, n: int, minutes: float, lessons: str) -> None:
        if n < 1:
            raise LaunchError(f"--rehearse {n}: a class has at least one learner.")
        if not 0 < minutes < float("inf"):
            raise LaunchError(f"--minutes {minutes:g}: a rehearsal takes some time, and ends.")
        self._n, self._limit_s, self._mark = n, 60.0 * minutes, os.urandom(6).hex()
        self._notebooks = list(_chosen(lessons))
        self._free = free_bytes()
        self._shared = 0  # bytes of fork servers
        self.learners: list[Learner] = []
        self._threads: list[threading.Thread] = []
        self.why_fewer = ""
        self.interrupted = False
        self._took_s = 0.0

    def run(self) -> None:
        """Play, until all are done or the time is over; nothing is left running."""
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="workbench-class-") as folder:
            try:
                while time.monotonic() < begun + self._limit_s:
                    self._add(Path(folder), time.monotonic() - begun)
                    self._look()
                    if not any(each.is_alive() for each in self._threads) and self._all_begun():
                        break
                    time.sleep(min(_LOOK_S, _ALL_BEGIN_S / self._n))
                self._give_up("the time was over", self.learners)
            except KeyboardInterrupt:
                self.interrupted = True
                self._give_up("it was interrupted", self.learners)
            finally:
                self._end()
        self._took_s = time.monotonic() - begun

    def _all_begun(self) -> bool:
        return len(self.learners) == self._n or bool(self.why_fewer)

    def _add(self, folder: Path, now: float) -> None:
        """The next learner, if it is time and there is memory."""
        if self._all_begun() or now < len(self.learners) * _ALL_BEGIN_S / self._n:
            return
        largest = max((each.bytes for each in self.learners), default=0)
        need = max(largest, 0 if largest else _FIRST_GUESS) + reserve_bytes()
        growing = sum(max(0, max(largest, _FIRST_GUESS) - each.bytes) for each in self.learners if not each.done)
        if (free := free_bytes()) < need + growing and self.learners:
            self.why_fewer = f"memory: {_gib(free)} are free, and those that play may still need {_gib(growing)}"
            return
        learner = Learner(len(self.learners) + 1, folder / f"learner-{len(self.learners) + 1}")
        for each in self._notebooks:
            (learner.folder / each).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(built() / each, learner.folder / each)
        self.learners.append(learner)
        words = (self._notebooks, f"{self._mark}/{learner.number}")
        self._threads.append(threading.Thread(target=learner.play, args=words, daemon=True))
        self._threads[-1].start()

    def _look(self) -> None:
        """Count memory and time; if memory is short, the last learner ends before the system ends somebody."""
        seen: dict[int, int] = {}
        for number, process in marked(self._mark):
            with contextlib.suppress(psutil.Error, OSError):
                seen[number] = seen.get(number, 0) + process_bytes(process)
        self._shared = max(self._shared, seen.pop(0, 0))
        for number, used in seen.items():
            self.learners[number - 1].bytes = max(self.learners[number - 1].bytes, used)
        playing = [each for each in self.learners if not (each.done or each.given_up)]
        if free_bytes() < reserve_bytes() / 2 and len(playing) > 1:
            self.why_fewer = f"memory: less than {_gib(reserve_bytes() // 2)} were free"
            self._give_up("memory was short", playing[-1:])

    def _give_up(self, why: str, learners: list[Learner]) -> None:
        ended = [each for each in learners if not each.done]
        for each in ended:
            each.given_up = each.given_up or f"{why} at {each.at}"
        numbers = {each.number for each in ended}
        for number, process in marked(self._mark):
            if number in numbers:  # a fork server is others', too
                with contextlib.suppress(psutil.Error):
                    process.kill()

    def _end(self) -> None:
        for each in self._threads:
            each.join(10.0)
        until = time.monotonic() + 10.0
        while list(marked(self._mark)) and time.monotonic() < until:
            time.sleep(0.1)
        for _, process in marked(self._mark):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def failed(self) -> bool:
        """Has something not been as it should be?"""
        return bool(self.why_fewer) or any(each.problems or each.hangs or each.given_up for each in self.learners)

    def report(self) -> Iterator[str]:
        lessons = f"{self._notebooks[0].stem[:2]}-{self._notebooks[-1].stem[:2]}"
        yield (
            f"{count(len(self.learners), 'learner')} of {self._n}, lessons {lessons}, {count(paid_for(), 'core')}, "
            f"{_gib(self._free)} free: {self._took_s:.0f} s"
        )
        if self.why_fewer:
            yield f"no more learners, because of {self.why_fewer}"
        verdicts = {each.first_verdict_s: each.number for each in self.learners if each.first_verdict_s}
        if verdicts:
            worst = max(verdicts)
            yield (
                f"first verdict after an exercise is opened: median {statistics.median(verdicts):.1f} s, "
                f"worst {worst:.1f} s (learner {verdicts[worst]})"
            )
        yield from self._carries()
        problems = [f"learner {each.number}, {text}" for each in self.learners for text in each.problems]
        problems += [f"learner {each.number}: {each.given_up}" for each in self.learners if each.given_up]
        yield f"failed: {len(problems)}"
        yield from (f"  {each}" for each in problems)
        hangs = [f"  learner {each.number}, {where}" for each in self.learners for where in each.hangs]
        yield f"hangs: {len(hangs)}"
        yield from hangs

    def _carries(self) -> Iterator[str]:
        whole = [each for each in self.learners if each.done and each.bytes]
        if not whole:
            return
        largest = max(each.bytes for each in whole)
        yield (
            f"memory of a learner: median {_mib(statistics.median(each.bytes for each in whole))}, largest "
            f"{_mib(largest)}; and {_mib(self._shared)} of the fork server, which all share"
        )
        spent = statistics.median(each.cpu_s for each in whole)
        by_memory = int((self._free - reserve_bytes() - self._shared) // largest)
        by_cores = int(_PATIENCE_S * paid_for() / spent) if spent else by_memory
        worst = max(each.first_verdict_s for each in whole)
        by_clock = int(len(whole) * _PATIENCE_S / worst) if worst else by_cores
        yield (
            f"this machine carries {count(max(1, min(by_memory, by_cores, by_clock)), 'learner')}: its memory "
            f"{by_memory}, its cores {by_cores} (the first verdict takes {spent:.1f} s of a core; all at once wait for "
            f"at most {_PATIENCE_S:.0f} s), and {by_clock} if all wait as here ({worst:.1f} s with {len(whole)})"
        )


def _chosen(lessons: str) -> Iterator[Path]:
    first, _, last = lessons.partition("-")
    found = sorted((built() / "notebooks").glob("[0-9]*.ipynb"))
    chosen = [each for each in found if first <= each.stem[:2] <= (last or first)]
    if not chosen:
        raise LaunchError(f"--lessons {lessons}: there are {found[0].stem[:2]}-{found[-1].stem[:2]}.")
    for each in chosen:
        yield Path("notebooks", each.name)
        if (built() / "exercises" / each.name).exists():
            yield Path("exercises", each.name)


def marked(mark: str) -> Iterator[tuple[int, psutil.Process]]:
    """The processes of a rehearsal with their learners' numbers; 0 for a fork server."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            env = process.environ()
            found, _, number = env.get(_LEARNER, "").partition("/")
            if found == mark:
                yield 0 if "WORKBENCH_FORK_PAD" in env else int(number), process


def cpu_s(process: psutil.Process) -> float:
    """What a process has taken of a core's time."""
    with contextlib.suppress(psutil.Error):
        spent = process.cpu_times()
        return float(spent.user + spent.system)
    return 0.0


def process_bytes(process: psutil.Process) -> int:
    """Memory of a process: a page that several have counts in parts."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) << 10
    return int(process.memory_info().rss)


def free_bytes() -> int:
    """Memory that new processes can have here: the machine's, or what is left of the container's."""
    free = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):
        limit, used = (int((_CGROUP / f"memory.{each}").read_text()) for each in ("max", "current"))
        return min(free, max(0, limit - used))
    return free


def reserve_bytes() -> int:
    """What is left to others."""
    return max(_GIB, int(psutil.virtual_memory().total) // 20)


def _gib(number: float) -> str:
    return f"{number / _GIB:.1f} GiB"


def _mib(number: float) -> str:
    return f"{number / (1 << 20):.0f} MiB"
