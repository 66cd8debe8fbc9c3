"""The kernel of an engine: where ipykernel's own does not suit cells that several ranks run.

1. A cell with ``await`` outside of a function, which an engine of ipyparallel 9 with ipykernel 7 never answers.
   ipykernel runs it on the loop that serves the engine's messages, and asks a thread that only a notebook's own kernel
   has; the error is logged, and no answer is sent. Here such a cell runs on a loop of its own, as any other cell on the
   main thread, and the engine takes the next message when it has ended. Tasks that it leaves go on in the next such
   cell.
2. A cell that comes behind one that has failed. ipykernel drops what is in its queue then. The notebook's user has sent
   that cell after the stop button, or behind ``%%px --noblock``; and it would run on the ranks on which the first one
   did not fail. Here it runs on all of them.
3. A cell that calls ``input()`` or ``breakpoint()``. An engine has no terminal; here the notebook asks its user.
4. The notebook numbers its cells (:mod:`workbench.common.cell_numbers`): here an engine reads what it says.
5. The notebook asks what an engine is at, while a cell runs: the control channel has a thread of its own. ipykernel
   publishes before and after each message there that it is busy, and flushes: four times the cost of the answer.
6. What a cell prints: see :mod:`workbench.launch.ranks.engine`. A cell that sets ``sys.stdout`` to None, to a file
   that it closes, or to an object without ``flush()``: ipykernel fails to flush it, and never answers any more.
7. A cell that another notebook has sent, by a client of its own: it is told whose engines these are.
8. JupyterLab's debugger stops ranks: see :mod:`workbench.launch.ranks.debugger`.
9. ``quit()`` and ``exit()``, which would end an engine some time after the cell, and the job with it: the cell ends
   with an error.
10. A process that a cell has forked, and that comes to the cell's end: it ends there. It would wait for messages on
   the engine's sockets as a second engine, and keep a core busy.
"""

from __future__ import annotations

import asyncio
import os
import pdb
import sys
import traceback
from collections.abc import Coroutine
from functools import partial
from typing import Any, TextIO, TypeVar

from ipyparallel.engine.kernel import IPythonParallelKernel

from workbench.common.cell_numbers import KEY, STATE, CellNumbers
from workbench.common.text import cut
from workbench.launch.ranks.activity import Activity, Published
from workbench.launch.ranks.debugger import DEBUG, Debugger
from workbench.launch.ranks.names import NAMES, about_names
from workbench.launch.ranks.questions import ANSWERS, ASK, Questions
from workbench.launch.ranks.short_traceback import MOST_TEXT, number_cells, shorten_tracebacks

_LONG_WAIT_S = 0.4
_OURS = [kind.encode() for kind in (KEY, STATE, NAMES, ASK)]
_FOREIGN = (
    "workbench: these engines belong to another notebook. Cells of both run in turn, but not in the same order on each "
    "rank: then a collective of this one meets one of the other. cluster.up() starts engines for this notebook."
)

T = TypeVar("T")


class Kernel(IPythonParallelKernel):  # type: ignore[misc]  # ipyparallel has no types
    """See the module.

    Attributes:
        cell_numbers: what the notebook has sent to whom.
        streams: by name what ``sys.stdout`` and ``sys.stderr`` are before a cell replaces them.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.shell.loop_runner = Loop()
        shorten_tracebacks(self.shell.InteractiveTB)
        self._show_traceback, self.shell._showtraceback = self.shell._showtraceback, self._publish_failure
        self.shell.ask_exit = refuse_exit
        self._pid, self.streams = os.getpid(), dict[str, TextIO]()
        self.shell.events.register("post_execute", self._cell_over)
        self.cell_numbers = CellNumbers(self.engine_id)
        number_cells(self.shell, lambda: self.cell_numbers.cell)
        self.control_handlers[KEY] = self._receive_numbers
        self.control_handlers[STATE] = self._say_state
        self._activity, self._foreign = Activity(), set[str]()
        self._published = Published(self._publish_state, lambda s, do: self.control_stream.io_loop.call_later(s, do))
        self.control_handlers[NAMES] = self._say_names
        self.shell.Completer.use_jedi = False
        self.shell.set_hook("show_in_pager", print_page, 0)
        self.control_handlers[ASK] = self._receive_answer
        self.control_handlers[DEBUG] = self._debug
        self._debugger = Debugger(self.shell, self._publish_stop)
        self._show_failure, self.shell.showtraceback = self.shell.showtraceback, self._failed
        self._questions = Questions(self._publish_question, self._debugger.stop)
        sys.breakpointhook = pdb.set_trace = self._questions.breakpoint

    async def process_control(self, msg: Any) -> None:
        idents, parts = self.session.feed_identities(msg, copy=False)
        if not any(kind in bytes(parts[1]) for kind in _OURS):
            await super().process_control(msg)
            return
        try:
            message = self.session.deserialize(parts, content=True, copy=False)
            self.control_handlers[message["header"]["msg_type"]](self.control_stream, idents, message)
        except Exception:
            self.log.exception("A message of the notebook could not be handled.")

    def init_metadata(self, parent: Any) -> Any:
        self.cell_numbers.begin(parent.get("metadata", {}).get(KEY))
        self._activity.begins()
        self._questions.begins(bool(parent.get("metadata", {}).get(ANSWERS)))
        self._debugger.begins(parent["content"].get("code", ""), parent.get("metadata", {}).get(DEBUG))
        self._warn(parent)
        return super().init_metadata(parent)

    def _warn(self, parent: Any) -> None:
        """A notebook whose engines these are not is told so, once by each of them."""
        session = parent["header"].get("session", "")
        if KEY not in parent.get("metadata", {}) and parent["header"]["msg_type"] == "execute_request":
            if session not in self._foreign:
                print(_FOREIGN, file=sys.stderr)
            self._foreign.add(session)

    def finish_metadata(self, parent: Any, metadata: Any, reply_content: Any) -> Any:
        """A request has ended; an empty cell has not even begun."""
        self._mend_streams()
        self._debugger.ends()
        self._activity.ends()
        self.cell_numbers.changed()
        metadata[KEY] = {"drifted": self.cell_numbers.drifted()}
        if "evalue" in reply_content:
            reply_content["evalue"] = cut(reply_content["evalue"], MOST_TEXT)
        return super().finish_metadata(parent, metadata, reply_content)

    def _send_abort_reply(self, stream: Any, msg: Any, idents: Any) -> Any:
        """A request is passed over."""
        self.cell_numbers.passed_over(msg.get("metadata", {}).get(KEY))
        return super()._send_abort_reply(stream, msg, idents)

    def _receive_numbers(self, stream: Any, ident: Any, parent: Any) -> None:
        """The notebook says what has changed, on the control channel."""
        self.cell_numbers.receive(parent["content"])

    def _say_names(self, stream: Any, ident: Any, parent: Any) -> None:
        """The notebook asks for completions, or what an object is."""
        try:
            found = about_names(self.shell, parent["content"])
        except Exception:  # of an object of the user
            self.log.exception("Names could not be completed.")
            found = {}
        self.session.send(stream, f"{NAMES}_reply", content=found, parent=parent, ident=ident)

    def raw_input(self, prompt: str = "") -> str:
        return self._questions.ask(str(prompt))

    def getpass(self, prompt: str = "", stream: Any = None) -> str:
        return self._questions.ask(str(prompt), password=True)

    def _publish_question(self, content: dict[str, Any]) -> None:
        parent = self.get_parent("shell")
        self.session.send(self.iopub_socket, ASK, content, parent=parent, ident=self._topic(ASK))

    def _receive_answer(self, stream: Any, ident: Any, parent: Any) -> None:
        """The notebook's user has answered, on the control channel."""
        self._questions.answer(parent["content"])

    def _debug(self, stream: Any, ident: Any, parent: Any) -> None:
        """The notebook's debugger asks, on the control channel; the main thread may answer."""

        def respond(content: dict[str, Any]) -> None:
            send = partial(self.session.send, stream, f"{DEBUG}_reply", content, parent=parent, ident=ident)
            stream.io_loop.add_callback(send)

        self._debugger.receive(parent["content"], respond)

    def _publish_stop(self, content: dict[str, Any]) -> None:
        parent, ident = self.get_parent("shell"), self._topic(DEBUG)
        self.session.send(self.iopub_socket, DEBUG, content | {"engine": self.engine_id}, parent=parent, ident=ident)

    def _failed(self, *args: Any, **options: Any) -> None:
        """What IPython calls when a cell has failed."""
        self._cell_over(sys.exc_info()[1])
        self._debugger.failed()
        self._show_failure(*args, **options)

    def _publish_failure(self, kind: type[BaseException], error: object, lines: list[str]) -> None:
        self._show_traceback(kind, cut(str(error), MOST_TEXT), lines)

    def _cell_over(self, error: BaseException | None = None) -> None:
        """The cell's last statement has ended, or has failed."""
        self._mend_streams()
        if os.getpid() == self._pid:
            return
        if error is not None and not isinstance(error, SystemExit):
            traceback.print_exception(error)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(int(error is not None))

    def _mend_streams(self) -> None:
        """ipykernel flushes ``sys.stdout`` before it answers: one that a cell has broken would keep it from that."""
        for name, own in self.streams.items():
            try:
                getattr(sys, name).write("")
                getattr(sys, name).flush()
            except Exception as error:  # noqa: BLE001 - of the user's object
                setattr(sys, name, own)
                print(f"sys.{name} is the engine's own again: {error!r}", file=self.streams["stderr"])

    def _say_state(self, stream: Any, ident: Any, parent: Any) -> None:
        """The notebook asks, on the control channel, which has a thread of its own."""
        asked = parent["content"]
        state = self._state(asked.get("stack", False))
        state["others"] = bool(self._foreign)  # have other notebooks sent cells?
        self.session.send(stream, f"{STATE}_reply", content=state, parent=parent, ident=ident)
        if "every_s" in asked:
            self._published.ask(asked["every_s"], asked.get("stack", False))

    def _publish_state(self, stack: bool) -> bool:
        """Without a request and its way through nanny and hub it costs a fifth."""
        state = self._state(stack)
        self.session.send(self.iopub_socket, STATE, state | {"engine": self.engine_id}, ident=self._topic(STATE))
        return any(each["since_s"] > _LONG_WAIT_S for each in state.get("waits", ()))

    def _state(self, stack: bool) -> dict[str, Any]:
        return self._activity.now(stack) | self.cell_numbers.state()

    def _abort_queues(self, *subshell: Any) -> None:
        """What ipykernel calls when a cell has failed: drop nothing."""


def refuse_exit() -> None:
    """What ``quit()`` and ``exit()`` do."""
    raise RuntimeError(
        "quit() and exit() do not end an engine: the other ranks would lose this one. The cell has ended here. "
        "engines.down() in a cell without %%px ends all engines."
    )


def print_page(shell: Any, data: Any, start: int = 0, screen_lines: int = 0, pager_cmd: Any = None) -> None:
    """What ``x?`` shows goes with the output of the cell: an engine has no pager."""
    print(data.get("text/plain", "") if isinstance(data, dict) else data)


class Loop:
    """Runs coroutines, one at a time, even where another loop is running on this thread.

    Example:
        >>> async def both():
        ...     return await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))
        >>> async def within_another():
        ...     return run(both())
        >>> run = Loop()
        >>> asyncio.run(within_another()), run.close()
        ([1, 2], None)
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def __call__(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What it returns; Ctrl-C cancels it."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        loop = self._loop
        task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            raise
        finally:
            asyncio._set_running_loop(outer)

    def close(self) -> None:
        self._loop.close()
