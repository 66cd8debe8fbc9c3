"""Texts of the repository as pages of the site: links lead to pages, and a link to any other file becomes its name."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

_LINK_OR_CODE = re.compile(
    r"```.*?```|(?<!!)\[([^\]\[]+)\]\((?![a-z]+:|#)([^)\s]+)\)|`[^`\n]*`",  # what begins first counts
    re.DOTALL,
)
ROOT_PAGES = {
    "CHANGELOG.md": "about/changelog.md",
    "CONTRIBUTING.md": "about/contributing.md",
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks/index.md",
}


def linked(source: str, path: str, page: str, pages: Mapping[str, str]) -> str:
    """The text with its links as they are on the site.

    Args:
        source: Markdown.
        path: of the file in the repository.
        page: of its page on the site.
        pages: path in the repository → page on the site, of everything that is one.

    Example:
        >>> linked("[hosts](../docs/a.md#x) [b](../b.py)", "instructors/c.md", "c.md", {"docs/a.md": "a.md"})
        '[hosts](a.md#x) b (`b.py`)'
    """

    def followed(found: re.Match[str]) -> str:
        label, link = found[1], found[2]
        if link is None:
            return found[0]
        target, mark, place = link.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if there in pages:
            return f"[{label}]({posixpath.relpath(pages[there], posixpath.dirname(page) or '.')}{mark}{place})"
        return f"{label} (`{there}`)" if label.strip("`") != there else f"`{there}`"

    return _LINK_OR_CODE.sub(followed, source)
