"""All that the notebook's process does with private parts of ipyparallel. Tried with ipyparallel 9.1.0 and 9.2.0.

An engine of 9.0 does not answer with ipykernel 7. The other modules call the public names below. ipyparallel promises
none of these parts; ``tests/cluster/test_ipyparallel_internals.py`` compares them with the ones that are installed.

===================================  ===================================================================================
part                                 what it is needed for; what happens without it
===================================  ===================================================================================
``Client._send``                     numbers requests, see ``sent_cells.py``; says that a question of an engine is
                                     answered. Without it ``cluster.up`` fails; if it is no more called, unnamed tensors
                                     of ranks may differ after a cell that failed, and ``input()`` raises.
``Client.create_message_futures``    says by which id an engine answers. Without it cells show no output.
``Client._dispatch_iopub``           what engines publish: output as it comes; the fault below. Without it the import of
                                     this module fails.
``Client._build_targets``            which engines a call is for: names those that have died, leaves them out in elastic
                                     clusters. Without it ``cluster.up`` fails.
``Client._engines``                  the name under which a message reaches an engine. Without it ``cluster.up`` fails.
``Client._query_stream``             asks the hub which engines there are. Without it ``cluster.up`` fails.
``Client._update_engines``           takes them in. Without it ``cluster.up`` may take 60 s and fail.
``Client._control_stream``           messages to an engine that runs a cell. Without it ``cluster.up`` fails.
``Client._io_loop``                  work on the client's own thread. Without it ``cluster.up`` fails.
``Client._queue_handlers``           sees answers before anybody else. Without it ``cluster.up`` fails.
``Client._closed``                   sends nothing after the end. Without it an error is logged after ``down``.
``Client._futures``                  the answers that are awaited. Without it broadcast views and elastic clusters fail.
``Client._unwrap_exception``         says of an engine that has died where it was, and what to do.
``Client._handle_stranded_msgs``     what an engine that has died has not answered. Without it, and without each of the
                                     following, a cell of an elastic cluster does not outlive an engine.
``Client._outstanding_dict``         the same, by engine.
``Client._handle_execute_reply``     answers in the place of an engine: a cell,
``Client._handle_apply_reply``       a call,
``Client._output_futures``           and the end of its output; whether what comes is of a cell that has ended.
``AsyncResult._targets``             the engines of a result. Without it ``%px`` fails, as without the following two.
``AsyncResult._children``            the answer of each.
``AsyncResult._fname``               the name of a cell in error messages.
``ParallelMagics.parallel_execute``  ``px.py`` runs cells in its place. Without it output comes at the end.
===================================  ===================================================================================

Engines are another process, which loads nothing of the notebook's: what they take from ipyparallel's and ipykernel's
private parts is in ``launch/ranks/engine.py`` and ``launch/ranks/kernel.py``, and the same test looks at it.

A fault of ipyparallel 9.1 and 9.2, worked around in ``Client._dispatch_iopub``. In IPython on a terminal a cell whose
engines make a widget never ends: ``rc[:].activate()``, ``%px from tqdm.auto import tqdm``, ``%px list(tqdm([1]))``. The
method relays ``comm_open`` to the notebook's kernel if ``ip is not None and ip.kernel is not None``; but a
``TerminalInteractiveShell`` has no attribute ``kernel``. The ``AttributeError`` leaves the iopub stream's callback,
and with it ``ZMQStream._handle_events``, on the client's thread, before the stream has looked for more messages. ZeroMQ
reports only what comes to an empty queue, so nothing more is read from it: ``result.wait_for_output()``, which ``%px``
calls without a deadline, waits for an "idle" that is there, and later cells show nothing. It should ask
``getattr(ip, "kernel", None)``.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import ipyparallel
from ipyparallel import error
from IPython import get_ipython

from workbench.cluster.output.widgets import Relay
from workbench.common.cell_numbers import STATE
from workbench.launch.ranks.debugger import DEBUG
from workbench.launch.ranks.questions import ANSWERS

Find = Callable[[Any], tuple[list[bytes], list[int]]]
"""Gets what a view has as targets; gives the engines' names and ids."""

Listener = Callable[[int, Mapping[str, Any]], bool]
"""Gets the engine's id and a message of the iopub channel; says whether nobody else shall get it."""

_REQUESTS = ("execute_request", "apply_request")
_DIED = re.compile(r"Engine (?:b')?([\w-]+)'? died while running task")  # its id, or of the task scheduler its name


class Request(NamedTuple):
    """What is about to be sent: a cell or a call.

    Args:
        engines: they get it, and each answers by itself. Empty where that is not known, or where they answer together.
        possible: where no engines are known: one of these runs it, or all do.
        metadata: of the message.
    """

    engines: list[int]
    possible: list[int]
    metadata: Mapping[str, Any]


Number = Callable[[Callable[..., Any], Request], Any]
"""Gets a function that sends, whose ``metadata`` it chooses, and the request; gives what the function returns."""


class _Sending(threading.local):
    """What this thread sends, to whom, and who listens to what the engine publishes for it."""

    listener: Listener | None = None
    answers = False
    engine = -1


class Client(ipyparallel.Client):  # type: ignore[misc]  # ipyparallel has no types
    """ipyparallel's client, whose private parts have public names here. On a terminal it drops what widgets send.

    Attributes:
        states: by engine when it said last what it is at, by ``time.monotonic()``, and what that was.
        debugger: a :class:`workbench.cluster.debugger.RanksDebugger`, in a notebook: with cells engines get what their
            debugger must know, and what that says is no output.
        died: what there is to say of an engine that has died; "" as long as why is to be waited for.
        on_lost: gets, on the client's thread, an engine that has died, its name, and what it has not answered.
        late: gets what threads and processes print that an ended cell has left, on the client's thread.
    """

    debugger: Any = None
    died: Callable[[int], str] = staticmethod(lambda engine: f"engine {engine} is gone")
    on_lost: Callable[[int, str, list[str]], None] | None = None
    late: Listener | None = None

    _dispatch_message = ipyparallel.Client._dispatch_iopub.__wrapped__

    def __init__(self, *args: Any, **options: Any) -> None:
        self._sending, self._listeners = _Sending(), dict[str, tuple[Listener, int]]()  # by the message's id
        self._number: Number | None = None
        self._gone = dict[str, int]()  # by name, engines that have died
        self.states: dict[int, tuple[float, dict[str, Any]]] = {}
        # Of a widget that is set very often all messages would block the notebook.
        self._relay = Relay(self._pass_on, self.later, time.monotonic)
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
        for msg_id, each in list(self._listeners.items()):
            if each[0] == listener:
                del self._listeners[msg_id]

    def around_targets(self, wrap: Callable[[Find, Any], tuple[list[bytes], list[int]]]) -> None:
        """Each call of a view asks ``wrap`` for its engines, which gets what was asked before it, and the targets."""
        self._build_targets: Find = partial(wrap, self._build_targets)

    def around_requests(self, number: Number) -> None:
        """Each cell and each call is sent by ``number``."""
        self._number = number

    def before_replies(self, look: Callable[[Mapping[str, Any]], None]) -> None:
        """The client's thread shows ``look`` the answers to cells and calls, before anybody knows of them."""

        def handle(then: Callable[[Any], None], message: Any) -> None:
            look(message)
            then(message)

        for kind in ("execute_reply", "apply_reply"):
            self._queue_handlers[kind] = partial(handle, self._queue_handlers[kind])

    def named(self) -> list[tuple[int, str]]:
        """Engines and their names, at once: the client's own thread takes in others and drops those that have gone."""
        return list(self._engines.items())

    def answer_of(self, request: Any, engine: int) -> Any:
        """The future of an engine's answer: of a broadcast view's request each is awaited by itself."""
        return self._futures.get(f"{request.msg_id}_{self._engines.get(engine)}", request)

    def answer_instead(self, msg_id: str, engine: int, name: str, why: Exception, cells_too: bool) -> None:
        """In the place of an engine, on the client's thread: a call has failed; a cell's part is empty, or has failed.

        Args:
            msg_id: of the request.
            engine: its id.
            name: its name, or any text where it is gone.
            why: what is raised.
            cells_too: have cells failed?
        """
        future = self._futures.get(msg_id)
        if future is None or future.done():
            return
        is_cell = future.header["msg_type"] == "execute_request"
        content: dict[str, Any] = {"status": "ok", "execution_count": 0, "payload": [], "user_expressions": {}}
        if cells_too or not is_cell:
            try:
                raise why
            except type(why):
                content = error.wrap_exception()
        message = self.session.msg("execute_reply" if is_cell else "apply_reply", content=content)
        message["parent_header"]["msg_id"] = msg_id
        message["metadata"]["engine"] = name
        self.metadata[msg_id]["engine_id"] = engine
        (self._handle_execute_reply if is_cell else self._handle_apply_reply)(message)
        output = self._output_futures.get(msg_id)
        if output and not output.done():
            output.set_result(None)

    def soon(self, function: Callable[..., None], *args: Any) -> None:
        """Call it on the client's own thread."""
        self._io_loop.add_callback(function, *args)

    def later(self, after_s: float, function: Callable[[], None]) -> None:
        """On the client's own thread: call it there again."""
        self._io_loop.call_later(after_s, function)

    def ask(self, engine: int, kind: str, content: dict[str, Any]) -> Any:
        """Send a message on the control channel; a future of the answer; None if the engine is gone, or the cluster."""
        ident = self._engines.get(engine)
        with contextlib.suppress(OSError):  # the client is closed
            return ident and self._send(self._control_stream, kind, content=content, ident=ident.encode())
        return None

    def look_again(self) -> None:
        """Ask the hub which engines there are: one that came before this had subscribed was never announced to it."""

        def take(asked: Any) -> None:
            if asked.exception() is None:
                self._update_engines(asked.result()["content"]["engines"])

        self._send(self._query_stream, "connection_request").add_done_callback(take)

    def tell(self, engine: int, kind: str, content: dict[str, Any]) -> None:
        """On the client's own thread: send a message on the control channel that has no answer."""
        if not self._closed and (ident := self._engines.get(engine)):
            self.session.send(self._control_stream, kind, content=content, ident=ident.encode())

    @property
    def closed(self) -> bool:
        return bool(self._closed)

    def _send(
        self, socket: Any, msg_type: str, content: Any = None, parent: Any = None, ident: Any = None, **options: Any
    ) -> Any:
        name = ident.decode() if isinstance(ident, bytes) else ""
        self._sending.engine = self._engines.get(name, -1)
        metadata = dict(options.pop("metadata", None) or {})
        if self._sending.listener is not None and self._sending.answers:
            metadata[ANSWERS] = True
        if self.debugger is not None and msg_type in _REQUESTS:
            metadata[DEBUG] = self.debugger.told((content or {}).get("code", ""))
        send = partial(super()._send, socket, msg_type, content, parent, ident, **options)
        if self._number is None or msg_type not in _REQUESTS:
            return send(metadata=metadata)
        future = self._number(send, self._described(ident, name, metadata))
        if name and self._engines.get(name) is None:
            self.soon(self._strand, name, future)
        return future

    def _strand(self, name: str, future: Any) -> None:
        """Its engine has died while it was sent: so the client knows of no message to it, and nobody would answer."""
        if not future.done():
            self.results.pop(future.msg_id, None)
            self.outstanding.add(future.msg_id)
            self._outstanding_dict[name].add(future.msg_id)
            self._handle_stranded_msgs(self._gone[name], name)

    def _described(self, ident: Any, name: str, metadata: Mapping[str, Any]) -> Request:
        if metadata.get("is_broadcast"):
            engines = [] if metadata["is_coalescing"] else [engine for _, engine in metadata["targets"]]
        else:
            engines = [engine for engine, each in self.named() if each == name]
        targets = [each if isinstance(each, str) else each[0] for each in metadata.get("targets") or ()]
        possible = [engine for engine, each in self.named() if not targets or each in targets]
        return Request(engines, [] if engines or ident else possible, metadata)

    def create_message_futures(self, msg_id: str, header: Any, *args: Any, **options: Any) -> Any:
        if self._sending.listener is not None and self._sending.engine >= 0:
            self._listeners[msg_id] = self._sending.listener, self._sending.engine
        return super().create_message_futures(msg_id, header, *args, **options)

    def _handle_stranded_msgs(self, engine: int, name: str) -> None:
        self._gone[name] = engine
        if self.debugger is not None:
            self.debugger.gone(engine)
        if self.on_lost is not None:
            self.on_lost(engine, name, list(self._outstanding_dict[name]))
        elif not self.died(engine):
            self.later(0.05, partial(self._handle_stranded_msgs, engine, name))
        else:
            super()._handle_stranded_msgs(engine, name)

    def _unwrap_exception(self, content: Any) -> Any:
        found = super()._unwrap_exception(content)
        if found.ename == "EngineError" and (died := _DIED.match(found.evalue)):
            engine = int(died[1]) if died[1].isdecimal() else self._gone.get(died[1], -1)
            found.evalue, found.traceback = self.died(engine) or found.evalue, ""
            found.engine_info = {"engine_id": engine, "method": "died"}
        return found

    def _dispatch_iopub(self, parts: Any) -> None:
        topic, message = self.session.feed_identities(parts, copy=False)
        try:
            message = self.session.deserialize(message, content=True, copy=False)
        except Exception:
            self.log.exception("A message from an engine could not be read.")
            return
        if message["header"]["msg_type"] == DEBUG:
            if self.debugger is not None:
                self.debugger.happened(message["content"])
            return
        if message["header"]["msg_type"] == STATE:
            self.states[message["content"]["engine"]] = time.monotonic(), message["content"]
            return
        msg_id = (message["parent_header"] or {}).get("msg_id", "")
        found = self._listeners.get(msg_id) or self._of_nobody(msg_id, topic)
        if found is not None and found[0](found[1], message):
            return
        if message["header"]["msg_type"].startswith("comm_"):
            self._relay.take(message)
        else:
            self._pass_on(message)

    def _of_nobody(self, msg_id: str, topic: list[bytes]) -> tuple[Listener, int] | None:
        """Who gets the output of an engine whose request is over."""
        kind, _, rest = (bytes(topic[0]) if topic else b"").decode().partition(".")
        engine, output = rest.partition(".")[0], self._output_futures.get(msg_id)
        if self.late is None or kind != "engine" or not engine.isdecimal() or (output and not output.done()):
            return None
        return self.late, int(engine)

    def _pass_on(self, message: Any) -> None:
        no_kernel = [] if hasattr(get_ipython(), "kernel") else [AttributeError]
        with contextlib.suppress(*no_kernel):
            self._dispatch_message(message)


def engines_of(result: Any) -> list[int]:
    """The engines of which a view has made a result."""
    return [result._targets] if isinstance(result._targets, int) else list(result._targets)


def parts_of(result: Any) -> list[tuple[int, Any]]:
    """By engine the future of its answer; those that are not yet sent are left out."""
    return list(zip(engines_of(result), result._children, strict=False))


def call_it(result: Any, name: str) -> None:
    """What a result is called in its error messages."""
    result._fname = name


def keep_output(part: Any, **outputs: Any) -> None:
    """What an engine has put out, for those who ask its result for it."""
    part.output.metadata.update(outputs)
