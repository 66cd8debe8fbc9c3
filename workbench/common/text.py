"""Plurals, lists of ranks and columns, as messages and tables have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_LONG = 5_000  # characters of a line


def count(n: int, noun: str) -> str:
    """A number with its noun.

    Example:
        >>> count(1, "rank"), count(0, "rank"), count(12_000, "batch")
        ('1 rank', '0 ranks', '12000 batches')
    """
    return f"{n} {plural(noun, n)}"


def plural(noun: str, n: int = 2) -> str:
    """A noun for ``n`` of its kind.

    Example:
        >>> plural("batch"), plural("GPU", 1)
        ('batches', 'GPU')
    """
    return noun if n == 1 else noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def size(nbytes: int) -> str:
    """Bytes for a reader.

    Example:
        >>> size(0), size(4096), size(3 << 20)
        ('0 bytes', '4.1 kB', '3.15 MB')
    """
    for limit, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if nbytes >= limit:
            return f"{nbytes / limit:.3g} {unit}"
    return count(nbytes, "byte")


def numbered(numbers: Sequence[int], noun: str = "rank") -> str:
    """Which ones, by their numbers.

    Example:
        >>> numbered([1], "GPU"), numbered([0, 1])
        ('GPU 1', 'ranks 0, 1')
    """
    return f"{plural(noun, max(1, len(numbers)))} {', '.join(map(str, numbers))}"


def first_line(text: str, most: int) -> str:
    r"""The first line, shortened.

    Example:
        >>> first_line("right: n = 2, length 1: rank 1\n  in ...", 12)
        'right: n = …'
    """
    line = text.partition("\n")[0]
    return line if len(line) <= most else line[: most - 1] + "…"


def cut(text: str, most: int = _LONG) -> str:
    """The beginning of a long text, and how much more there is.

    Example:
        >>> cut("abcdef", 4)
        'abcd … and 2 more characters'
    """
    return text if len(text) <= most else f"{text[:most]} … and {count(len(text) - most, 'more character')}"


def columns(rows: Sequence[Sequence[str]], right: Iterable[int] = (0,)) -> list[str]:
    """Rows as lines whose cells stand below each other.

    Args:
        rows: as many cells in each.
        right: the numbers of the columns that end, and do not begin, below each other.

    Example:
        >>> columns([("rank", "type"), ("0", "int")])
        ['rank  type', '   0  int']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    at_the_right = set(right)

    def placed(i: int, cell: str) -> str:
        return cell.rjust(widths[i]) if i in at_the_right else cell.ljust(widths[i])

    return ["  ".join(placed(i, cell) for i, cell in enumerate(row)).rstrip() for row in rows]


def by_rank(values: dict[int, str]) -> list[str]:
    """One line per value with the ranks that have it.

    Example:
        >>> by_rank({0: "a", 1: "b", 2: "a"})
        ['  ranks 0, 2: a', '  rank 1: b']
    """
    ranks: dict[str, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    return [f"  {rank_list(who)}: {value}" for value, who in ranks.items()]


def rank_list(ranks: Iterable[int]) -> str:
    """Ranks in words.

    Example:
        >>> rank_list([2]), rank_list([0, 2, 3])
        ('rank 2', 'ranks 0, 2, 3')
    """
    return numbered(sorted(ranks))


def spans(numbers: Iterable[int]) -> str:
    """Numbers in order, three and more that follow each other as a span.

    Example:
        >>> spans([0, 1, 2, 3, 6, 7])
        '0-3, 6, 7'
    """
    found = (range(first, last + 1) for first, last in runs(numbers))
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in found)


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last number of each unbroken run.

    Example:
        >>> runs([8, 0, 1, 2])
        [(0, 2), (8, 8)]
    """
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def rank_spans(ranks: Iterable[int]) -> str:
    """Ranks in words, many of them in little room.

    Example:
        >>> rank_spans([0]), rank_spans([5, 0, 1, 2])
        ('rank 0', 'ranks 0-2, 5')
    """
    unique = set(ranks)
    return f"{plural('rank', len(unique))} {spans(unique)}"
