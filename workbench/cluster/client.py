"""ipyparallel's client, with what notebooks of ranks need beside it. Tried with ipyparallel 9.1 and 9.2.

An engine of 9.0 does not answer with ipykernel 7.

1. In an IPython that has no kernel, as a terminal's: what an engine's widgets send, such as the bar of ``tqdm.auto``,
   ipyparallel relays to the kernel of the notebook. It asks a terminal's IPython for one, too: that raises on the
   thread that gets the answers, and the cell's end is lost.
2. What engines publish while a cell runs goes to a listener, before ipyparallel puts it together in its own way.
3. An engine can be asked what it is at while it runs a cell: by the control channel. By that it gets answers, too, when
   its cell asks the user something.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ipyparallel
from IPython import get_ipython

from workbench.launch.ranks.questions import ANSWERS

Listener = Callable[[int, Mapping[str, Any]], bool]
"""Gets the engine's id and a message of the iopub channel; says whether nobody else shall get it."""


class _Sending(threading.local):
    """What this thread sends, to whom, and who listens to what the engine publishes for it."""

    listener: Listener | None = None
    answers = False
    engine = -1


class Client(ipyparallel.Client):  # type: ignore[misc]  # ipyparallel has no types
    """A terminal shows what a widget is as text, and drops what it sends."""

    _dispatch_message = ipyparallel.Client._dispatch_iopub.__wrapped__

    def __init__(self, *args: Any, **options: Any) -> None:
        self._sending, self._listeners = _Sending(), dict[str, tuple[Listener, int]]()  # by the message's id
        super().__init__(*args, **options)

    @contextlib.contextmanager
    def listening(self, listener: Listener, answers: bool = False) -> Iterator[None]:
        """What engines publish for a request that this thread sends within the block goes to ``listener``.

        Args:
            listener: gets it.
            answers: does somebody answer when an engine asks? See ``launch/ranks/questions.py``.
        """
        self._sending.listener, self._sending.answers = listener, answers
        try:
            yield
        finally:
            self._sending.listener = None

    def forget(self, listener: Listener) -> None:
        """The listener gets nothing any more."""
        for msg_id, each in list(self._listeners.items()):
            if each[0] == listener:
                del self._listeners[msg_id]

    def ask(self, engine: int, kind: str, content: dict[str, Any]) -> Any:
        """Send a message on the control channel; a future of the answer; None if the engine is gone."""
        ident = self._engines.get(engine)
        return ident and self._send(self._control_stream, kind, content=content, ident=ident.encode())

    def _send(
        self, socket: Any, msg_type: str, content: Any = None, parent: Any = None, ident: Any = None, **options: Any
    ) -> Any:
        self._sending.engine = self._engines.get(ident.decode(), -1) if isinstance(ident, bytes) else -1
        if self._sending.listener is not None and self._sending.answers:
            options["metadata"] = {**(options.get("metadata") or {}), ANSWERS: True}
        return super()._send(socket, msg_type, content, parent, ident, **options)

    def create_message_futures(self, msg_id: str, header: Any, *args: Any, **options: Any) -> Any:
        if self._sending.listener is not None and self._sending.engine >= 0:
            self._listeners[msg_id] = self._sending.listener, self._sending.engine
        return super().create_message_futures(msg_id, header, *args, **options)

    def _dispatch_iopub(self, parts: Any) -> None:
        _, message = self.session.feed_identities(parts, copy=False)
        try:
            message = self.session.deserialize(message, content=True, copy=False)
        except Exception:
            self.log.exception("A message from an engine could not be read.")
            return
        found = self._listeners.get((message["parent_header"] or {}).get("msg_id", ""))
        if found is not None and found[0](found[1], message):
            return
        no_kernel = [] if hasattr(get_ipython(), "kernel") else [AttributeError]
        with contextlib.suppress(*no_kernel):
            self._dispatch_message(message)


__all__ = ["Client", "Listener"]
