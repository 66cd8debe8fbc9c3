"""No cell hangs: what goes wrong in a cell ends on all ranks with a reason that is true, and the next cell is right.

The ranks are threads; tests/integration has the same of real engines, once, with what only processes can do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from cells import WORKS
from cells_in_threads import Notebook
from mistakes import CATALOGUE, Mistake, false_words

N = 4
# What a thread cannot do for a process: end it, leave its job, or forget its modules.
OF_PROCESSES = ("os.", "shutdown", "sys.modules", "SystemExit", "import torch")
MISTAKES = [one for one in CATALOGUE if not any(word in one.code for word in OF_PROCESSES)]


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    """Four ranks."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HEARTBEAT_S", "FAILED_RANK_GRACE_S"):
            patch.setenv(f"WORKBENCH_{name}", "0.1")
        made = Notebook(N)
        assert made.values("hvd.allreduce(x, op=hvd.Sum).tolist()") == [[6.0] * 3] * N
        yield made
        made.close()


@pytest.fixture(autouse=True)
def next_cell_is_right(notebook: Notebook) -> Iterator[None]:
    """A hundred collectives, named and not, with the right values, whatever was wrong before."""
    yield
    assert notebook.run(WORKS) == {}
    assert notebook.values("wrong") == [[]] * N


@pytest.mark.parametrize(("number", "mistake"), list(enumerate(MISTAKES)), ids=[one.code[:50] for one in MISTAKES])
def test_a_mistake_ends_with_its_reason(notebook: Notebook, number: int, mistake: Mistake) -> None:
    """Every rank and every line that an error names is the one that was planted."""
    who = number % N
    errors = notebook.run(mistake.code.format(who=who))
    assert bool(errors) == mistake.fails, errors
    for rank, (kind, text) in errors.items():
        if mistake.raises and rank == who:
            continue  # its own exception
        assert kind.endswith("Error"), kind
        assert list(false_words(mistake, who, rank, text)) == [], text


def test_a_cell_on_one_rank(notebook: Notebook) -> None:
    """A collective that the notebook has sent to one rank alone: the others are idle, and it knows at once."""
    errors = notebook.run("hvd.allreduce(x)", ranks=[2])
    assert errors.keys() == {2}
    assert "Ranks 0, 1, 3 are idle" in errors[2][1]


def test_cells_that_are_sent_apart(notebook: Notebook) -> None:
    """One call for each rank, and a moment between them: ranks that get the cell later are waited for."""
    sent = {}
    for rank in range(N):
        sent |= notebook.send("total = hvd.allreduce(x, op=hvd.Sum, name='apart')", [rank])
        time.sleep(0.05)
    assert notebook.collect(sent) == {}
    assert notebook.values("total.tolist()") == [[6.0] * 3] * N


def test_unnamed_tensors_after_a_caught_error(notebook: Notebook) -> None:
    """In the same cell, and in the next one: each meets its own, whatever one rank had called before alone."""
    alone = "try:\n    hvd.allreduce(x, op=hvd.Sum) if rank == 1 else hvd.allreduce(x, name='other')\n"
    caught = f"{alone}except hvd.errors.CollectiveError:\n    pass\n"
    sums = "sums = [float(hvd.allreduce(np.full(1, 10.0**i), op=hvd.Sum)[0]) for i in range(4)]"
    assert notebook.run(caught + sums) == {}
    assert notebook.values("sums") == [[4.0, 40.0, 400.0, 4000.0]] * N
    assert notebook.run(sums) == {}
    assert notebook.values("sums") == [[4.0, 40.0, 400.0, 4000.0]] * N


def test_what_a_cell_leaves_in_flight(notebook: Notebook) -> None:
    """A handle that one rank forgot meets nothing of a later cell."""
    assert notebook.run("left = hvd.allreduce_async(x, op=hvd.Sum) if rank == 3 else None") == {}
    assert notebook.values("hvd.allreduce(x, op=hvd.Sum).tolist()") == [[6.0] * 3] * N
    errors = notebook.run("left.wait() if left else None")
    assert errors.keys() <= {3}
