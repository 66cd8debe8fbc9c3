"""What no notebook should bring down: floods, odd characters, widgets without end, what a cell leaves, a second one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from live_kernel import INIT, LiveKernel, Message, last, live_kernel, sums
from thorough import once_more

pytestmark = [pytest.mark.usefixtures("forked_engines"), pytest.mark.integration, pytest.mark.parallel]


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
    sums(kernel, "ranks 0, 1", "6.0")


def test_characters_that_no_text_has(kernel: LiveKernel) -> None:
    """Half a surrogate pair is shown as its number, bytes as what they are, commands to a terminal not at all."""
    cell = r"""%%px
print('before\ud800after', '\x1b[31mred\x1b[0m', '\x1b[2J\x1b[H\x00\x07here')
print(bytes(range(250, 256)).decode('latin1'), bytes([0, 255]))"""
    assert last(kernel.run(cell)) == [
        ("ranks 0, 1", "before\\ud800after \x1b[31mred\x1b[0m here\núûüýþÿ b'\\x00\\xff'")
    ]


def test_one_rank_floods(kernel: LiveKernel) -> None:
    """Ten million bytes a second: the others' text is kept; a file is named while the cell runs and at its end."""
    notes, most = list[str](), 0

    def look(message: Message) -> None:
        nonlocal most
        most = max(most, psutil.Process(kernel.manager.provisioner.pid).memory_info().rss)
        if message.kind == "update_display_data" and "the rest is in" in message.text:
            notes.append(message.text)

    before = psutil.Process(kernel.manager.provisioner.pid).memory_info().rss
    cell = """%%px
if hvd.rank() == 0:
    for i in range(20):
        sys.stdout.write(('y' * 99 + '\\n') * 10_000)
        time.sleep(0.1)
print('rank', hvd.rank(), 'is here')"""
    found = kernel.run(cell, look)
    (said,) = [each.text for each in found if each.kind == "stream"]
    file = Path(said.rpartition(" ")[2].strip())
    assert notes
    assert "[rank 0] " in file.read_text()[:9]
    assert "rank 0 is here" in file.read_text()[-50:]
    file.unlink()
    assert ("rank 1", "rank 1 is here") in last(found)
    assert most - before < 150_000_000


def test_what_is_replaced_is_not_kept(kernel: LiveKernel) -> None:
    """A bar that is drawn ten thousand times, and pages that are cleared, fill nothing; a line of a million is cut."""
    cell = """%%px
from IPython.display import clear_output
for i in range(50):
    clear_output(wait=True)
    print('page', i, 'w' * 100_000)
for i in range(10_000):
    sys.stdout.write(f'\\r{i}' + '#' * 80)"""
    found = kernel.run(cell)
    assert [each for each in found if each.kind == "stream"] == []
    ((who, text),) = last(found)
    assert (who, text.split()[1], text.rpartition("\n")[2].rstrip("#")) == ("ranks 0, 1", "49", "9999")
    found = kernel.run("%px sys.stdout.write('z' * 1_000_000)")
    assert "zz … and 995000 more characters" in found[-1].text
    assert len(json.dumps(found[-1].content)) < 1_100_000


@pytest.mark.parametrize("module", ["tqdm.auto", once_more("tqdm")])
def test_bars_of_ranks_are_one(kernel: LiveKernel, module: str) -> None:
    """As text and as widgets: the slowest rank's bar, with lines in their order; each widget where one says so."""
    cell = f"""%%px
from {module} import tqdm
for epoch in range(2):
    for i in tqdm(range(20), desc=f'epoch {{epoch}}'):
        time.sleep(0.04 * hvd.rank())
    print('done', epoch)"""
    found = kernel.run(cell)
    assert any("(the slowest: rank 1; the fastest, rank 0, is at 20)" in each.text for each in found)
    ((who, text),) = last(found)
    lines = [line.partition("|")[0] for line in text.strip().split("\n")]
    assert (who, lines) == ("ranks 0, 1", ["epoch 0: 100%", "done 0", "epoch 1: 100%", "done 1"])
    if module == "tqdm":
        assert len(found) < 30
        return
    assert not any("widget-view" in "".join(each.content.get("data", {})) for each in found)
    kernel.run("import os\nos.environ['WORKBENCH_BARS'] = 'each'")
    shown = [each.content["data"] for each in kernel.run("%px list(tqdm(range(3)))") if each.kind == "display_data"]
    assert sum("application/vnd.jupyter.widget-view+json" in each for each in shown) == 2
    kernel.run("del os.environ['WORKBENCH_BARS']")


def test_a_widget_that_is_set_without_end(kernel: LiveKernel) -> None:
    """Few messages come of many, the last state is among them, and the cell's text is not lost.

    They are fewer than what ZeroMQ keeps for a slow reader: of more, it drops some.
    """
    cell = """%%px
import ipywidgets
slider = ipywidgets.IntSlider()
for i in range(301):
    slider.value = i % 100
print('set')"""
    found = kernel.run(cell)
    assert last(found) == [("ranks 0, 1", "set")]
    assert len([each for each in found if each.kind == "comm_msg"]) < 300
    newest = dict[str, int]()
    came = [each.content for each in found if each.kind == "comm_msg"]
    while True:
        for content in came:
            if isinstance(value := content["data"]["state"].get("value"), int):
                newest[content["comm_id"]] = value
        if list(newest.values()) == [0, 0]:
            break
        # After the cell, too. As a page does, whatever cell it belongs to.
        message = kernel.client.get_iopub_msg(timeout=40)
        came = [message["content"]] if message["msg_type"] == "comm_msg" else []


def test_a_widget_that_raises(kernel: LiveKernel) -> None:
    """It is an error of the ranks that have it; a message to nobody is none."""
    cell = """%%px
from comm import create_comm
create_comm(target_name='nobody.has.this', data={}).send({'x': 1})
class Broken(ipywidgets.IntSlider):
    def open(self):
        raise RuntimeError('it is broken')
Broken()"""
    (error,) = [each for each in kernel.run(cell) if each.kind == "error"]
    assert "it is broken" in error.text


def test_autoreload(kernel: LiveKernel, tmp_path: Path) -> None:
    """A module that changes is loaded anew by notebook and ranks; of one with a mistake the old one stays."""
    module = tmp_path / "changes.py"
    module.write_text("def f():\n    return 'old'\n")
    begin = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n%load_ext autoreload\n%autoreload 2\nimport changes"
    kernel.run(begin)
    kernel.run(f"%%px\n{begin}")
    module.write_text("def f():\n    return 'new and longer'\n")
    assert last(kernel.run("%px print(changes.f())")) == [("ranks 0, 1", "new and longer")]
    assert kernel.run("print(changes.f())")[-1].text == "new and longer\n"
    module.write_text("def f(:\n")
    found = last(kernel.run("%px print(changes.f())"))
    for rank in "01":  # a row is of one rank or of both: they need not say it in one order
        said = "".join(text for who, text in found if rank in who)
        assert "SyntaxError" in said
        assert "new and longer" in said
    for cell in ("%autoreload 0", "%px %autoreload 0"):
        kernel.run(cell)


# --- what a cell leaves behind ------------------------------------------------------------------------


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
        once_more(
            "class Tee:\n    def write(self, text): return len(text)\nsys.stdout = Tee()", "no attribute 'flush'"
        ),
        ("sys.stdout.close()\nsys.stderr.close()\nprint('goes on')", "goes on"),
    ],
)
def test_a_broken_stdout(kernel: LiveKernel, cell: str, told: str) -> None:
    """The cell is answered, whether it fails or not, and says what was broken."""
    for end in ("", "\n1 / 0"):
        found = kernel.run(f"%%px\n{cell}{end}")
        assert told in "".join(text for _, text in last(found))
        assert [each.kind for each in found if each.kind == "error"] == ["error"] * bool(end)


@pytest.mark.parametrize(
    ("end", "code"), [("", 0), ("if not child: 1 / 0", 1), once_more("if not child: sys.exit()", 1)]
)
def test_a_forked_child_ends_with_its_cell(kernel: LiveKernel, end: str, code: int) -> None:
    """It is no second engine."""
    kernel.run(f"%%px\nimport os\nchild = os.fork()\n{end}")
    assert last(kernel.run("%px print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))")) == [
        ("ranks 0, 1", str(code))
    ]


@pytest.mark.parametrize("word", ["quit", once_more("exit")])
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
import os, subprocess
subprocess.run([sys.executable, "-c", "import os; [os.write(1, b'x' + 1500 * '\\u00e4'.encode()) for i in range(9)]"])
os.write(1, b"\\n"); print()"""
    text = "".join(text for _, text in last(kernel.run(cell)))
    assert "\ufffd" not in text


@pytest.mark.parametrize("before", [once_more("print('own')"), ""])
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


def test_a_rank_that_ctrl_c_does_not_end_is_named(kernel: LiveKernel, tmp_path: Path) -> None:
    """It swallows the exception; the cell ends, and says which rank goes on and what to do."""
    over = tmp_path / "over"
    cell = f"""%%px
import pathlib, signal
if hvd.rank() == 1:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
print('begun', flush=True)
while not pathlib.Path({str(over)!r}).exists(): time.sleep(0.01)"""
    kernel.run("from workbench.cluster import px\npx._AFTER_CTRL_C_S = 1.5")

    once = iter([kernel.interrupt])  # a second one could come amid the kernel's reply, which is lost then

    def look(message: Message) -> None:
        if message.kind == "display_data" and "begun" in message.text:
            next(once, lambda: None)()

    (error,) = [each for each in kernel.run(cell, look) if each.kind == "error"]
    assert "rank 1 has not ended by Ctrl-C" in error.text
    assert "engines.rescue()" in error.text
    over.touch()


# --- and another notebook -----------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_second_notebook(kernel: LiveKernel) -> None:
    """With ipyparallel's client it may use the engines; it is told whose they are, and its cells end with them."""
    said = kernel.run("print(c._job.folder)")
    assert len(said) == 1, said
    path = Path(said[0].text.strip(), "profile", "security", "ipcontroller-client.json")
    other = LiveKernel()
    try:
        other.run(
            f"import ipyparallel\nview = ipyparallel.Client({str(path)!r})[:]\nview.block = True\nview.activate()"
        )
        found = other.run("%%px --no-stream\nprint('mine', hvd.rank())")
        text = "".join(each.text for each in found)
        assert text.count("these engines belong to another notebook") == 2
        assert "mine 1" in text
        assert "belong" not in "".join(each.text for each in other.run("%px --no-stream 1"))
        other.run("running = view.execute('while True: time.sleep(0.1)', block=False)")
        kernel.run("c.down()")
        (error,) = other.run("running.get(20)")
        assert "died" in error.text
        kernel.run("c = cluster.up(2, quiet=True)")
        kernel.run(INIT)
    finally:
        other.client.stop_channels()
        other.manager.shutdown_kernel(now=True)


@pytest.mark.thorough
def test_what_takes_long_says_so(kernel: LiveKernel) -> None:
    """``rescue`` names the rank that does not answer, ``resize`` the new one that is not ready, while they wait."""
    kernel.run("import os, signal\nos.kill(c.pids()[1], signal.SIGSTOP)")
    said = "".join(each.text for each in kernel.run("c.rescue()"))
    assert "rescue: busy engines are interrupted, waits for rank 1, " in said
    assert "2 engines started anew" in said
    kernel.run("c = cluster.up(2, min_np=1, quiet=True)")
    kernel.run("%%px\nimport time\ntime.sleep(3)")
    said = "".join(each.text for each in kernel.run("c.resize(3)"))
    assert "1 new one not ready yet" in said
    assert "3 engines: 0, 1, 2" in said
    assert "not ready" not in "".join(each.text for each in kernel.run("c.resize(2)", asked=False))
    kernel.run(INIT)
