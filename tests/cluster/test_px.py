"""``%%px`` cells in a notebook: output as it comes, a sign of life, where the ranks were when Ctrl-C came."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_kernel import LiveKernel, Message, live_kernel, rows

pytestmark = [pytest.mark.integration, pytest.mark.parallel]


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
        kernel.run("%env WORKBENCH_UP=2")
        found = kernel.run("%%rank 1\nx = 3\nprint(f'{x} on {mpi_rank}')")
        assert any("2 engines ready" in each.text for each in found)
        assert rows(found[-1]) == [("rank 1", "3 on 1")]
        kernel.run("cluster.down()\nx = 'of the notebook'")
        found = kernel.run("%px x = 4; print(f'{x} $x')")
        assert any("2 engines ready" in each.text for each in found)
        assert rows(found[-1]) == [("ranks 0, 1", "4 $x")]
        kernel.run("cluster.down()")
    finally:
        kernel.client.stop_channels()
        kernel.manager.shutdown_kernel(now=True)
