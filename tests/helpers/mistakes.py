"""Cells that go wrong, as learners write them, for four engines; and what an error may say of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass

from cells import N

MISTAKES = int(os.environ.get("WORKBENCH_TEST_MISTAKES", "200"))  # that are drawn from the catalogue


@dataclass(frozen=True)
class Mistake:
    """A cell that goes wrong.

    Args:
        code: what runs; ``{who}`` is the rank that differs from the rest.
        others: are the rest the ones that do not come?
        blame: may an error name a culprit at all? Else the ranks disagree, or nothing is wrong.
        fails: must some rank get an error?
        after: a second cell, as a learner would run it next.
        repair: what brings the engines back: nothing, ``rescue``, or a cell.
        waits: the line of the cell in which ranks wait for others.
        raises: the line whose exception a rank does not catch.
    """

    code: str
    others: bool = False
    blame: bool = True
    fails: bool = True
    after: Mistake | None = None
    repair: str = ""
    waits: int = 0
    raises: int = 0

    def culprits(self, who: int) -> Set[int]:
        """The ranks that an error may name."""
        return set() if not self.blame else set(range(N)) - {who} if self.others else {who}


DELETE = (
    "import sys\nif rank == {who}:\n    for name in [m for m in sys.modules if m.partition('.')[0] == 'workbench']:\n"
)
AGAIN = "import workbench as hvd\nhvd.init()\nhvd.allreduce(x)"
DEEP = (
    "def down(n):\n    return along(n)\ndef along(n):\n    return down(n + 1)\n"  # which IPython does not fold
    "if rank == {who}:\n    down(0)\n"
)
THREADS = "hvd.shutdown()\nimport threading\nall4 = [threading.Thread(target=hvd.init) for _ in range(4)]\n"
TORCH = "if rank == {who}:\n    import torch\n    torch.ones(2) @ torch.ones(3)\n"
LATE = "if rank == {who}:\n    time.sleep(1.5)\n"
CATALOGUE = (
    Mistake("if rank == {who}:\n    hvd.allreduce(x)", others=True, waits=2),
    Mistake("if rank != {who}:\n    hvd.allreduce(x, name='t')", waits=2),
    Mistake("if rank == {who}:\n    1 / 0\nhvd.allreduce(x)", raises=2, waits=3),
    Mistake("hvd.allreduce(x)\nif rank == {who}:\n    1 / 0\nhvd.broadcast(x, 0)", raises=3, waits=4),
    Mistake("for i in range(3 + (rank == {who})):\n    hvd.allreduce(x, name=f's{{i}}')", others=True, waits=2),
    Mistake("for i in range(3 - (rank == {who})):\n    hvd.allreduce(x)", waits=2),
    Mistake("hvd.allreduce(x, name='odd' if rank == {who} else 'even')", blame=False, waits=1),
    Mistake("hvd.allreduce(x[:2] if rank == {who} else x, name='shape')", blame=False),
    Mistake("(hvd.allgather if rank == {who} else hvd.allreduce)(x, name='verb')", blame=False),
    Mistake("hvd.broadcast(x, int(rank == {who}), name='root')", blame=False),
    Mistake("hvd.barrier() if rank == {who} else hvd.allreduce(x)", blame=False, waits=1),
    Mistake("if rank == {who}:\n    1 / 0\nhvd.join()", raises=2, waits=3),
    Mistake("if rank != {who}:\n    hvd.join()", waits=2),
    Mistake("if rank == {who}:\n    raise SystemExit('enough')\nhvd.allreduce(x)", raises=2, waits=3),
    Mistake(LATE + "    raise ValueError('late')\nhvd.allreduce(x)", raises=3, waits=4),
    Mistake(LATE + "hvd.allreduce(x)", fails=False),
    Mistake(TORCH + "hvd.allreduce(x)", raises=3, waits=4),
    Mistake(DEEP + "hvd.allreduce(x)", raises=6, waits=7),
    Mistake("hvd.allreduce_async(x, name='left') if rank == {who} else None\n1 / (rank - {who})", raises=2),
    Mistake("if rank == {who}:\n    hvd.shutdown()", fails=False, after=Mistake(AGAIN, waits=3), repair="rescue"),
    Mistake("hvd.shutdown()\nif rank == {who}:\n    hvd.init()", others=True, repair="hvd.init()"),
    Mistake("hvd.shutdown()\nif rank != {who}:\n    hvd.init()", repair="hvd.init()"),
    Mistake(
        DELETE + "        del sys.modules[name]", fails=False, after=Mistake(AGAIN, raises=2, waits=3), repair="rescue"
    ),
    Mistake(THREADS + "[t.start() for t in all4]\n[t.join() for t in all4]\nhvd.allreduce(x)", fails=False),
    Mistake("if rank == {who}:\n    os.kill(os.getpid(), 9)\nhvd.allreduce(x)", repair="rescue"),
    Mistake("if rank == {who}:\n    os._exit(3)\nhvd.allreduce(x)", repair="rescue"),
)

_RANKS = r"[Rr]anks? (\d+(?:, \d+)*)"
_BLAMED = re.compile(_RANKS + " (?:is|are|raised|has left|was lost)")
_ROW = re.compile(r"^  ranks? (\d+(?:, \d+)*): (.*)$", re.MULTILINE)
_WAITS = re.compile(r"waiting.* in the cell, line (\d+): (.*)")
_RAISED = re.compile(r'^  File "the cell", line (\d+), in .*\n    (.*)$', re.MULTILINE)


def false_words(mistake: Mistake, who: int, rank: int, text: str) -> Iterator[str]:
    """What an error on a rank says that was not planted: a rank or a line, in each of its lines.

    Args:
        mistake: what was run.
        who: the rank that differs.
        rank: the one with the error.
        text: of the error.
    """
    lines = ["", *map(str.strip, mistake.code.format(who=who).splitlines())]
    culprits = mistake.culprits(who)
    blamed = set().union(*map(_numbers, _BLAMED.findall(text.partition("\n")[0])))
    if blamed - culprits or (mistake.blame and rank not in culprits and not blamed):
        yield f"ranks {sorted(blamed)} are blamed, not {sorted(culprits)}"
    named: list[int] = []
    for ranks, does in ((_numbers(ranks), does) for ranks, does in _ROW.findall(text)):
        named += ranks
        if ranks != {who} and who in ranks:
            yield f"rank {who} does what others do: {does}"
        if (waits := _WAITS.match(does)) and (ranks & culprits or not _is_line(waits, mistake.waits, lines)):
            yield f"ranks {sorted(ranks)} do not wait there: {does}"
        if does.startswith(("idle", "raised", "left")) and ranks - culprits:
            yield f"ranks {sorted(ranks - culprits)} are not the culprits: {does}"
    if len(named) > len({*named}):
        yield f"a rank is in two rows: {named}"
    raised = list(_RAISED.finditer(text))
    if raised and not _is_line(raised[0], mistake.raises, lines):
        yield f"the exception is of line {mistake.raises}: {raised[0][0]}"
    yield from (f"no such line: {each[0]}" for each in raised[1:] if not _is_line(each, int(each[1]), lines))


def _numbers(ranks: str) -> set[int]:
    return set(map(int, ranks.split(", ")))


def _is_line(found: re.Match[str], number: int, lines: list[str]) -> bool:
    """Does it have the number and the words of this line of the cell?"""
    return (int(found[1]), found[2].strip()) == (number, lines[number])
