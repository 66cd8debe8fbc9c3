"""One page for each class of error: what it says, its usual causes with an example each, and what to do.

The pages are the Markdown files in ``errors/``. The site shows them, and ``workbench explain NAME`` prints them.
"""

from __future__ import annotations

from pathlib import Path

from workbench import errors

PAGES = Path(__file__).parent / "errors"


def names() -> dict[str, str]:
    """Each class of error, and its docstring's first line.

    Example:
        >>> names()["PeerLostError"]
        'A rank died or fell silent.'
    """
    return {name: (getattr(errors, name).__doc__ or "").splitlines()[0] for name in sorted(errors.__all__)}


def explanation(name: str) -> str:
    """The page of a class, in Markdown.

    Example:
        >>> explanation("MismatchError").splitlines()[0]
        '# MismatchError'
    """
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")
