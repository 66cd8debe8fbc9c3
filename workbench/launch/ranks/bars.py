r"""Progress bars, which end their states with \r: of several ranks only what is not yet replaced is worth a line."""

from __future__ import annotations


class Bars:
    r"""Keeps the last state of each open bar; what comes out has lines without earlier states.

    Example:
        >>> bars = Bars()
        >>> bars.feed((0, "stderr"), b"10%\r20%\r"), bars.state((0, "stderr"))
        (b'', b'20%')
        >>> bars.feed((0, "stderr"), b"30%\rdone\nnext\r\n")
        b'done\nnext\r\n'
    """

    def __init__(self) -> None:
        self._open = dict[tuple[int, str], bytes]()

    def feed(self, who: tuple[int, str], text: bytes) -> bytes:
        """What is to be shown as lines, and the beginning of a line that is no bar."""
        before = self._open.pop(who, b"")
        text = (before if text != b"\n" else before.removesuffix(b"\r")) + text
        cut = text.rfind(b"\n") + 1
        lines, rest = text[:cut], text[cut:]
        if b"\r" in rest:
            self._open[who] = _last(rest) + b"\r" * rest.endswith(b"\r")
            rest = b""
        return b"".join(_settled(line) + b"\n" for line in lines.split(b"\n")[:-1]) + rest

    def state(self, who: tuple[int, str]) -> bytes:
        """Of a bar that is open; empty if there is none."""
        return self._open.get(who, b"").strip(b"\r")

    def open(self) -> list[tuple[int, str]]:
        """Whose bars are."""
        return list(self._open)


def _settled(line: bytes) -> bytes:
    text = line.removesuffix(b"\r")
    return _last(text) + line[len(text) :]


def _last(text: bytes) -> bytes:
    """The state that replaces the others."""
    return next((part for part in reversed(text.split(b"\r")) if part), b"")
