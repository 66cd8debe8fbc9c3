"""Two layers cut across ranks, as a picture: which columns and rows are whose, and where the ranks talk."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.observe import drawing_kit as kit
from workbench.observe.drawing_kit import clean
from workbench.observe.figure import Figure

_TOP, _LOW, _WIDE, _HIGH = 70.0, 40.0, 110.0, 80.0  # a matrix of rows × width, of width × hidden, of hidden × width

_Owners = list[tuple[str, str]]
"""What has the parts of a matrix, and its colour."""


def split_layers(n: int) -> Figure:
    """y = max(x W₁, 0) W₂ with W₁ cut by columns and W₂ by rows; a colour is a rank.

    Example:
        >>> split_layers(2)
        Two layers on 2 ranks: each has its own columns of W₁, of h, and its own rows of W₂; only y is a sum
    """
    text = f"Two layers on {n} ranks: each has its own columns of W₁, of h, and its own rows of W₂; only y is a sum"
    middle = _TOP + _WIDE / 2
    parts = [
        *_matrix("x", 20, middle, _HIGH, _LOW, [("on every rank", "")]),
        *_step("f", 118, middle, "copy"),
        *_matrix("W₁", 160, middle, _HIGH, _HIGH, _owned(n), by_columns=True),
        *_step("=", 263, middle, "max(…, 0)"),
        *_matrix("h", 310, middle, _WIDE, _LOW, _owned(n), by_columns=True),
        *_step("·", 426, middle),
        *_matrix("W₂", 456, middle, _HIGH, _WIDE, _owned(n)),
        *_step("g", 552, middle, "sum"),
        *_matrix("y", 590, middle, _HIGH, _LOW, [("on every rank", "")]),
    ]
    parts += [
        kit.label(
            20,
            _TOP + _WIDE + 46,
            "The numbers are ranks. Forward: f passes x on, g adds up the ranks' parts of y: one allreduce",
            12,
        ),
        kit.label(
            20, _TOP + _WIDE + 66, "Backward: g passes dy on, f adds up the ranks' parts of dx: one allreduce", 12
        ),
    ]
    return kit.picture(text, 700, _TOP + _WIDE + 82, parts)


def _owned(n: int) -> _Owners:
    return [(f"rank {rank}", kit.INKS[rank % len(kit.INKS)]) for rank in range(n)]


def _matrix(
    name: str, x: float, middle: float, width: float, height: float, owners: _Owners, by_columns: bool = False
) -> Iterator[str]:
    top = middle - height / 2
    wide, high = (width / len(owners), height) if by_columns else (width, height / len(owners))
    yield kit.label(x + width / 2, top - 8, name, 13, "middle")
    for i, (owner, fill) in enumerate(owners):
        left, y = (x + i * wide, top) if by_columns else (x, top + i * high)
        look = f'fill="{fill}" stroke="#ffffff"' if fill else 'fill="#8b949e" fill-opacity="0.25" stroke="#8b949e"'
        yield (
            f'<rect x="{left:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" {look}>'
            f"<title>{clean(f'{name}: {owner}')}</title></rect>"
        )
        if fill:
            yield kit.label(left + wide / 2, y + high / 2 + 4, str(i), 11, "middle", kit.ink(fill))


def _step(sign: str, x: float, middle: float, words: str = "") -> Iterator[str]:
    yield kit.label(x + 12, middle + 5, sign, 16, "middle")
    if words:
        yield kit.label(x + 12, middle + 22, words, 10, "middle")
