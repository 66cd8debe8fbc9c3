"""What the ranks print, on its way through the launcher."""

from __future__ import annotations

import io
import random
import re
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from doc_blocks import ROOT, blocks

from workbench.launch.ranks.output import Printer, labelled

if TYPE_CHECKING:
    from running import Runner

LONG = 3_000_000


class Screen(io.TextIOWrapper):
    """A stream that shows what was written to it."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")

    def text(self) -> bytes:
        """All of it."""
        self.flush()
        return self.buffer.getvalue()  # type: ignore[attr-defined,no-any-return]


class Nowhere(io.TextIOWrapper):
    """Counts what was written to it."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")
        self.count = 0

    @property
    def buffer(self) -> Nowhere:  # type: ignore[override]
        """It takes bytes."""
        return self

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Count them."""
        self.count += len(data)
        return len(data)


def chunks(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """It, in parts of random lengths."""
    while data:
        n = chance.choice((1, 2, 7, 100))
        yield data[:n]
        data = data[n:]


@pytest.mark.parametrize("seed", range(20))
def test_one_ranks_text_is_on_the_screen_to_the_byte(seed: int) -> None:
    """With a label before each line; also where lines are shown before they end."""
    chance = random.Random(seed)
    text = bytes(chance.choices(b"abc\r\n", weights=(5, 5, 5, 1, 1), k=400)) + b"z\n"
    screen = Screen()
    printer = Printer(screen, Screen(), 1)
    for part in chunks(text, chance):
        printer.feed(0, "stdout", part)
        if chance.random() < 0.3:
            for lines in printer._lines.values():
                lines.since = min(lines.since, 0.0)  # long ago
            printer.flush()
    printer.feed(0, "stdout", b"")
    printer.close()
    assert screen.text() == labelled(text, b"[0]<stdout>:")


@pytest.mark.parametrize("seed", range(20))
def test_what_several_ranks_print_is_all_there(seed: int) -> None:
    """Each rank's text is what stands behind its labels, though others interrupt its unfinished lines."""
    chance = random.Random(seed)
    texts = {rank: bytes(chance.choices(b"abc" if rank else b"xyz", k=200)) for rank in range(3)}
    parts = [(rank, part) for rank, text in texts.items() for part in chunks(text, chance)]
    order = sorted(range(len(parts)), key=lambda i: (chance.random(), i))
    screen = Screen()
    printer = Printer(screen, Screen(), 3)
    said: dict[int, bytes] = dict.fromkeys(texts, b"")
    for i in order:
        rank, part = parts[i]
        said[rank] += part
        printer.feed(rank, "stdout", part)
        for lines in printer._lines.values():
            lines.since = min(lines.since, 0.0)
        printer.flush()
    printer.close()
    seen: dict[int, bytes] = dict.fromkeys(texts, b"")
    for line in screen.text().splitlines():
        found = re.fullmatch(rb"\[(\d)\]<stdout>:(.*)", line)
        assert found, line
        seen[int(found[1])] += found[2]
    assert seen == said


def test_an_end_that_comes_late_makes_no_empty_line() -> None:
    """A line was shown without its end, and another rank's stands below: its end is not a line of its own."""
    screen = Screen()
    printer = Printer(screen, Screen(), 2)
    printer.feed(0, "stdout", b"zero")
    printer._lines[0, "stdout"].since = 0.0
    printer.flush()
    printer.feed(1, "stdout", b"one\n")
    printer.feed(0, "stdout", b"\nzero again\n")
    assert screen.text() == b"[0]<stdout>:zero\n[1]<stdout>:one\n[0]<stdout>:zero again\n"


def test_a_traceback_that_was_shown_in_parts_is_remembered_whole() -> None:
    """The last words are lines, not the parts in which they were read and shown."""
    printer = Printer(Screen(), Screen(), 1)
    for part in (b"Traceback (most rec", b"ent call last):\n  File x\nValue", b"Error: no\n"):
        printer.feed(0, "stderr", part)
        for lines in printer._lines.values():
            lines.since = min(lines.since, 0.0)
        printer.flush()
    assert printer.last_words(0) == "Traceback (most recent call last):\n  File x\nValueError: no"


@pytest.mark.parametrize(
    ("piece", "name"), [(b"x", "stdout"), (b"50%\r", "stderr"), (b"\0\r\xff", "stdout"), (b"y" * 79 + b"\n", "stderr")]
)
def test_long_output_takes_linear_time_and_bounded_memory(piece: bytes, name: str) -> None:
    """3 MB without an end of line, of bars, of bytes and of lines: a few megabytes of memory, and no hours."""
    screen = Nowhere()
    printer = Printer(screen, screen, 1)
    block = (piece * 65536)[:65536]
    tracemalloc.start()
    for _ in range(LONG // len(block)):
        printer.feed(0, name, block)
    printer.feed(0, name, b"")
    printer.close()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert screen.count > LONG * 0.9
    assert peak < 10_000_000


class Terminal(Screen):
    """A screen on which a line can be replaced."""

    def isatty(self) -> bool:
        return True


def seen(screen: Screen) -> list[str]:
    """What a terminal shows of what was written to it."""
    lines = screen.text().decode().split("\n")
    return [re.split("\r\x1b\\[K", line)[-1] for line in lines]


def test_bars_of_several_ranks_are_one_line_of_a_terminal() -> None:
    """It is replaced, also by lines, below which it is drawn again; the last state of each bar stays."""
    screen = Terminal()
    printer = Printer(screen, screen, 2)
    for percent in range(3):
        for rank in range(2):
            printer.feed(rank, "stderr", b"%d%%\r" % percent)
    printer.feed(1, "stderr", b"3%\r")
    assert seen(screen) == ["[1]<stderr>:2%"]
    printer.feed(0, "stdout", b"loss\n")
    printer.feed(1, "stderr", b"4%\r")
    assert seen(screen) == ["[0]<stdout>:loss", "[1]<stderr>:3%"]
    for rank in range(2):
        printer.feed(rank, "stderr", b"100%\n")
        printer.feed(rank, "stderr", b"")
    printer.close()
    assert seen(screen)[1:] == ["[0]<stderr>:100%", "[1]<stderr>:100%", ""]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_in_a_file_the_last_state_of_each_bar_stays(end: bytes) -> None:
    """Also of a bar that is broken off."""
    screen = Screen()
    printer = Printer(screen, screen, 2)
    for percent in range(100):
        for rank in range(2):
            printer.feed(rank, "stderr", b"\r%d%%" % percent)
            printer.flush()
    for rank in range(2):
        printer.feed(rank, "stderr", end)
        printer.feed(rank, "stderr", b"")
    printer.close()
    assert screen.text() == b"[0]<stderr>:99%\n[1]<stderr>:99%\n"


def trace(line: int, message: str = "ValueError: no") -> bytes:
    """As Python prints it."""
    return f'Traceback (most recent call last):\n  File "x.py", line {line}\n    f()\n{message}\n'.encode()


def test_a_traceback_of_several_ranks_is_shown_once() -> None:
    """With all lines of its message; another one, and what each rank printed after it, is the rank's own."""
    screen = Screen()
    printer = Printer(screen, screen, 4)
    for rank in range(4):
        text = trace(9 if rank == 3 else 7, "ValueError: no\n  rank 0: 1") + b"rank %d left\n" % rank
        printer.feed(rank, "stdout", b"before\n")
        printer.feed(rank, "stderr", text)
        printer.feed(rank, "stdout", b"after\n")
    assert screen.text().count(b"before") == 4
    assert b"Traceback" not in screen.text()
    assert printer.pause_s(9.0) < 0.3
    printer.close()
    text = screen.text().decode()
    assert text.count("[0-2]<stderr>:Traceback") == text.count("[3]<stderr>:Traceback") == 1
    assert "[0-2]<stderr>:ValueError: no\n[0-2]<stderr>:  rank 0: 1\n[0]<stderr>:rank 0 left\n[0]<stdout>:after" in text
    assert [f"[{rank}]<stderr>:rank {rank} left\n[{rank}]<stdout>:after\n" in text for rank in range(4)] == [True] * 4


def test_a_traceback_that_comes_later_is_named() -> None:
    """Once for each rank: what a rank prints again is shown again."""
    screen = Screen()
    printer = Printer(screen, screen, 3)
    for rank in (2, 0, 0):
        printer.feed(rank, "stderr", trace(7, "ValueError: no\n  really") + b"rank %d left\n" % rank)
        time.sleep(printer.pause_s(9.0))
        printer.flush()
    printer.close()
    one, two, *again = re.split("(?=\\[0\\]<stderr>:T)", screen.text().decode())
    assert one.count("[2]<stderr>:") == 6
    assert two == ("[0]<stderr>:The same traceback as that of rank 2, above: ValueError: no\n[0]<stderr>:rank 0 left\n")
    assert "".join(again) == one.replace("2", "0")


def test_a_traceback_waits_for_a_moment() -> None:
    """Where no other rank prints it, it is there soon, and whole."""
    screen = Screen()
    printer = Printer(screen, screen, 2)
    printer.feed(0, "stderr", b"one\n" + trace(7))
    time.sleep(printer.pause_s(9.0))
    printer.flush()
    assert screen.text() == labelled(b"one\n" + trace(7), b"[0]<stderr>:")


def test_notices_of_tensorflow_are_shown_once() -> None:
    """Whichever rank comes first."""
    notice = "I0000 00:00:1795665530.281918    {} port.cc:153] oneDNN custom operations are on. You may see\n"
    screen = Screen()
    printer = Printer(screen, screen, 2)
    for rank in range(2):
        printer.feed(rank, "stderr", notice.format(rank).encode() + b"mine\n")
    printer.close()
    assert screen.text().count(b"oneDNN") == 1
    assert screen.text().count(b"mine") == 2


@pytest.mark.process
@pytest.mark.parallel
def test_a_bar_of_tqdm_is_one_line_of_a_file(jobs: Runner, tmp_path: Path) -> None:
    """On two ranks one from each, with its rank; as the page on trackers has it, one from rank 0 alone."""
    pytest.importorskip("tqdm")
    block = blocks(ROOT / "docs" / "how-to" / "trackers.md", "python")[-1].code
    script = tmp_path / "bars.py"
    lines = ["import time", "import workbench as hvd", "hvd.init()"]
    lines += ["batches = range(40)", "step = lambda batch: time.sleep(0.01)"]
    script.write_text("\n".join([*lines, block.replace("disable=hvd.rank() != 0", "desc='each'"), block]))
    job = jobs.python("-m", "workbench.cli.main", "run", "-np", "2", "python", str(script), deadline_s=50.0)
    assert job.code == 0, job.report()
    bars = sorted(re.sub(r"%.*", "%", line) for line in job.err(0).splitlines())
    assert bars == ["[0]<stderr>:100%", "[0]<stderr>:each: 100%", "[1]<stderr>:each: 100%"], job.report()
