"""``%%px`` cells in a notebook: output, signs of life, Ctrl-C, questions of ranks, names of engines, and a death."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_kernel import LiveKernel, Message, last, live_kernel, rows, sums

from workbench.cluster.names import for_engines

pytestmark = [pytest.mark.usefixtures("forked_engines"), pytest.mark.integration, pytest.mark.parallel]


SUM = "ranks 0-2", "12.0"
STOPS = "%%px\ndef double(x):\n    y = 2 * x\n    breakpoint()\n    return y\n"


@pytest.fixture(scope="module")
def kernel() -> Iterator[LiveKernel]:
    """A notebook with three ranks."""
    with live_kernel(3) as kernel:
        yield kernel


def test_output_comes_while_the_cell_runs(kernel: LiveKernel, tmp_path: Path) -> None:
    """The first line is shown though no rank can end before it is: each waits for a file that its reader makes."""
    seen = tmp_path / "seen"

    def look(message: Message) -> None:
        if "first" in message.text:
            seen.touch()

    found = kernel.run(
        f"%%px\nimport pathlib\nprint('first')\nwhile not pathlib.Path({str(seen)!r}).exists(): time.sleep(0.01)\n"
        "print('rank', hvd.rank())",
        look,
    )
    assert rows(found[-1]) == [("ranks 0-2", "first"), *((f"rank {r}", f"rank {r}") for r in range(3))]
    assert [each.kind for each in found[:2]] == ["display_data", "update_display_data"]


def test_nobody_looks(kernel: LiveKernel) -> None:
    """Without somebody who can be asked, outputs come at the end, grouped by kind, as nbval compares them."""
    found = kernel.run("%%px\nprint('rank', hvd.rank())", asked=False)
    assert [(each.kind, each.text) for each in found] == [
        ("stream", "".join(f"[stdout:{rank}] \nrank {rank}\n" for rank in range(3)))
    ]


def test_a_long_cell_says_who_is_missing(kernel: LiveKernel, tmp_path: Path) -> None:
    """One line below the cell, while it runs: who waits, for whom, in what; and where that one is."""
    seen = tmp_path / "seen"
    lines = list[str]()

    def look(message: Message) -> None:
        if "wait for" in message.text:
            lines.append(message.text)
            seen.touch()

    kernel.run(
        f"%%px\nimport pathlib\nif hvd.rank() == 1:\n"
        f"    while not pathlib.Path({str(seen)!r}).exists():\n        time.sleep(0.01)\n"
        "hvd.allreduce(np.ones(3), name='x').sum()",
        look,
    )
    assert "ranks 0, 2 wait for rank 1 in 'allreduce.x'" in lines[0]
    assert "rank 1: in the cell, line" in lines[0]


def test_ctrl_c_says_where_the_ranks_were(kernel: LiveKernel) -> None:
    """The stop button: who waited for whom and where, and the next cell is right."""

    def look(message: Message) -> None:
        if "wait for" in message.text and message.kind != "stream":
            kernel.interrupt()

    found = kernel.run("%%px\nif hvd.rank() == 1:\n    time.sleep(60)\nhvd.allreduce(np.ones(3), name='x')", look)
    said = next(each.text for each in found if "Interrupted." in each.text)
    assert "ranks 0, 2 wait for rank 1 in 'allreduce.x'" in said
    assert "rank 1: in the cell, line 2: time.sleep(60)" in said
    assert rows(kernel.run("%px float(hvd.allreduce(np.ones(3), op=hvd.Sum).sum())")[-1]) == [("ranks 0-2", "")]


def test_some_ranks_only(kernel: LiveKernel) -> None:
    """``%%rank`` runs a cell on those that it names, and refuses others."""
    assert rows(kernel.run("%%rank 1,2\nprint(hvd.size())")[-1]) == [("ranks 1, 2", "3")]
    assert "there is no rank 7; the ranks are 0-2" in kernel.run("%%rank 7\n1")[-1].text
    assert "%%rank needs ranks" in kernel.run("%%rank\n1")[-1].text


def test_an_error_comes_with_what_was_printed_before(kernel: LiveKernel) -> None:
    """What ranks have printed stays below the cell, and the error is shown once."""
    found = kernel.run("%%px\nprint('before')\n1 / 0")
    assert rows([each for each in found if each.kind.endswith("display_data")][-1]) == [("ranks 0-2", "before")]
    (error,) = [each for each in found if each.kind == "error"]
    assert error.text.count("ZeroDivisionError: division by zero") <= 1
    assert "ranks 0, 1, 2:" in error.text


def test_an_error_of_ours_names_its_page(kernel: LiveKernel) -> None:
    """Once, below the error, and only where somebody reads it: compared outputs stay as they are."""
    cell = "%%px\nif hvd.rank() == 0:\n    hvd.allreduce(np.ones(1))"
    for asked in (True, False):
        (error,) = [each for each in kernel.run(cell, asked=asked) if each.kind == "error"]
        assert error.text.count("!workbench explain MissingRanksError") == asked


def test_init_in_the_notebook_itself(kernel: LiveKernel) -> None:
    """Its user is told, once, that this process is no engine."""
    told = "init() was called in the notebook's own process"
    found = kernel.run("import workbench\nworkbench.init()")
    assert [told in each.text for each in found] == [True]
    assert kernel.run("workbench.shutdown()") == []


def test_figures_of_ranks(kernel: LiveKernel) -> None:
    """Rich output belongs to its rank; what all ranks show alike is shown once."""
    cell = "%%px\nfrom IPython.display import HTML, display\ndisplay(HTML('<i>all</i>'))\nHTML(f'<b>{hvd.rank()}</b>')"
    found = kernel.run(cell)[-1]
    html = found.content["data"]["text/html"]
    assert html.count("<i>all</i>") == 1
    assert all(f"<b>{rank}</b>" in html for rank in range(3))


# --- breakpoint() and input() -------------------------------------------------------------------------


def questions(found: list[Message]) -> list[str]:
    """The prompts, in order."""
    return [each.text for each in found if each.kind == "input_request"]


def test_one_rank_stops_and_the_others_wait(kernel: LiveKernel) -> None:
    """The debugger shows a variable of its rank; the others wait in their collective, which then has the right sum."""
    cell = f"{STOPS}if hvd.rank() == 1:\n    double(21)\nprint(float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0]))"
    found = kernel.run(cell, answers=["p y", "c"])
    assert questions(found) == ["rank 1 (Pdb) "] * 2
    assert ("ranks 0-2", "3.0") in last(found)
    assert any(who == "rank 1" and text.endswith("42") for who, text in last(found))
    sums(kernel, *SUM)


def test_all_ranks_stop(kernel: LiveKernel) -> None:
    """``rank 2`` asks another one, ``all c`` lets all go on."""
    found = kernel.run(f"{STOPS}print(double(hvd.rank()))", answers=["rank 2", "p 'here', y", "all c"])
    assert questions(found)[1:] == ["rank 2 of 0-2 (Pdb) "] * 2
    assert any(who == "rank 2" and "('here', 4)" in text for who, text in last(found))
    sums(kernel, *SUM)


def test_the_debugger_is_left(kernel: LiveKernel) -> None:
    """``q`` ends the cell of its rank with an error, and no other cell."""
    found = kernel.run(f"{STOPS}if hvd.rank() == 0:\n    double(1)", answers=["q"])
    assert "BdbQuit" in "".join(each.text for each in found if each.kind == "error")
    sums(kernel, *SUM)


def test_ctrl_c_while_the_debugger_asks(kernel: LiveKernel) -> None:
    """The stop button ends the question and the cell."""

    def look(message: Message) -> None:
        if message.kind == "input_request":
            kernel.interrupt()

    kernel.client.execute_interactive(
        f"{STOPS}if hvd.rank() == 0:\n    double(1)\nhvd.allreduce(np.ones(1))",
        timeout=50,
        output_hook=lambda message: None,
        stdin_hook=lambda message: look(Message(message["msg_type"], message["content"])),
    )
    sums(kernel, *SUM)


def test_post_mortem(kernel: LiveKernel) -> None:
    """``%debug`` on the rank whose cell has failed shows its variables."""
    kernel.run("%%rank 1\ndef fails():\n    inside = 'seen'\n    return 1 / 0\nfails()")
    found = kernel.run("%%rank 1\n%debug", answers=["p inside", "q"])
    assert any("'seen'" in text for _, text in last(found))
    sums(kernel, *SUM)


def test_input_on_ranks(kernel: LiveKernel) -> None:
    """Each rank gets its own answer; without a user it is an error that says what to do."""
    found = kernel.run("%px name = input('name? '); print(name)", answers=["a", "b", "c"])
    assert questions(found) == [f"rank {rank} name? " for rank in range(3)]
    assert last(found) == [(f"rank {rank}", name) for rank, name in enumerate("abc")]
    found = kernel.run("%px input()", asked=False)
    assert "nobody can be asked" in "".join(each.text for each in found if each.kind == "error")


def test_nobody_to_ask(kernel: LiveKernel) -> None:
    """``breakpoint()`` is skipped with a warning, and the cell goes on."""
    found = kernel.run("%%px\nbreakpoint()\nprint('on')", asked=False)
    text = "".join(each.text for each in found)
    assert text.count("breakpoint() was skipped: nobody can be asked") == 3
    assert text.count("\non\n") == 3


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_hundred_sessions(kernel: LiveKernel) -> None:
    """Break, look, continue, and the next cell is right, a hundred times."""
    for i in range(100):
        cell = f"{STOPS}if hvd.rank() == {i % 3}:\n    double({i})\nprint(float(hvd.allreduce(np.ones(1))[0]))"
        found = kernel.run(cell, answers=["p y", "n", "c"])
        assert any(who == f"rank {i % 3}" and f"\n{2 * i}\n" in f"\n{text}\n" for who, text in last(found))
        sums(kernel, *SUM)


# --- names of engines ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def names(kernel: LiveKernel) -> LiveKernel:
    """The ranks have an array; rank 1 has a name of its own."""
    own = "mine, only_on_one = 'text', 1"
    kernel.run(f"%%px\nweights = np.ones((3, 4))\nmine = 7\nif hvd.rank() == 1:\n    {own}")
    return kernel


def complete(kernel: LiveKernel, code: str) -> tuple[list[str], str]:
    """The matches, and the text that they replace."""
    found: dict[str, Any] = kernel.client.complete(code, reply=True, timeout=20)["content"]
    return found["matches"], code[found["cursor_start"] : found["cursor_end"]]


def inspect(kernel: LiveKernel, code: str) -> str:
    """What Shift+Tab shows."""
    found: dict[str, Any] = kernel.client.inspect(code, reply=True, timeout=20)["content"]
    return str(found["data"]["text/plain"]) if found["found"] else ""


@pytest.mark.parametrize(
    ("code", "match", "replaced"),
    [
        ("%%px\nwei", "weights", "wei"),
        ("%%px --targets 1\nx = 1\nweights.resh", "reshape", "resh"),
        ("%%rank 1\nonly_on", "only_on_one", "only_on"),
        ("a = 1\n%px wei", "weights", "wei"),
    ],
)
def test_names_of_engines_are_completed(names: LiveKernel, code: str, match: str, replaced: str) -> None:
    """From a cell or a line for engines; a name that one rank has is there, too.

    An engine that does not answer within a moment is not waited for: on a busy machine it takes more than one try.
    """
    until = time.monotonic() + 10
    while not (found := complete(names, code))[0] and time.monotonic() < until:
        pass
    assert found == ([match], replaced)


def test_the_notebook_completes_its_own(names: LiveKernel) -> None:
    """Other cells, and the first line of a cell for engines, are the kernel's."""
    assert complete(names, "c.resc")[0] == ["rescue"]
    assert "weights" not in complete(names, "wei")[0]


def test_what_an_object_is(names: LiveKernel) -> None:
    """Equal objects are described once; where ranks differ, each is; a name that is nowhere is not found."""
    text = inspect(names, "%%px\nweights")
    assert text.count("String form") == 1
    assert "rank" not in text.partition("Docstring")[0]
    text = inspect(names, "%%px\nmine")
    assert text.index("ranks 0, 2:") < text.index("int(") < text.index("rank 1:") < text.index("str(")
    assert inspect(names, "%%px\nnowhere") == ""


def test_a_busy_engine_answers(names: LiveKernel) -> None:
    """While a rank computes in Python, completions come all the same."""
    names.run("%%px --noblock\nbusy = True\nwhile busy:\n    pass")
    try:
        assert complete(names, "%%px\nwei")[0] == ["weights"]
    finally:
        names.run("c.client.send_signal('SIGINT', block=True)\nc.view.apply_sync(int)")


def test_question_mark(names: LiveKernel) -> None:
    """``x?`` in a cell shows the text with the cell's output."""
    assert "ndarray" in names.run("%%rank 0\nweights?")[-1].text


@pytest.mark.parametrize(
    ("code", "position", "begin"),
    [
        ("%%px", 4, None),
        ("%%px\n", 5, 5),
        ("%%px\nx", 3, None),
        ("x\n%px y", 4, None),
        ("x\n%px y", 6, 6),
        ("x", 1, None),
    ],
)
def test_where_the_code_of_engines_begins(code: str, position: int, begin: int | None) -> None:
    """Behind the first line of a cell, and behind the magic of a line."""
    assert for_engines(code, position) == begin


# --- the end of an engine, and clusters that a cell starts --------------------------------------------


def shown(kernel: LiveKernel, cell: str) -> tuple[str, str]:
    """What nobody who could be asked sees of a cell: its error, and what it printed."""
    found = kernel.run(cell, asked=False)
    errors = "\n".join(each.text for each in found if each.kind == "error")
    return re.sub(r"\x1b\[[0-9;]*m", "", errors), "".join(each.text for each in found if each.kind == "stream")


def test_an_engine_that_dies_is_named_until_the_rescue(kernel: LiveKernel) -> None:
    """A mistake, a call alone, and a death: one message each; then each cell says who is gone, and what to do.

    After rescue() there is nothing to say.
    """
    mistake, _ = shown(kernel, "%%px\nif hvd.rank() == 1:\n    settings['lr']\nhvd.allreduce(np.ones(3), name='x')")
    lines = mistake.splitlines()
    assert lines[0] == "rank 1:"
    assert sum("NameError: name 'settings' is not defined" in line for line in lines) == 1
    assert "ranks 0, 2: RankFailedError: Rank 1 raised an exception" in lines[-1]
    alone, _ = shown(kernel, "%%px\nif hvd.rank() == 0:\n    hvd.allreduce(np.ones(3), name='lonely')")
    assert alone.startswith("rank 0:")
    assert "Ranks 1, 2 are idle" in alone
    assert "workbench/job/api.py" not in alone
    error, text = shown(kernel, "%%px\nprint(hvd.allreduce(np.ones(3), op=hvd.Sum))")
    assert (error, text.count("[3. 3. 3.]")) == ("", 3)
    died, _ = shown(
        kernel, "%%px\nimport os\nif hvd.rank() == 1:\n    os._exit(3)\nhvd.allreduce(np.ones(3), name='x')"
    )
    gone = "engine 1 is gone: call engines.rescue() in a cell without %%px."
    first, nothing, others = died.splitlines()
    assert (first, nothing) == (gone, "")
    assert others.startswith("  ranks 0, 2: PeerLostError: Rank 1 was lost: its process ")
    # Before that stands what was in flight, if they had sent anything before it died.
    assert others.endswith(" Call engines.rescue() in a cell without %%px.")
    for cell in ("%%px\nprint(1)", "%px print(1)", "c.view['np']"):
        assert shown(kernel, cell) == (f"PeerLostError: {gone}", "")
    error, text = shown(kernel, "c.rescue()")
    assert not error
    assert "rank 1 is gone" in text
    assert shown(kernel, "%px print(1)")[1].count("1\n") == 3


def test_a_setting_starts_a_cluster_for_a_cell() -> None:
    """Where there is none: before ``up``, and after ``down``; the cell runs as it is written.

    Without the setting the magics name the function to call.
    """
    kernel = LiveKernel()
    try:
        kernel.run("from workbench import cluster")
        assert "call cluster.up()" in kernel.run("%%px\n1")[-1].text
        assert "call cluster.up()" in kernel.run("%%rank 1\n1")[-1].text
        kernel.run("%env WORKBENCH_UP=two")
        assert "WORKBENCH_UP='two' is no number of engines" in kernel.run("%%px\n1")[-1].text
        kernel.run("%env WORKBENCH_UP=1")
        found = kernel.run("%%rank 0\nx = 3\nprint(f'{x} on {mpi_rank}')")
        assert any("1 engine ready" in each.text for each in found)
        assert rows(found[-1]) == [("rank 0", "3 on 0")]
        kernel.run("cluster.down()\nx = 'of the notebook'")
        found = kernel.run("%px x = 4; print(f'{x} $x')")
        assert any("1 engine ready" in each.text for each in found)
        assert rows(found[-1]) == [("rank 0", "4 $x")]
        kernel.run("cluster.down()")
    finally:
        kernel.client.stop_channels()
        kernel.manager.shutdown_kernel(now=True)
