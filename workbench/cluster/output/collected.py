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
from workbench.launch.ranks.questions import ASK

KEPT_BYTES = 10_000_000  # of a cell
_PAGE = frozenset({"application/vnd.jupyter.widget-view+json", "application/javascript"})  # shown each by itself


class Collected:
    """The output of one cell, by engine. ``take`` is called on the client's own thread, all else on the cell's.

    Args:
        kept_bytes: the rest goes to a file.

    Attributes:
        changed: set when something has come.
        version: grows with what comes.
        questions: by engine what it asks the user, and waits for the answer.
        full: was there more than is kept?
        file: what came later is in it; None if all is kept, or the disk is full.

    Example:
        >>> cell = Collected()
        >>> cell.take(1, {"header": {"msg_type": "stream"}, "content": {"name": "stdout", "text": "hello"}})
        True
        >>> [each.text for each in cell.items()[1]]
        ['hello']
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self.changed = threading.Event()
        self.version, self.full = 0, False
        self.questions: dict[int, Mapping[str, Any]] = {}
        self.file: Path | None = None
        self._lock, self._room = threading.Lock(), kept_bytes
        self._screens: dict[int, Screen] = {}
        self._outputs: dict[int, list[dict[str, Any]]] = {}
        self._widgets: list[tuple[int, dict[str, Any]]] = []
        self._rest: TextIO | None = None

    def take(self, engine: int, message: Mapping[str, Any]) -> bool:
        """A message has come that an engine has published; was it output?"""
        kind, content = message["header"]["msg_type"], message["content"]
        if kind == ASK:
            self.questions[engine] = content
            self.changed.set()
            return True
        if kind not in ("stream", "display_data", "execute_result", "update_display_data", "clear_output"):
            return False
        with self._lock:
            screen = self._screens.setdefault(engine, Screen())
            if kind == "stream":
                self._print(engine, screen, content)
            elif kind == "clear_output":
                self._screens[engine] = Screen()
                self._outputs.pop(engine, None)
            else:
                self._display(engine, screen, kind, content)
        self.version += 1
        self.changed.set()
        return bool(kind != "execute_result")  # of which ipyparallel makes the result

    def items(self, complete: bool = False) -> dict[int, list[Item]]:
        """What each engine has shown by now; without the line that goes on, if only what is ``complete`` is asked."""
        with self._lock:
            found = sorted(self._screens.items())
            return {engine: screen.items[: screen.complete if complete else None] for engine, screen in found}

    def open_lines(self) -> dict[int, Line]:
        """The line that goes on, of each engine that has one."""
        with self._lock:
            last = {engine: screen.items[screen.complete :] for engine, screen in sorted(self._screens.items())}
            return {engine: each[0] for engine, each in last.items() if each and isinstance(each[0], Line)}

    def widgets(self) -> list[tuple[int, dict[str, Any]]]:
        """What has been displayed that lives in the page: by engine, as messages have it."""
        with self._lock:
            return list(self._widgets)

    def text(self, engine: int, name: str) -> str:
        """What is kept of a stream, as text."""
        lines = [each for each in self.items().get(engine, []) if not isinstance(each, Bundle)]
        own = [each.text for each in lines if each.error == (name == "stderr")]
        return "\n".join(own) + ("\n" if own else "")

    def outputs(self, engine: int) -> list[dict[str, Any]]:
        """What is kept of its displays, as messages have it."""
        with self._lock:
            return list(self._outputs.get(engine, ()))

    def close(self) -> None:
        """Nothing more comes."""
        if self._rest is not None:
            with contextlib.suppress(OSError):
                self._rest.close()

    def _print(self, engine: int, screen: Screen, content: Mapping[str, Any]) -> None:
        text = content["text"]
        if len(text) <= self._room:
            self._room -= len(text)
            screen.write(text, content["name"] == "stderr")
        else:
            self._room = 0
            self._to_file(engine, text)

    def _display(self, engine: int, screen: Screen, kind: str, content: Mapping[str, Any]) -> None:
        data, metadata = content["data"], content.get("metadata") or {}
        if not _PAGE.isdisjoint(data):
            self._widgets.append((engine, dict(content)))
            self._outputs.setdefault(engine, []).append(dict(content))
            return
        known = (content.get("transient") or {}).get("display_id")
        blob = json.dumps(data, sort_keys=True, default=str)
        if len(blob) > self._room:
            self._room = 0
            self._to_file(engine, blob + "\n")
            return
        self._room -= len(blob)
        key = int.from_bytes(hashlib.blake2b(blob.encode("utf-8", "replace"), digest_size=7).digest(), "big")
        bundle = Bundle(key, dict(data), dict(metadata), known)
        if kind == "update_display_data":
            screen.update(bundle)
            return
        screen.add(bundle)
        if kind == "display_data":
            self._outputs.setdefault(engine, []).append(dict(content))

    def _to_file(self, engine: int, text: str) -> None:
        self.full = True
        with contextlib.suppress(OSError):  # a full disk must not end the thread that gets messages
            if self._rest is None:
                number, name = tempfile.mkstemp(prefix="workbench-output-", suffix=".txt")
                self._rest, self.file = os.fdopen(number, "w", encoding="utf-8", errors="replace"), Path(name)
            self._rest.write(f"[rank {engine}] {text}")
            self._rest.flush()


__all__ = ["KEPT_BYTES", "Collected"]
