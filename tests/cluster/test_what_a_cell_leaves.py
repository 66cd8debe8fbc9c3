"""What a cell leaves behind: a broken ``sys.stdout``, threads that print, children, an alarm, and cells behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_kernel import LiveKernel, Message, last, live_kernel

pytestmark = [pytest.mark.integration, pytest.mark.parallel]

UNTIL_SEEN = """%%px
import pathlib, threading
def late():
    while not pathlib.Path({seen!r}).exists(): time.sleep(0.01)
    {do}
threading.Thread(target=late).start()
{before}"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[LiveKernel]:
    """A notebook with two ranks."""
    with live_kernel(2) as kernel:
        yield kernel


@pytest.fixture(autouse=True)
def works(kernel: LiveKernel) -> Iterator[None]:
    """After each test the next cell prints the right sum."""
    yield
    found = kernel.run("%px print(float(hvd.allreduce(np.full(2, hvd.rank() + 1.0), op=hvd.Sum).sum()))")
    assert last(found) == [("ranks 0, 1", "6.0")]


def comes(kernel: LiveKernel, request: str, text: str) -> None:
    """What is shown below the cell of a request has a text, at once or later."""
    while True:
        message = kernel.client.get_iopub_msg(timeout=40)
        shown = Message(message["msg_type"], message["content"])
        if shown.kind.endswith("display_data") and text in shown.text:
            assert message["parent_header"]["msg_id"] == request
            return


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("sys.stdout = None", "no attribute 'write'"),
        ("import io\nsys.stdout = io.StringIO()\nsys.stdout.close()", "closed file"),
        ("class Tee:\n    def write(self, text): return len(text)\nsys.stdout = Tee()", "no attribute 'flush'"),
        ("sys.stdout.close()\nsys.stderr.close()\nprint('goes on')", "goes on"),
    ],
)
def test_a_broken_stdout(kernel: LiveKernel, cell: str, told: str) -> None:
    """The cell is answered, whether it fails or not, and says what was broken."""
    for end in ("", "\n1 / 0"):
        found = kernel.run(f"%%px\n{cell}{end}")
        assert told in "".join(text for _, text in last(found))
        assert [each.kind for each in found if each.kind == "error"] == ["error"] * bool(end)


@pytest.mark.parametrize(("end", "code"), [("", 0), ("if not child: 1 / 0", 1), ("if not child: sys.exit()", 1)])
def test_a_forked_child_ends_with_its_cell(kernel: LiveKernel, end: str, code: int) -> None:
    """It is no second engine."""
    kernel.run(f"%%px\nimport os\nchild = os.fork()\n{end}")
    assert last(kernel.run("%px print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))")) == [
        ("ranks 0, 1", str(code))
    ]


@pytest.mark.parametrize("word", ["quit", "exit"])
def test_quit_ends_its_cell_and_no_engine(kernel: LiveKernel, word: str) -> None:
    """What comes behind it in the cell is not run, and an error says why; the rank stays."""
    found = kernel.run(f"%%px\nleft = 1\n{word}()\nleft = 2")
    assert "do not end an engine" in "".join(each.text for each in found)
    assert last(kernel.run("%px print(left)")) == [("ranks 0, 1", "1")]


def test_an_exception_with_a_text_of_megabytes(kernel: LiveKernel) -> None:
    """Its beginning is shown, and how much more there is."""
    text = "".join(each.text for each in kernel.run("%%px\nraise ValueError('y' * 20_000_000)"))
    assert "more characters" in text
    assert len(text) < 1_000_000


def test_characters_of_a_child_process_are_whole(kernel: LiveKernel) -> None:
    """However its output is cut into pieces."""
    cell = """%%px
import subprocess
subprocess.run([sys.executable, "-c", "import os; [os.write(1, b'x' + 1500 * '\\u00e4'.encode()) for i in range(9)]"])
os.write(1, b"\\n"); print()"""
    text = "".join(text for _, text in last(kernel.run(cell)))
    assert "\ufffd" not in text


@pytest.mark.parametrize("before", ["print('own')", ""])
def test_a_thread_prints_after_its_cell(kernel: LiveKernel, tmp_path: Path, before: str) -> None:
    """It is shown below that cell, and so is what it raises, though the notebook has run another one."""
    seen = tmp_path / "seen"
    request = kernel.client.execute(UNTIL_SEEN.format(seen=str(seen), do="print('late'); 1 / 0", before=before))
    kernel.client.get_shell_msg(timeout=40)
    kernel.client.execute("c.view['mpi_rank']")
    kernel.client.get_shell_msg(timeout=40)
    seen.touch()
    comes(kernel, request, "ZeroDivisionError: division by zero")


def test_an_alarm_between_cells(kernel: LiveKernel) -> None:
    """What its handler raises is shown below the last cell, and the engine lives."""
    cell = """%%px
import signal
def late(number, frame): raise TimeoutError("the alarm")
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, 0.3)"""
    request = kernel.client.execute(cell)
    kernel.client.get_shell_msg(timeout=40)
    comes(kernel, request, "TimeoutError: the alarm")


def test_the_stop_button_stops_run_all(kernel: LiveKernel) -> None:
    """Cells that wait behind the one that was stopped do not run."""
    kernel.client.execute("%%px\nprint('begun', flush=True)\ntime.sleep(60)", allow_stdin=True)
    kernel.client.execute("ran = True")
    while True:
        message = kernel.client.get_iopub_msg(timeout=40)
        if message["msg_type"] == "display_data" and "begun" in message["content"]["data"]["text/plain"]:
            break
    kernel.interrupt()
    assert [kernel.client.get_shell_msg(timeout=40)["content"]["status"] for _ in range(2)] == ["error", "aborted"]


def test_a_rank_that_ctrl_c_does_not_end_is_named(kernel: LiveKernel) -> None:
    """It swallows the exception; the cell ends, and says which rank goes on and what to do."""
    cell = """%%px
import signal
if hvd.rank() == 1:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
print('begun', flush=True)
time.sleep(14)"""

    def look(message: Message) -> None:
        if message.kind == "display_data" and "begun" in message.text:
            kernel.interrupt()

    (error,) = [each for each in kernel.run(cell, look) if each.kind == "error"]
    assert "rank 1 has not ended by Ctrl-C" in error.text
    assert "engines.rescue()" in error.text
