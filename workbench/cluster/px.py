"""``%px``, ``%%px`` and ``%%rank``: ipyparallel's magics, whose cells show their output while they run.

Where nobody sits before the notebook (nbval, nbclient, ``make lessons``), outputs come when all ranks are done, grouped
by kind: the same in every run. A frontend says with each cell whether somebody can be asked something.
"""

from __future__ import annotations

import contextvars
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from comm import create_comm
from ipyparallel.client.magics import ParallelMagics
from IPython.core.error import UsageError

from workbench import config
from workbench.cluster.debugger import STANDS, RanksDebugger
from workbench.cluster.frontend import somebody_answers, somebody_looks
from workbench.cluster.ipyparallel_internals import call_it, engines_of, keep_output, parts_of
from workbench.cluster.names import EngineNames
from workbench.cluster.output.as_data import RANKS
from workbench.cluster.output.collected import Collected
from workbench.cluster.output.shown import BelowTheCell, OnTerminal, Shown
from workbench.cluster.panel.activity import EngineStates, lines, sentence
from workbench.cluster.questions import Asker
from workbench.common.notebook import running_kernel
from workbench.common.text import count, first_line, rank_list, spans
from workbench.job.context import HOLDER
from workbench.launch.ranks.questions import ASK

_LOOK_S = 0.05
_TOGETHER_S = 0.03  # what ranks print at one time is shown together
_PAUSE_S = 0.07
_SIGN_S = 2.0  # a cell that runs for so long says what its ranks are at, and so often
_ASK_S = 0.5
_AFTER_CTRL_C_S = 10.0
_NOTE = 300  # characters


class Px(ParallelMagics):  # type: ignore[misc]  # ipyparallel has no types
    """The magics of one view; see the module."""

    names: EngineNames | None = None
    debugger: RanksDebugger | None = None
    comm: Any = None  # by which JupyterLab's status bar knows the ranks
    warned = False
    stream_output = None  # as the frontend is
    progress_after_seconds = -1

    def parallel_execute(
        self,
        cell: str,
        block: bool | None = None,
        groupby: str = "type",
        save_name: str | None = None,
        stream_output: bool | None = None,
        progress_after: float | None = None,
        signal_on_interrupt: str | int | None = None,
    ) -> Any:
        """Run a cell on the engines of the view. What ipyparallel has: without ``block`` the result comes at once."""
        if not (self.view.block if block is None else block):
            return super().parallel_execute(cell, block, groupby, save_name)
        live = stream_output if stream_output is not None else self.stream_output
        live = somebody_looks() if live is None else live
        signal = self.signal_on_interrupt if signal_on_interrupt is None else signal_on_interrupt
        client = self.view.client
        client.late = None
        collected = Collected(len(client.ids), bars=live and not config.each_bar())
        with client.listening(collected.take, answers=live and somebody_answers()):
            result = self.view.execute(cell, silent=False, block=False)
        call_it(result, "%px")
        self.last_result = result
        if save_name:
            self.shell.user_ns[save_name] = result
        shown = self._shown(collected, engines_of(result)) if live else None
        try:
            self._run(result, collected, shown, signal)
        finally:
            client.forget(collected.take)
            collected.close()
            for engine, part in parts_of(result):
                kept = {name: collected.text(engine, name) for name in ("stdout", "stderr")}
                keep_output(part, **kept, outputs=collected.outputs(engine))
            if collected.too_much:
                print(collected.too_much, file=sys.stderr)
            if not live:
                result.display_outputs(groupby)

    def rank(self, line: str, cell: str) -> Any:
        """Run a cell on some ranks only: ``%%rank 1``, ``%%rank 0,2``, ``%%rank 1-3``; options as ``%%px`` has them.

        A collective that the other ranks do not call ends with an error that names them.
        """
        words = line.split()
        ranks = [each for each in words if not each.startswith("-")]
        targets = ranks_of(",".join(ranks), self.view.client.ids)
        options = [each for each in words if each.startswith("-")]
        return self.cell_px(" ".join([*options, f"--targets={targets}".replace(" ", "")]), cell)

    def forget(self) -> None:
        """Take back what :func:`activate` has changed in IPython; JupyterLab's status bar shows no ranks any more."""
        if self.names is not None:
            self.names.forget()
            self.shell.events.unregister("post_run_cell", self.own_init)
        if self.debugger is not None:
            self.debugger.forget()
        self.view.client.late = None
        if self.comm is not None:
            self.comm.close()

    def own_init(self, result: Any) -> None:
        """After a cell of the notebook itself: was ``init()`` meant for the engines?"""
        if HOLDER.find() is not None and not self.warned and somebody_looks():
            self.warned = True
            print(
                "workbench: init() was called in the notebook's own process, which is rank 0 of 1 and no engine. Begin "
                f"the cell with %%px: it then runs on the {count(len(self.view.client.ids), 'engine')}.",
                file=sys.stderr,
            )

    def _shown(self, collected: Collected, engines: Sequence[int]) -> Shown:
        kernel = getattr(self.shell, "kernel", None)
        if kernel is None:
            return OnTerminal(collected, engines)
        return BelowTheCell(collected, engines, kernel.get_parent("shell").get("metadata", {}).get("cellId", ""))

    def _run(self, result: Any, collected: Collected, shown: Shown | None, signal: str | int | None) -> None:
        begun, states = time.monotonic(), EngineStates(self.view.client, engines_of(result))
        for _, each in parts_of(result):
            each.add_done_callback(lambda done: collected.changed.set())
        try:
            _follow(self.view.client, result, collected, shown, states, begun)
            result.get()
        except KeyboardInterrupt:
            if signal is None:
                raise
            raise self._interrupt(result, states, signal) from None
        finally:
            taken = -1
            while not result.wait_for_output(1) and taken != collected.taken:  # ever more comes
                taken = collected.taken
            if shown is not None:
                took, late = time.monotonic() - begun, Late(self.view.client, collected, shown)
                shown.finish(f"{took:.1f} s" if took >= _SIGN_S else "")
                late.begin()

    def _interrupt(self, result: Any, states: EngineStates, signal: str | int) -> Interrupted:
        """Say where each rank was, and let all of them end as by Ctrl-C; the exception that ends the cell here."""
        states.poll(now=True)
        time.sleep(2 * _LOOK_S)
        states.poll()
        at = lines(states.known, _done(result), states.silent())
        print("\n".join(["Interrupted. What the ranks were at:", *(f"  {each}" for each in at)]), file=sys.stderr)
        running = [each for each in engines_of(result) if each not in _done(result)]
        if running:
            self.view.client.send_signal(signal, targets=running, block=True)
        result.wait(_AFTER_CTRL_C_S)
        if running := [each for each in engines_of(result) if each not in _done(result)]:
            return Interrupted(
                f"{rank_list(running)} {'has' if len(running) == 1 else 'have'} not ended by Ctrl-C: in C code nothing "
                "hears it, and what catches KeyboardInterrupt may go on. Stop once more, or call engines.rescue() in a "
                "cell without %%px, which starts new engines where it must."
            )
        return Interrupted("the cell was stopped on all ranks")


class Interrupted(KeyboardInterrupt):
    """The stop button has ended a cell; those behind it, as of "Run All", do not run."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


class Late:
    """What an engine's threads and child processes print after the end of the cell that has left them: shown below it.

    Args:
        client: of the notebook.
        collected: the cell's output, which takes what comes from now on.
        shown: where it is.
    """

    def __init__(self, client: Any, collected: Collected, shown: Shown) -> None:
        self._client, self._collected, self._shown = client, collected, shown
        self._ready, self._scheduled, self._some = False, False, False
        self._cell = contextvars.copy_context()  # in which ipykernel keeps the cell that a display belongs to
        client.late = self._take
        client.forget(collected.take)

    def begin(self) -> None:
        """The cell's end has been shown."""
        self._client.soon(self._start)

    def _start(self) -> None:
        self._ready = True
        if self._some:
            self._show()

    def _take(self, engine: int, message: Mapping[str, Any]) -> bool:
        if not self._collected.take(engine, message):
            return False
        self._some = True
        if self._ready and not self._scheduled:
            self._scheduled = True
            self._client.later(_TOGETHER_S, self._show)
        return True

    def _show(self) -> None:
        begun, self._some = time.monotonic(), False
        self._cell.run(self._shown.late)
        self._scheduled = self._ready = False
        self._client.later(4 * (time.monotonic() - begun), self._start)  # what one costs sets how many there are


def ranks_of(text: str, there: Sequence[int]) -> list[int]:
    """Numbers and spans of ranks.

    Raises:
        UsageError: no ranks, or some that are not there.

    Example:
        >>> ranks_of("0,2-3", range(4))
        [0, 2, 3]
        >>> ranks_of("7", range(4))
        Traceback (most recent call last):
        IPython.core.error.UsageError: %%rank: there is no rank 7; the ranks are 0-3
    """
    found: list[int] = []
    for each in filter(None, text.replace(" ", ",").split(",")):
        first, _, last = each.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise UsageError(f"%%rank: {each!r} is no rank. Write %%rank 1, %%rank 0,2 or %%rank 1-3.")
        found += range(int(first), int(last or first) + 1)
    if missing := [each for each in found if each not in there]:
        raise UsageError(f"%%rank: there is no {rank_list(missing)}; the ranks are {spans(there)}")
    if not found:
        raise UsageError("%%rank needs ranks: %%rank 1, %%rank 0,2 or %%rank 1-3. %%px runs a cell on all of them.")
    return list(dict.fromkeys(found))


def _follow(
    client: Any, result: Any, collected: Collected, shown: Shown | None, states: EngineStates, begun: float
) -> None:
    """Until all engines have answered: show what comes, and every two seconds what the ranks are at."""
    note, said, asked, version = "", begun, begun, 0
    asker = Asker(lambda rank, number, text: client.ask(rank, ASK, {"number": number, "text": text}))
    while not result.done():
        collected.changed.wait(_LOOK_S) if shown is not None else result.wait(_ASK_S)
        now, stands = time.monotonic(), client.debugger.note() if client.debugger is not None else ""
        if now - asked >= _ASK_S and now - begun >= _ASK_S:
            states.poll()
            asked = now
        if shown is None or result.done():
            continue
        collected.changed.clear()
        if collected.questions:
            result.wait(2 * _LOOK_S)  # other ranks may have come to the same breakpoint
            shown.refresh(asker.note(collected.questions))
            asker.ask(collected.questions)
            said = time.monotonic()
            continue
        if new := collected.version != version:
            result.wait(_TOGETHER_S)
            version = collected.version
        if stands != note and (stands or note.startswith(STANDS)):
            note, new, said = stands, True, now
        elif now - said >= _SIGN_S and not stands:
            said, new = now, True
            note = f"{now - begun:.0f} s: {sentence(states.known, _done(result), states.silent())}"
            note = first_line(note, _NOTE)
        if new:
            shown.refresh(note)
            result.wait(min(1.0, _PAUSE_S + 4 * (time.monotonic() - now)))  # what one costs sets how many there are


def _done(result: Any) -> list[int]:
    """The engines that have ended the cell."""
    return [engine for engine, each in parts_of(result) if each.done()]


def activate(view: Any, shell: Any) -> None:
    """Make the magics work on ``view``."""
    magics = Px(shell, view)
    magics.magics["cell"]["rank"] = magics.rank
    shell.magics_manager.register(magics)
    magics.names = EngineNames(view.client, shell)
    shell.events.register("post_run_cell", magics.own_init)
    kernel = running_kernel()
    if kernel is not None and somebody_looks():
        comm = magics.comm = create_comm(target_name=RANKS, data={"ranks": view.client.ids})
        comm.on_msg(lambda asked: comm.send({"ranks": view.client.ids}))
    if hasattr(kernel, "debugger") and getattr(kernel, "control_thread", None) is not None:
        magics.debugger = RanksDebugger(view.client, kernel)
