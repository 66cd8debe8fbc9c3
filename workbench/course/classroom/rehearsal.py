"""``workbench class rehearse``: plays lessons as a whole class through the real hub, the day before.

A class is begun for it and ended afterwards. Its learners have no screen; what they ask for is what a browser asks for.

1. All sign in within ten seconds, and wait for their JupyterLab.
2. *First verdicts.* Some learners at once open an exercise's notebook and run its cells, solved, to its first check:
   four, then twice as many while nine of ten have their verdict within ten seconds. The largest number that had is
   what the machine carries.
3. *Lessons.* All play the lessons, with engines where a lesson starts some. If half of them are hostile, these attack
   the class meanwhile.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median

import nbformat
import psutil

from workbench.cli.class_server import command, control
from workbench.cli.class_server.place import FILE, Place
from workbench.cli.face import Parser
from workbench.cli.grade.results import print_lines
from workbench.cli.learn import built
from workbench.common.text import count
from workbench.course.classroom import hostile
from workbench.course.classroom.learner import Learner
from workbench.course.tasks import task
from workbench.errors import LaunchError
from workbench.launch.start.starters import free_port

GOAL_S, ALL_BEGIN_S = 10.0, 10.0
_EXERCISE = re.compile(r'@exercise\("([\w.]+)"\)')
_FIRST_CHECK = re.compile(r"^check\(", re.MULTILINE)


@dataclass
class Report:
    """What has been measured.

    Attributes:
        asked: how many learners.
        lab_s: seconds from signing in to JupyterLab, of each learner.
        verdicts: by number of learners at once the seconds of each to the first verdict; None for one who had none.
        failed: what failed, with learner, notebook and cell.
        hangs: cells that did not end.
        attacks: by name of the attack what it told, for each hostile learner.
        lessons: which were played; by whom; how long it took.
    """

    asked: int = 0
    lab_s: list[float] = field(default_factory=list)
    verdicts: dict[int, list[float | None]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    attacks: dict[str, list[str]] = field(default_factory=dict)
    lessons: str = ""
    played: int = 0
    took_s: float = 0.0

    @property
    def carries(self) -> int:
        """The largest number of learners of whom nine of ten had a verdict in time."""
        return max((n for n, found in self.verdicts.items() if nine_of_ten(found) <= GOAL_S), default=0)

    @property
    def broken(self) -> list[str]:
        return [
            f"{name}: {told}"
            for name, all_ in self.attacks.items()
            for told in sorted({*all_})
            if not hostile.held(told)
        ]

    def lines(self) -> Iterator[str]:
        """For the instructor."""
        if self.lab_s:
            some = f"JupyterLab after {median(self.lab_s):.0f} s in the median, {max(self.lab_s):.0f} s the last"
            yield f"{count(len(self.lab_s), 'learner')} of {self.asked} signed in within {ALL_BEGIN_S:.0f} s: {some}"
        for n, found in sorted(self.verdicts.items()):
            took = [each for each in found if each is not None]
            none = f", {len(found) - len(took)} had none" if len(took) < len(found) else ""
            if took:
                yield (
                    f"first verdict, {n} at once: median {median(took):.1f} s, nine of ten {nine_of_ten(found):.1f} s, "
                    f"the last {max(took):.1f} s{none}"
                )
        if self.verdicts:
            or_more = " or more" if self.carries == self.asked else ""
            yield f"this machine carries {count(self.carries, 'learner')}{or_more}: nine of ten within {GOAL_S:.0f} s"
        if self.lessons:
            yield f"lessons {self.lessons}: {count(self.played, 'learner')} at once, {self.took_s:.0f} s"
        yield f"failed: {len(self.failed)}"
        yield from (f"  {each}" for each in self.failed)
        yield f"hangs: {len(self.hangs)}"
        yield from (f"  {each}" for each in self.hangs)
        for name, told in self.attacks.items():
            yield f"hostile, {name}: held {sum(map(hostile.held, told))} of {len(told)}"
        yield from (f"  {each}" for each in self.broken)


def nine_of_ten(seconds: Iterable[float | None]) -> float:
    """So long nine of ten have waited at most; infinity where more than one of ten has no verdict.

    Example:
        >>> nine_of_ten([1.0] * 9 + [None]), nine_of_ten([1.0, None])
        (1.0, inf)
    """
    in_order = sorted(float("inf") if each is None else each for each in seconds)
    return in_order[max(0, -(-9 * len(in_order) // 10) - 1)] if in_order else float("inf")


class Rehearsal:
    """A class that plays.

    Args:
        place: of the class, which is begun and ended here.
        lessons: such as ``00,02-04``.
        minutes: so long the lessons may take.
        attack: is every second learner hostile?
        tell: what is said meanwhile.
    """

    def __init__(self, place: Place, lessons: str, minutes: float, attack: bool, tell: Callable[[str], None]) -> None:
        if not 0 < minutes < float("inf"):
            raise LaunchError(f"--minutes {minutes:g}: a rehearsal takes some time, and ends.")
        self._notebooks = list(chosen(lessons))
        self._place, self._tell, self._lessons, self._minutes = place, tell, lessons, minutes
        self._attack, self.report = attack, Report()

    def run(self, learners: int) -> Report:
        """Begin the class, play, and end it; nothing is left.

        Raises:
            LaunchError: the class cannot be begun; or, as root alone can keep learners apart, be attacked.
        """
        self.report.asked = learners
        names = [f"player{i:02}" for i in range(1, learners + 1)]  # a class with learners may run here, too
        self._place.password = secrets.token_hex(8)
        control.up(self._place, names)
        self._place = Place.read(self._place.folder)  # as it was begun
        try:
            if self._attack and not self._place.apart:
                raise LaunchError("--hostile needs root: only then learners are kept apart.")
            with ExitStack() as stack:
                all_ = [stack.enter_context(closing(Learner(self._place.address, name))) for name in names]
                there = self._sign_in(all_)
                self._first_verdicts(there)
                self._play(there)
        finally:
            control.down(self._place.folder)
            shutil.rmtree(self._place.folder / "collected")
            with suppress(OSError):
                self._place.folder.rmdir()
        return self.report

    def _sign_in(self, learners: list[Learner]) -> list[Learner]:
        there = []

        def one(learner: Learner) -> None:
            begun = time.monotonic()
            status = learner.sign_in(self._place.password)
            learner.lab()
            if status != 200:
                raise LaunchError(f"cannot sign in: {status}")
            self.report.lab_s.append(time.monotonic() - begun)
            there.append(learner)

        self._tell(f"{count(len(learners), 'learner')} sign in …")
        self._at_once(learners, one)
        return there

    def _first_verdicts(self, learners: list[Learner]) -> None:
        notebook = next((each for each in self._notebooks if each.parent.name == "exercises"), None)
        if notebook is None or not learners:
            return
        cells = [source for source, _ in solved(notebook)]
        first = next(i for i, source in enumerate(cells) if _FIRST_CHECK.search(source))
        n = min(4, len(learners))
        while True:
            self._tell(f"first verdict, {n} at once …")
            self.report.verdicts[n] = self._wave(learners[:n], notebook, cells[: first + 1])
            if n == len(learners) or self.report.carries < n:
                return
            n = min(2 * n, len(learners))

    def _wave(self, learners: list[Learner], notebook: Path, cells: list[str]) -> list[float | None]:
        took: dict[str, float] = {}

        def one(learner: Learner) -> None:
            begun = time.monotonic()
            learner.kernel("exercises")
            told = [learner.run(source) for source in cells]
            if "✓" in told[-1]:
                took[learner.name] = time.monotonic() - begun
            else:
                self.report.failed.append(f"{learner.name}, {notebook.stem}, no verdict: {told[-1][-200:]}")

        self._at_once(learners, one)
        for each in learners:
            each.end_kernel()
        return [took.get(each.name) for each in learners]

    def _play(self, learners: list[Learner]) -> None:
        hostile_ones = learners[1::2] if self._attack else []
        honest = [each for each in learners if each not in hostile_ones]
        most = max(1, psutil.virtual_memory().available // control.LEARNER_BYTES - len(hostile_ones))
        if len(honest) > most:
            self._tell(
                f"memory is free for {most} of {count(len(honest), 'learner')} with engines: so many play the lessons"
            )
        honest = honest[:most]
        self._tell(f"{count(len(honest), 'learner')} play the lessons {self._lessons} …")
        begun, end = time.monotonic(), time.monotonic() + 60 * self._minutes
        playing = threading.Thread(target=self._at_once, args=(honest, lambda learner: self._lesson(learner, end)))
        playing.start()
        attackers = threading.Thread(target=self._at_once, args=(hostile_ones, self._attacks))
        attackers.start()
        playing.join()
        self.report.lessons, self.report.played = self._lessons, len(honest)
        self.report.took_s = time.monotonic() - begun
        attackers.join()

    def _lesson(self, learner: Learner, end: float) -> None:
        for notebook in self._notebooks:
            learner.kernel(notebook.parent.name)
            for i, (source, may_fail) in enumerate(solved(notebook)):
                at = f"{learner.name}, {notebook.parent.name}/{notebook.stem}, code cell {i + 1}"
                if time.monotonic() > end:
                    self.report.failed.append(f"{at}: the minutes were over")
                    return
                try:
                    learner.run(source)
                except TimeoutError:
                    self.report.hangs.append(at)
                    learner.interrupt()
                    break
                if learner.error and not may_fail:
                    self.report.failed.append(f"{at}: {learner.error[:200]}")
                    break
            learner.end_kernel()
        with suppress(ValueError):
            known = json.loads(learner.file("exercises/.workbench/progress.json") or "{}")
            passed = {name for name, entry in known.items() if isinstance(entry, dict) and entry.get("passed")}
            asked = {
                name for each in self._notebooks for source, _ in solved(each) for name in _EXERCISE.findall(source)
            }
            self.report.failed += [f"{learner.name}: {name} was not passed" for name in sorted(asked - passed)]

    def _attacks(self, learner: Learner) -> None:
        names = [each for each in self._place.learners if each != learner.name]
        for name in hostile.CELLS:
            learner.kernel()
            try:
                told = learner.run(hostile.cell(name, names))
            except TimeoutError:
                told = "held: it has not ended"
            self.report.attacks.setdefault(name, []).append(told)
            learner.end_kernel()

    def _at_once(self, learners: Sequence[Learner], act: Callable[[Learner], None]) -> None:
        """All act, beginning within ten seconds; what one of them meets is its own."""

        def one(number: int, learner: Learner) -> None:
            time.sleep(number * ALL_BEGIN_S / len(learners))
            try:
                act(learner)
            except Exception as error:  # noqa: BLE001 - the others go on, and the report says it
                self.report.failed.append(f"{learner.name}: {type(error).__name__}: {error}"[:300])

        threads = [threading.Thread(target=one, args=each) for each in enumerate(learners)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()


def chosen(lessons: str) -> Iterator[Path]:
    """The notebooks of lessons such as ``00,02-04``, each with its exercises; below the folder of built lessons.

    Raises:
        LaunchError: there are none.
    """
    found = sorted((built() / "notebooks").glob("[0-9]*.ipynb"))
    for part in lessons.split(","):
        first, _, last = part.strip().partition("-")
        some = [each.name for each in found if first <= each.name[:2] <= (last or first)]
        if not some:
            raise LaunchError(f"--lessons {part}: there are {found[0].stem[:2]}-{found[-1].stem[:2]}.")
        for name in some:
            yield Path("notebooks", name)
            if (built() / "exercises" / name).exists():
                yield Path("exercises", name)


@cache
def solved(notebook: Path) -> list[tuple[str, bool]]:
    """Its code cells, exercises solved; and of each whether it may fail."""
    read = nbformat.read(built() / notebook, as_version=4)  # type: ignore[no-untyped-call]
    cells = []
    for cell in read.cells:
        if cell.cell_type == "code":
            found = _EXERCISE.match(cell.source)
            source = task(found[1]).cell(True) if found else cell.source
            cells.append((source, "raises-exception" in cell.metadata.get("tags", [])))
    return cells


def main(words: Sequence[str]) -> int:
    """The command; 1 if something failed, hung, or was broken."""
    parser = Parser(
        prog="workbench class rehearse",
        description="Plays lessons as a whole class, through a JupyterHub that is begun for it: how many learners does "
        "this machine carry, and what fails? Nothing is left of it.",
    )
    where = Path("workbench-rehearsal")
    parser.add_argument("folder", nargs="?", type=Path, default=where, help=f"for the class; default: ./{where}")
    parser.add_argument("--learners", type=int, default=30, metavar="N", help="default: 30")
    parser.add_argument("--lessons", default="00,02-04", help="which are played; default: 00,02-04")
    parser.add_argument("--minutes", type=float, default=15.0, help="how long the lessons may take; default: 15")
    parser.add_argument("--hostile", action="store_true", help="every second learner attacks the class; needs root")
    command.limits(parser)
    args = parser.parse_args(words)
    if (args.folder / FILE).exists():
        raise LaunchError(f"A class is in {args.folder}: rehearse in another folder.")
    place = command.limited(Place(args.folder.resolve(), free_port(), "127.0.0.1"), args)
    played = Rehearsal(place, args.lessons, args.minutes, args.hostile, lambda text: print_lines([text]))
    try:
        report = played.run(args.learners)
    finally:
        if played.report.lab_s:  # else nobody has been there, and the error says why
            print_lines(played.report.lines())
    return int(bool(report.failed or report.hangs or report.broken))
