"""Ranks of one function know of each other only what they have sent: not what lies in a process that they share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from right_answers import right_answers
from submissions import graded, imports, state
from thorough import once_more

from workbench.course.grading import fresh
from workbench.course.judging.task import CommTask
from workbench.course.tasks import names, task

pytestmark = pytest.mark.timeout(300)  # on a busy machine, too

# Every rank leaves its arguments in a global, and sends zeros as the right answer would send numbers.
GLOBALS = """
LEFT = {}
def shown(comm, *mine):
    LEFT[comm.size, comm.rank] = mine
def others(comm):
    return [LEFT[comm.size, rank]
            for rank in range(comm.size)]
def rounds(comm, count, like):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for _ in range(count):
        comm.sendrecv(np.zeros_like(like), dest=right, source=left)
"""
FORGED = {
    "03.reduce_scatter": """
    shown(comm, chunks)
    for _ in range(comm.size - 1): rounds(comm, 1, chunks[0])
    mine = (comm.rank + 1) % comm.size
    return sum(one[0][mine] for one in others(comm))""",
    "03.ring_allreduce": """
    shown(comm, x)
    rounds(comm, 2 * (comm.size - 1), x[: len(x) // comm.size])
    return sum(one[0] for one in others(comm))""",
    "05.weighted_mean": """
    shown(comm, values)
    comm.allreduce(0.0), comm.allreduce(0.0)
    return np.mean(np.concatenate([one[0] for one in others(comm)]))""",
}
ARGUMENTS = {"03.reduce_scatter": "chunks", "03.ring_allreduce": "x", "05.weighted_mean": "values"}


def forged(name: str) -> str:
    """A cell that answers by what the ranks have in common."""
    return f'@exercise("{name}")\ndef f(comm, {ARGUMENTS[name]}):{FORGED[name]}'


KNOWN_INPUTS = """
@exercise("02.shift_right")
def f(comm, x):
    comm.sendrecv(np.zeros_like(x), dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
    return np.full_like(x, (comm.rank - 1) % comm.size)
"""

HVD = """
@exercise("11.validate")
def validate(hvd, right, log):
    shown(Ranks(hvd), np.mean(right))
    for _ in range(3): hvd.allreduce(0.0, name="x")
    accuracy = float(np.mean([one[0] for one in others(Ranks(hvd))]))
    if hvd.rank() == 0: log.append(f"accuracy {accuracy:.2f}")
    return accuracy, log
class Ranks:
    def __init__(self, hvd): self.rank, self.size = hvd.rank(), hvd.size()
cause = None
from workbench.course.cards import cause
for letter in "abcd": cause("11.validate", letter)
"""


BOXES = """
class Box:
    def __init__(self, value): self.value = value
HIDDEN = {}
class Token:
    def __init__(self, value): HIDDEN[id(self)] = value; self.number = id(self)
    def open(self): return HIDDEN[self.number]
"""


def passed_on(kind: str, taken: str) -> str:
    """A broadcast in one message to each, the arrays in an object of the learner's own."""
    return (
        f'@exercise("02.tree_broadcast")\ndef tree_broadcast(comm, value, root):\n'
        "    place, k = (comm.rank - root) % comm.size, 1\n"
        "    while k < comm.size:\n"
        "        if place < k and place + k < comm.size:\n"
        f"            comm.send({kind}(value), dest=(place + k + root) % comm.size)\n"
        f"        elif k <= place < 2 * k: value = comm.recv(source=(place - k + root) % comm.size).{taken}\n"
        "        k *= 2\n"
        "    return value"
    )


@pytest.mark.slow
def test_what_lies_in_a_global_is_no_message(tmp_path: Path) -> None:
    """What is not sent is not known.

    Answers whose ranks leave numbers in a global, and send zeros in the right number of messages, do not pass, whether
    ``comm`` or ``hvd`` is given; nor does one whose messages only point to numbers, nor one that guesses a neighbour's
    numbers, which are others when it is graded.
    """
    token = passed_on("Token", "open()")
    sheet = graded(tmp_path / "kim.ipynb", GLOBALS, BOXES, *map(forged, ARGUMENTS), token, KNOWN_INPUTS, HVD)
    assert state(sheet, "02.tree_broadcast") == "✗", sheet
    names = [*ARGUMENTS, "02.shift_right", "11.validate"]
    assert {name: state(sheet, name) for name in names} == dict.fromkeys(names, "✗"), sheet
    for name in names:
        why = (
            "it is right with the exercise's own"
            if name == "02.shift_right"
            else "its ranks are right in one process alone"
        )
        assert sheet.exercises[name].text.startswith(f"once more: {why}"), sheet.exercises[name]


ALL_AT_ONCE = """
@exercise("03.ring_allreduce")
def f(comm, x):
    others, total = [rank for rank in range(comm.size) if rank != comm.rank], x.copy()
    sent = [comm.isend({put}, dest=other) for other in others]
    for other in others: total = total + {got}
    for one in sent: one.wait()
    return total
"""
SMUGGLED = {
    "a box": ("Box(x)", "comm.recv(source=other).value"),
    "a scalar of bytes": ("np.bytes_(x.tobytes() + b'!')", "np.frombuffer(bytes(comm.recv(source=other))[:-1])"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", [next(iter(SMUGGLED)), *map(once_more, [*SMUGGLED][1:])])
def test_all_bytes_count(way: str, tmp_path: Path) -> None:
    """Whoever sends all he has to everybody sends too many bytes, whatever they are in; a box brings what it has."""
    put, got = SMUGGLED[way]
    sheet = graded(tmp_path / "kim.ipynb", BOXES, passed_on("Box", "value"), ALL_AT_ONCE.format(put=put, got=got))
    assert state(sheet, "02.tree_broadcast") == "✓", sheet
    assert state(sheet, "03.ring_allreduce") == "✗", sheet
    assert sheet.exercises["03.ring_allreduce"].text.startswith("score:"), sheet


def test_every_exercise_of_ranks_has_numbers_of_its_own() -> None:
    """All but one, whose numbers are counts: its ranks are in two processes, too."""
    without = [name for name in names() if isinstance(task(name), CommTask) and fresh.varied(task(name)) is None]
    assert without == ["11.accuracy"]
    varied = fresh.varied(task("04.average_gradients"))
    assert varied is not None
    empty = [total for case in varied.cases() for total, count in case.inputs if not count]
    assert {bool(np.any(total)) for total in empty} == {False}  # of ranks without samples


OF_RANKS = [name for name in names() if task(name).of_ranks and not task(name).live]


def answers() -> list[Any]:
    """Parameters: lessons with the cells that hand in their right answers, one after the other."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, answer in right_answers():
        if name in OF_RANKS:
            found.setdefault(name[:2], []).append((name, answer.__name__))
    return [pytest.param(lesson, several, id=lesson) for lesson, several in found.items()]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_every_solution_passes_in_two_processes(tmp_path: Path) -> None:
    """No exercise needs what its ranks have in common, and none of its solutions is flagged for it."""
    cells = [cell for name in OF_RANKS for cell in (imports(name), task(name).cell(solved=True))]
    named = [f'cause("{name}", "{task(name).right}")' for name in OF_RANKS if task(name).asks_cause]
    sheet = graded(tmp_path / "kim.ipynb", *cells, "from workbench.course.cards import cause", *named, deadline_s=250.0)
    found = {name: (state(sheet, name), sheet.exercises[name].text) for name in OF_RANKS}
    assert found == dict.fromkeys(OF_RANKS, ("✓", ""))
    flagged = {flag for name in OF_RANKS for flag in sheet.exercises[name].flags}
    assert flagged <= {"is the course's own solution, as solution() inserts it"}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("lesson", "several"), answers())
def test_right_answers_pass_in_two_processes(lesson: str, several: list[tuple[str, str]], tmp_path: Path) -> None:
    """Also those that are unlike the official one."""
    source = (Path(__file__).resolve().parents[1] / "right" / f"r{lesson}.py").read_text()
    for name, answer in several:
        handed_in = f'exercise("{name}")({answer})'
        named = f'from workbench.course.cards import cause\ncause("{name}", "{getattr(task(name), "right", "")}")'
        sheet = graded(tmp_path / f"{answer}.ipynb", source, handed_in + f'  # @exercise("{name}")', named)
        assert (state(sheet, name), sheet.exercises[name].text) == ("✓", ""), answer
        assert not any("message" in flag or "process" in flag for flag in sheet.exercises[name].flags)
