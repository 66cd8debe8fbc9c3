"""Takes in what engines print and display in one cell, as it comes; what is too much for a notebook goes to a file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from workbench.cluster.output.screen import Bundle, Item, Line, Screen
from workbench.cluster.output.widgets import VIEW, Bars
from workbench.launch.ranks.questions import ASK

KEPT_BYTES = 10_000_000  # of a cell
_PAGE = frozenset({VIEW, "application/javascript"})  # shown each by itself


class Collected:
    """The output of one cell, by engine. ``take`` is called on the client's own thread, all else on the cell's.

    Args:
        engines: how many there are.
        kept_bytes: of all together, each an equal part; the rest goes to a file.
        bars: are bars of ``tqdm.auto`` lines of text? Else each is a widget of its own.

    Attributes:
        changed: set when something has come.
        version: grows with what comes.
        taken: how many messages have come.
        questions: by engine what it asks the user, and waits for the answer.
        file: what came later is in it; None if all is kept, or the disk is full.

    Example:
        >>> cell = Collected()
        >>> cell.take(1, {"header": {"msg_type": "stream"}, "content": {"name": "stdout", "text": "hello"}})
        True
        >>> [each.text for each in cell.items()[1]]
        ['hello']
    """

    def __init__(self, engines: int = 1, kept_bytes: int = KEPT_BYTES, bars: bool = False) -> None:
        self.changed = threading.Event()
        self.version = self.taken = 0
        self.questions: dict[int, Mapping[str, Any]] = {}
        self.file: Path | None = None
        self._lock, self._room = threading.Lock(), kept_bytes // max(1, engines)
        self._bars = Bars() if bars else None
        self._full, self._cleared = set[int](), set[int]()
        self._screens: dict[int, Screen] = {}
        self._outputs: dict[int, list[dict[str, Any]]] = {}
        self._widgets: list[tuple[int, dict[str, Any]]] = []
        self._rest: TextIO | None = None

    def take(self, engine: int, message: Mapping[str, Any]) -> bool:
        """A message has come that an engine has published; was it output?"""
        kind, content = message["header"]["msg_type"], message["content"]
        self.taken += 1
        if kind.startswith("comm_"):
            return self._bars is not None and self._follow(self._bars, engine, kind, content)
        if kind == ASK:
            self.questions[engine] = content
            self.changed.set()
            return True
        if kind not in ("stream", "display_data", "execute_result", "update_display_data", "clear_output"):
            return False
        with self._lock:
            if kind == "clear_output":
                self._cleared.add(engine)
            if engine in self._cleared and not content.get("wait"):  # with it the next output takes its place
                self._cleared.discard(engine)
                self._screens.pop(engine, None)
                self._outputs.pop(engine, None)
                if self._bars is not None:
                    self._bars.forget(engine)
            screen = self._screens.setdefault(engine, Screen())
            if kind == "stream":
                self._print(engine, screen, content)
            elif kind != "clear_output":
                self._display(engine, screen, kind, content)
        self.version += 1
        self.changed.set()
        return bool(kind != "execute_result")  # of which ipyparallel makes the result

    def items(self, complete: bool = False) -> dict[int, list[Item]]:
        """What each engine has shown by now; without the line that goes on, if only what is ``complete`` is asked."""
        with self._lock:
            found = {e: each.items[: each.complete if complete else None] for e, each in sorted(self._screens.items())}
            if self._bars is not None and not complete:
                for engine, items in found.items():
                    items += [Line(text, error=True) for text in self._bars.lines(engine)]
            return found

    def open_lines(self) -> dict[int, Line]:
        """The line that goes on, of each engine that has one."""
        with self._lock:
            last = {engine: screen.items[screen.complete :] for engine, screen in sorted(self._screens.items())}
            found = {engine: each[0] for engine, each in last.items() if each and isinstance(each[0], Line)}
            bars = {engine: self._bars.lines(engine) for engine in last} if self._bars is not None else {}
            return found | {engine: Line(lines[-1], error=True) for engine, lines in bars.items() if lines}

    def widgets(self) -> list[tuple[int, dict[str, Any]]]:
        """What has been displayed that lives in the page: by engine, as messages have it."""
        with self._lock:
            return list(self._widgets)

    def text(self, engine: int, name: str) -> str:
        lines = [each for each in self.items().get(engine, []) if not isinstance(each, Bundle)]
        own = [each.text for each in lines if each.error == (name == "stderr")]
        return "\n".join(own) + ("\n" if own else "")

    def outputs(self, engine: int) -> list[dict[str, Any]]:
        """What is kept of its displays, as messages have it."""
        with self._lock:
            return list(self._outputs.get(engine, ()))

    @property
    def too_much(self) -> str:
        """What to say where there was more than is kept; "" if there was not."""
        if not self._full:
            return ""
        rest = f"is in {self.file}" if self.file else "is lost, for no file could be written"
        return f"This cell printed too much for a notebook: the rest {rest}"

    def close(self) -> None:
        if self._rest is not None:
            with contextlib.suppress(OSError):
                self._rest.close()

    def _print(self, engine: int, screen: Screen, content: Mapping[str, Any]) -> None:
        if self._fits(engine, screen, content["text"]):
            screen.write(content["text"], content["name"] == "stderr")

    def _display(self, engine: int, screen: Screen, kind: str, content: Mapping[str, Any]) -> None:
        data, metadata = content["data"], content.get("metadata") or {}
        if not _PAGE.isdisjoint(data):
            model = data.get(VIEW, {}).get("model_id", "")
            if self._bars is not None and self._bars.show(engine, model):
                return
            self._widgets.append((engine, dict(content)))
            self._outputs.setdefault(engine, []).append(dict(content))
            if VIEW in data:
                screen.add(Bundle(hash(model), dict(data), dict(metadata)))
            return
        known = (content.get("transient") or {}).get("display_id")
        blob = json.dumps(data, sort_keys=True, default=str)
        if not self._fits(engine, screen, blob, "\n"):
            return
        key = int.from_bytes(hashlib.blake2b(blob.encode("utf-8", "replace"), digest_size=7).digest(), "big")
        bundle = Bundle(key, dict(data), dict(metadata), known, len(blob))
        if kind == "update_display_data":
            screen.update(bundle)
            return
        screen.add(bundle)
        if kind == "display_data":
            self._outputs.setdefault(engine, []).append(dict(content))

    def _follow(self, bars: Bars, engine: int, kind: str, content: Mapping[str, Any]) -> bool:
        with self._lock:
            of_a_bar = bars.take(engine, kind, content)
            for text in bars.finished(engine) if of_a_bar else ():
                self._screens[engine].write(f"{text}\n", error=True)
        if of_a_bar:
            self.version += 1
            self.changed.set()
        return of_a_bar

    def _fits(self, engine: int, screen: Screen, text: str, end: str = "") -> bool:
        """Is it kept? Once something is not, nothing that comes later is."""
        if engine not in self._full and screen.size + len(text) <= self._room:
            return True
        self._full.add(engine)
        self._to_file(engine, text + end)
        return False

    def _to_file(self, engine: int, text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the thread that gets messages
            if self._rest is None:
                number, name = tempfile.mkstemp(prefix="workbench-output-", suffix=".txt")
                self._rest, self.file = os.fdopen(number, "w", encoding="utf-8", errors="replace"), Path(name)
            self._rest.write(f"[rank {engine}] {text}")
            self._rest.flush()
