"""SVGs within a page: their colours follow the page's theme, and what they name is theirs alone.

In a notebook an SVG asks the system whether it is dark (``prefers-color-scheme``). A page has a switch of its own, so
the rules are written anew: for the page's dark theme, and for the system's where the page follows it. An SVG's style
and ids hold for the whole page, so each style is bound to a class, and each id gets a prefix.
"""

from __future__ import annotations

import hashlib
import html
import re

_SVG = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
_STYLE = re.compile(r"<style[^>]*>(.*?)</style>", re.DOTALL)
_DARK = re.compile(r"@media\s*\(\s*prefers-color-scheme\s*:\s*dark\s*\)\s*\{((?:[^{}]*\{[^{}]*\})*)\s*\}")
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_OUTER_TITLE = re.compile(r"(<svg\b[^>]*>)\s*<title>(.*?)</title>", re.DOTALL)


class Pictures:
    """The pictures of one page, which share their styles.

    Example:
        >>> pictures = Pictures()
        >>> pictures.shown('<svg><style>.a{fill:red}</style><g id="b"/></svg>')
        '<style>.wbs-baf38b{.a{fill:red}}</style><div class="wb-picture wbs-baf38b"><svg><g id="p1-b"/></svg></div>'
        >>> pictures.shown('<svg><style>.a{fill:red}</style></svg>')
        '<div class="wb-picture wbs-baf38b"><svg></svg></div>'
    """

    def __init__(self) -> None:
        self._count = 0
        self._styles: set[str] = set()

    def shown(self, svg: str) -> str:
        """The picture as HTML.

        Args:
            svg: a document, or an element.
        """
        return self._picture(_SVG.search(svg), "")

    def played(self, svg: str, seconds: float) -> str:
        """The same, for the page's script to put the player in its place."""
        return self._picture(_SVG.search(svg), f' data-player="{seconds:g}"')

    def within(self, text: str) -> str:
        """HTML with all pictures in it made so."""
        return _SVG.sub(lambda found: self._picture(found, ""), text)

    def _picture(self, found: re.Match[str] | None, attributes: str) -> str:
        if found is None:
            raise ValueError("There is no <svg> in the output of a cell.")
        self._count += 1
        svg = found[0]
        style = "".join(_STYLE.findall(svg)).strip()
        name = "wbs-" + hashlib.sha256(style.encode()).hexdigest()[:6]
        before = "" if name in self._styles or not style else f"<style>{_bound(style, name)}</style>"
        self._styles.add(name)
        svg = _named(_METADATA.sub("", _STYLE.sub("", svg)))
        svg = _own_ids(svg, f"p{self._count}-")
        return f'{before}<div class="wb-picture {name}"{attributes}>{svg}</div>'


def _bound(style: str, name: str) -> str:
    dark = "".join(_DARK.findall(style))
    rules = f".{name}{{{_DARK.sub('', style)}}}"
    if dark:
        rules += f'body[data-theme="dark"] .{name}{{{dark}}}'
        rules += f'@media (prefers-color-scheme: dark){{body:not([data-theme="light"]) .{name}{{{dark}}}}}'
    return rules


def _named(svg: str) -> str:
    """Matplotlib's title is a picture's name; as ``aria-label`` it needs no tooltip over all of it."""
    found = _OUTER_TITLE.search(svg)
    if found is None or "aria-label" in found[1]:
        return svg
    head = found[1][:-1] + f' role="img" aria-label="{html.escape(html.unescape(found[2].strip()))}">'
    return svg[: found.start()] + head + svg[found.end() :]


def _own_ids(svg: str, prefix: str) -> str:
    svg = re.sub(r'(\bid=")', rf"\g<1>{prefix}", svg)
    svg = re.sub(r'(href="#)', rf"\g<1>{prefix}", svg)
    return re.sub(r"(url\(#)", rf"\g<1>{prefix}", svg)
