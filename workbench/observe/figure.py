"""A picture that a notebook shows: an SVG with an alternative text."""

from __future__ import annotations


class Figure:
    """An SVG that a notebook shows.

    Args:
        svg: the document.
        alt: what it shows, in words.
    """

    def __init__(self, svg: str, alt: str) -> None:
        self.svg, self.alt = svg, alt

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return self.alt
