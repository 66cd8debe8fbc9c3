"""The practical session: a shell in which its commands run as typed, and what their outputs show.

Lesson 22 and ``make practical`` use it.
"""

from __future__ import annotations

import re
import shutil
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench import config
from workbench.launch.start.starters import horovod_shell

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
_PLACE = re.compile(r"MPI_size = (\d+), MPI_rank = (\d+), MPI_local_size = \d+,  MPI_local_rank = \d+ platform = \S+")
_EPOCH = re.compile(r"Epoch: (\d+) (\d+\.\d+) sec\.")
_RESULT = re.compile(r"Loss:  (-?\d+\.\d+|nan)  accuracy:  (\d+\.\d+)  \((\d+) of (\d+) images\)")
_BUILD = re.compile(r"\[([X ])\] (\w+)")
_MISSING = re.compile(r"No module named '(\w+)'|(\w+): (?:command )?not found")


class PracticalError(Exception):
    """A script failed, or did not print what it should have."""


def begin(scripts: str) -> tempfile.TemporaryDirectory[str]:
    """In the ``!`` lines of a notebook, ``mpirun``, ``horovodrun`` and ``import horovod`` mean the workbench's.

    In a terminal: ``eval "$(workbench env)"``.

    Args:
        scripts: the folder of the session's scripts.

    Returns:
        A folder with copies of them, for what they write. It ends with the notebook's kernel.
    """
    config.pass_on({**_QUIET, **horovod_shell()})
    folder = tempfile.TemporaryDirectory(prefix="session-")
    shutil.copytree(scripts, folder.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@dataclass(frozen=True)
class Run:
    """What one run of a training printed.

    Args:
        ranks: how many there were.
        seconds: of each epoch; the slowest rank's.
        loss, accuracy: on the test images, the same on all ranks.
    """

    ranks: int
    seconds: tuple[float, ...]
    loss: float
    accuracy: float

    @property
    def first(self) -> float:
        """Seconds of the first epoch, in which much is set up."""
        return self.seconds[0]

    @property
    def later(self) -> float:
        """Median of the other epochs' seconds; of the first, if there is no other."""
        return statistics.median(self.seconds[1:] or self.seconds)


def places(output: str, ranks: int) -> list[str]:
    """The lines of ``test_horovod.py``, by rank.

    Args:
        output: what all ranks printed.
        ranks: how many were started.

    Raises:
        PracticalError: not one line of each rank.
    """
    found = sorted(_PLACE.finditer(output), key=lambda match: int(match[2]))
    if len(found) == ranks > 1 and all(match[1] == "1" for match in found):
        raise PracticalError(
            f"{ranks} processes, and each believes that it is alone (MPI_size = 1). The launcher and the MPI library "
            "of Python do not belong together: `workbench doctor` says which ones they are."
        )
    if [(int(match[1]), int(match[2])) for match in found] != [(ranks, rank) for rank in range(ranks)]:
        raise PracticalError(_instead(f"Not one block of each of {ranks} ranks", output))
    return [match[0] for match in found]


def read(output: str, ranks: int) -> Run:
    """What a training printed, every rank the same.

    Args:
        output: what all ranks printed.
        ranks: how many were started.

    Raises:
        PracticalError: a rank is missing, or ranks disagree.
    """
    results = [match.groups() for match in _RESULT.finditer(output)]
    seconds: dict[int, float] = {}
    for match in _EPOCH.finditer(output):
        seconds[int(match[1])] = max(float(match[2]), seconds.get(int(match[1]), 0.0))
    if len(results) != ranks or not seconds:
        raise PracticalError(_instead(f"{len(results)} of {ranks} ranks printed a result", output))
    if len(set(results)) > 1:
        raise PracticalError(f"The ranks disagree about (loss, accuracy, right, images): {results}")
    return Run(ranks, tuple(seconds[epoch] for epoch in sorted(seconds)), float(results[0][0]), float(results[0][1]))


def _instead(what: str, output: str) -> str:
    """What is wrong; behind it the cause, where the output names one, or the output's end."""
    if found := _MISSING.search(output):
        return f"{what}: {found[1] or found[2]} is not there. Was begin() called, and is the package installed?"
    return f"{what}. The output was:\n{output[-4000:]}"


def table(runs: Sequence[Run]) -> str:
    """Time, speed-up, loss and accuracy; a row for each run. Speed-up and efficiency are over the first row."""
    columns = {"ranks": 5, "first epoch": 14, "later epochs": 15, "speed-up": 11}
    columns |= {"efficiency": 13, "loss": 11, "accuracy": 11}
    lines = ["".join(f"{name:>{width}}" for name, width in columns.items())]
    base = runs[0]
    for run in runs:
        speedup = base.later / run.later
        share = f"{100 * speedup * base.ranks / run.ranks:.0f} %"
        times = f"{run.first:>12.2f} s{run.later:>13.2f} s"
        lines.append(f"{run.ranks:>5}{times}{speedup:>11.2f}{share:>13}{run.loss:>11.4f}{run.accuracy:>11.4f}")
    return "\n".join(lines)


def look(*files: str) -> None:
    """Say what kept outputs show: ✓ or ✗, with a table of trainings.

    Args:
        files: what commands printed, named by what they ran and by the number of ranks: ``test_2.txt``, and
            ``build.txt`` of ``horovodrun --check-build``.
    """
    trained = []
    for name in files:
        path, (_, _, ranks) = Path(name), Path(name).stem.rpartition("_")
        output = path.read_text(encoding="utf-8") if path.exists() else None
        try:
            if output is None:
                raise PracticalError("It is not here: run the cell above.")
            if not ranks.isdigit():
                _tell(name, _built(output))
            elif _PLACE.search(output):
                _tell(name, f"{len(places(output, int(ranks)))} of {ranks} ranks, each with a number of its own")
            else:
                trained.append(read(output, int(ranks)))
                _tell(name, f"{ranks} of {ranks} ranks trained, and all report one result")
        except PracticalError as error:
            print(f"✗ {name}: {error}")
    if trained:
        print(f"\n{table(trained)}")


def _tell(name: str, what: str) -> None:
    print(f"✓ {name}: {what}")


def _built(output: str) -> str:
    here = {name: mark == "X" for mark, name in _BUILD.findall(output)}
    frameworks = [name for name in ("TensorFlow", "PyTorch", "MXNet") if here.get(name)]
    if not frameworks or not here.get("MPI"):
        raise PracticalError(_instead("No framework, or no MPI", output))
    return f"{_and(frameworks)} can be used; ranks find each other by MPI{' or Gloo' if here.get('Gloo') else ''}"


def _and(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
