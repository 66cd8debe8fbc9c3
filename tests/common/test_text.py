"""Plurals, lists and columns."""

from __future__ import annotations

from workbench.common.text import columns, count, first_line, numbered, plural


def test_a_number_and_its_noun() -> None:
    """English, for the nouns that messages have."""
    for n, noun, text in [
        (0, "rank", "0 ranks"),
        (1, "GPU", "1 GPU"),
        (2, "GPU", "2 GPUs"),
        (3, "batch", "3 batches"),
        (1, "batch", "1 batch"),
        (2, "loss", "2 losses"),
        (2, "exercise", "2 exercises"),
    ]:
        assert count(n, noun) == text
        assert text.endswith(plural(noun, n))


def test_numbers_with_their_noun() -> None:
    """One stays singular, several are listed as they come."""
    assert [numbered([3]), numbered([2, 0], "engine")] == ["rank 3", "engines 2, 0"]


def test_columns_stand_below_each_other() -> None:
    """The widest cell decides; what is empty at the end of a line leaves no blanks."""
    rows = [("rank", "type", "value"), ("10", "float32", ""), ("2", "int", "-1.5")]
    assert columns(rows, right=(0, 2)) == ["rank  type     value", "  10  float32", "   2  int       -1.5"]


def test_a_first_line_has_a_limit() -> None:
    """And says that there was more of it."""
    assert [first_line("abcdef", 6), first_line("abcdef", 5), first_line("ab\ncd", 9)] == ["abcdef", "abcd…", "ab"]
