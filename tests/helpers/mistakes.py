"""Cells that go wrong, as learners write them, for four engines."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from cells import N


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
    """

    code: str
    others: bool = False
    blame: bool = True
    fails: bool = True
    after: str = ""
    repair: str = ""

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
CATALOGUE = (
    Mistake("if rank == {who}:\n    hvd.allreduce(x)", others=True),
    Mistake("if rank != {who}:\n    hvd.allreduce(x, name='t')"),
    Mistake("if rank == {who}:\n    1 / 0\nhvd.allreduce(x)"),
    Mistake("hvd.allreduce(x)\nif rank == {who}:\n    1 / 0\nhvd.broadcast(x, 0)"),
    Mistake("for i in range(3 + (rank == {who})):\n    hvd.allreduce(x, name=f's{{i}}')", others=True),
    Mistake("for i in range(3 - (rank == {who})):\n    hvd.allreduce(x)"),
    Mistake("hvd.allreduce(x, name='odd' if rank == {who} else 'even')", blame=False),
    Mistake("hvd.allreduce(x[:2] if rank == {who} else x, name='shape')", blame=False),
    Mistake("(hvd.allgather if rank == {who} else hvd.allreduce)(x, name='verb')", blame=False),
    Mistake("hvd.broadcast(x, int(rank == {who}), name='root')", blame=False),
    Mistake("hvd.barrier() if rank == {who} else hvd.allreduce(x)", blame=False),
    Mistake("if rank == {who}:\n    1 / 0\nhvd.join()"),
    Mistake("if rank != {who}:\n    hvd.join()"),
    Mistake("if rank == {who}:\n    raise SystemExit('enough')\nhvd.allreduce(x)"),
    Mistake("if rank == {who}:\n    time.sleep(1.5)\n    raise ValueError('late')\nhvd.allreduce(x)"),
    Mistake("if rank == {who}:\n    time.sleep(1.5)\nhvd.allreduce(x)", fails=False),
    Mistake("if rank == {who}:\n    import torch\n    torch.ones(2) @ torch.ones(3)\nhvd.allreduce(x)"),
    Mistake(DEEP + "hvd.allreduce(x)"),
    Mistake("hvd.allreduce_async(x, name='left') if rank == {who} else None\n1 / (rank - {who})"),
    Mistake("if rank == {who}:\n    hvd.shutdown()", fails=False, after=AGAIN, repair="rescue"),
    Mistake("hvd.shutdown()\nif rank == {who}:\n    hvd.init()", others=True, repair="hvd.init()"),
    Mistake("hvd.shutdown()\nif rank != {who}:\n    hvd.init()", repair="hvd.init()"),
    Mistake(DELETE + "        del sys.modules[name]", fails=False, after=AGAIN, repair="rescue"),
    Mistake(THREADS + "[t.start() for t in all4]\n[t.join() for t in all4]\nhvd.allreduce(x)", fails=False),
    Mistake("if rank == {who}:\n    os.kill(os.getpid(), 9)\nhvd.allreduce(x)", repair="rescue"),
    Mistake("if rank == {who}:\n    os._exit(3)\nhvd.allreduce(x)", repair="rescue"),
)
