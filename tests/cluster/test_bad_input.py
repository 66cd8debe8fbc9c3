"""What no notebook should bring down: floods, odd characters, widgets without end, a second notebook, autoreload."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from live_kernel import LiveKernel, Message, last, live_kernel
from thorough import once_more

pytestmark = [pytest.mark.integration, pytest.mark.parallel]


@pytest.fixture(scope="module")
def kernel() -> Iterator[LiveKernel]:
    """A notebook with two ranks."""
    with live_kernel(2) as kernel:
        yield kernel


def sums(kernel: LiveKernel) -> None:
    """The next cell is right."""
    found = kernel.run("%px print(float(hvd.allreduce(np.full(2, hvd.rank() + 1.0), op=hvd.Sum).sum()))")
    assert last(found) == [("ranks 0, 1", "6.0")]


def test_characters_that_no_text_has(kernel: LiveKernel) -> None:
    """Half a surrogate pair is shown as its number, bytes as what they are, commands to a terminal not at all."""
    cell = r"""%%px
print('before\ud800after', '\x1b[31mred\x1b[0m', '\x1b[2J\x1b[H\x00\x07here')
print(bytes(range(250, 256)).decode('latin1'), bytes([0, 255]))"""
    assert last(kernel.run(cell)) == [
        ("ranks 0, 1", "before\\ud800after \x1b[31mred\x1b[0m here\núûüýþÿ b'\\x00\\xff'")
    ]
    sums(kernel)


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
    sums(kernel)


def test_what_is_replaced_is_not_kept(kernel: LiveKernel) -> None:
    """A bar that is drawn ten thousand times, and pages that are cleared, fill nothing; a line of a million is cut."""
    cell = """%%px
from IPython.display import clear_output
for i in range(150):
    clear_output(wait=True)
    print('page', i, 'w' * 100_000)
for i in range(150_000):
    sys.stdout.write(f'\\r{i}' + '#' * 80)"""
    found = kernel.run(cell)
    assert [each for each in found if each.kind == "stream"] == []
    ((who, text),) = last(found)
    assert (who, text.split()[1], text.rpartition("\n")[2].rstrip("#")) == ("ranks 0, 1", "149", "149999")
    found = kernel.run("%px sys.stdout.write('z' * 1_000_000)")
    assert "zz … and 995000 more characters" in found[-1].text
    assert len(json.dumps(found[-1].content)) < 1_100_000
    sums(kernel)


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
    sums(kernel)


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
    # On a busy machine one rank's stderr may come before its stdout and the other's behind it: then these are two rows.
    found = last(kernel.run("%px print(changes.f())"))
    assert [who for who, _ in found] in (["ranks 0, 1"], ["rank 0", "rank 1"])
    assert all("SyntaxError" in text and "new and longer" in text for _, text in found)
    sums(kernel)
    for cell in ("%autoreload 0", "%px %autoreload 0"):
        kernel.run(cell)


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
        sums(kernel)
        other.run("running = view.execute('while True: time.sleep(0.1)', block=False)")
        kernel.run("c.down()")
        (error,) = other.run("running.get(20)")
        assert "died" in error.text
        kernel.run("c = cluster.up(2, quiet=True)")
        kernel.run("%%px\nimport sys, time, numpy as np, workbench as hvd\nhvd.init()")
        sums(kernel)
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
