"""What ranks have printed alike is shown once, and nothing is lost or put in another order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workbench.cluster.output.as_data import as_data
from workbench.cluster.output.as_html import as_html
from workbench.cluster.output.as_text import as_text
from workbench.cluster.output.rows import Row, merged, one_bar
from workbench.cluster.output.screen import Bundle, Line, Screen

LINES = st.lists(st.sampled_from("abcd").map(Line), max_size=12)


def of_rank(rows: list[Row], rank: int) -> list[Line | Bundle]:
    """What rows say that a rank has printed."""
    return [item for row in rows if rank in row.ranks for item in row.items]


@given(st.dictionaries(st.integers(0, 4), LINES, max_size=5))
def test_each_rank_has_its_lines_in_its_order(printed: dict[int, list[Line]]) -> None:
    """Whatever ranks print, the rows of a rank are what it has printed, or its lines between two common ones moved."""
    rows = merged(printed)
    everybody = tuple(sorted(printed))
    for rank, items in printed.items():
        found = of_rank(rows, rank)
        assert sorted(map(str, found)) == sorted(map(str, items))
        common = [item for row in rows if row.ranks == everybody for item in row.items]
        it = iter(items)
        assert all(any(item == each for each in it) for item in common)


def test_a_line_of_one_rank_does_not_part_the_others() -> None:
    """A word from rank 0 amid equal lines: the equal lines stay together."""
    lines = [Line(f"step {i}") for i in range(10)]
    rows = merged({0: [*lines[:5], Line("saved"), *lines[5:]], 1: lines, 2: lines})
    assert [(row.ranks, len(row.items)) for row in rows] == [((0, 1, 2), 5), ((0,), 1), ((0, 1, 2), 5)]


def test_equal_figures_are_one() -> None:
    """Bundles with equal data are shown once, as lines are."""
    same, other = (Bundle(key, {"image/png": text}, {}) for key, text in ((1, "AA"), (2, "BB")))
    assert [row.ranks for row in merged({0: [same], 1: [same], 2: [other]})] == [(0, 1), (2,)]


def test_bars_of_all_ranks_are_one_bar() -> None:
    """The slowest rank's bar is shown; where a rank shows something else, all are."""
    bars = {rank: [Line(f"epoch 1: {10 * at}%|###| {at}/10 [00:01]")] for rank, at in enumerate((7, 4, 9))}
    (row,) = merged(one_bar(bars))
    assert row.ranks == (0, 1, 2)
    assert row.items[0].text == "epoch 1: 40%|###| 4/10 [00:01] (the slowest: rank 1; the fastest, rank 2, is at 9)"
    assert len(merged(one_bar(bars | {1: [Line("waits")]}))) == 3


def test_a_thousand_lines_of_eight_ranks_are_forty() -> None:
    """What does not fit on a screen is folded: its beginning, its end, and how much is between."""
    rows = merged({rank: [Line(f"rank {rank}, line {i}") for i in range(1000)] for rank in range(8)})
    shown = as_text(rows).split("\n")
    assert len(shown) <= 40
    assert sum("more lines" in line for line in shown) == 8
    assert all(any(f"rank {rank}, line {i}" in line for line in shown) for rank in range(8) for i in (0, 999))


def test_no_output_becomes_markup() -> None:
    """Text of ranks is text in the page."""
    page = as_html([Row((0,), (Line("<script>alert(1)</script>"), Line("\x1b[31m<b>\x1b[0m")))])
    assert "<script" not in page
    assert "<b>" not in page.replace("<b>rank 0</b>", "")


@given(st.text("ab\r\n\x1b[A1;m", max_size=40), st.integers(1, 40))
def test_pieces_of_a_text_show_what_the_whole_does(text: str, size: int) -> None:
    """It does not matter in how many messages a text comes, as long as none parts a terminal's code or a line's end."""
    if "\x1b" in text or "\r" in text:
        size = len(text) or 1
    whole, pieces = Screen(), Screen()
    whole.write(text)
    for i in range(0, len(text), size):
        pieces.write(text[i : i + size])
    assert whole.items == pieces.items


def test_what_went_to_stderr_is_marked() -> None:
    """Lines of one stream that follow each other are one text, and each text says which stream it is of."""
    row = Row((0,), (Line("a"), Line("b"), Line("c", error=True), Line("d")))
    (found,) = as_data([row], [0])["rows"]
    assert [(each["text"], each["error"]) for each in found["items"]] == [("a\nb", False), ("c", True), ("d", False)]
