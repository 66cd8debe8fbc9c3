"""What the ranks print, on its way through the launcher."""

from __future__ import annotations

import io
import random
import re
import tracemalloc
from collections.abc import Iterator

import pytest

from workbench.launch.ranks.output import Printer, labelled

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


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("piece", [b"x", b"50%\r", b"\0\r\xff", b"y" * 79 + b"\n"])
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
