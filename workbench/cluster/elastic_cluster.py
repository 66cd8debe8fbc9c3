"""A cluster whose cells go on when an engine dies, and that takes in others: ``cluster.up(4, min_np=1)``.

::

    c = cluster.up(4, min_np=1)
    %px train(state)         # kill -9 of an engine: "engine 2 is gone: it was killed by SIGKILL; 3 are left"
    c.resize(4)              # a new engine, which runs the cells again that the others have run
    %px train(state)         # with four

A cell that trains in a function under ``hvd.elastic.run`` goes on with the engines that are left, and with those that
come while it runs: ``%%px --noblock`` keeps the notebook free for ``resize``. Later cells run on the engines that live.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.cluster import cells
from workbench.cluster.answers import first_answers
from workbench.cluster.cluster import Cluster, Speaker
from workbench.cluster.elastic.engines import ElasticEngines, ElasticHere
from workbench.cluster.elastic.forgiving import Forgiving
from workbench.cluster.elastic.history import CellHistory
from workbench.cluster.elastic.watch import MembershipChange
from workbench.cluster.recovery import unknown
from workbench.common.text import count, first_line, numbered
from workbench.elastic import notebook
from workbench.errors import LaunchError, PeerLostError

_LOOK_S = 0.02
_HUB_BEFORE_US_S = 2.0  # the hub may know of a death before its process can be asked


class ElasticCluster(Cluster):
    """See the module.

    Attributes:
        view: on all engines that live, without newcomers that run earlier cells.
    """

    _engines: ElasticEngines
    _place: ElasticHere

    def __init__(self, place: ElasticHere, log: Callable[[str], None] = print, ddp: bool = False) -> None:
        self._lock = threading.RLock()  # ipyparallel tells of results on a thread of its own
        super().__init__(place, log, ddp)

    def _new_job(self) -> None:
        self._history, self._joining, self._called = CellHistory(), list[Any](), list[Any]()
        self._newcomers: dict[int, int] = {}  # which cell is the next that each has to run
        super()._new_job()

    @property
    def changes(self) -> list[MembershipChange]:
        """The engines that were lost or have left, and the epochs that have begun, oldest first."""
        return list(self._engines.watch.changes)

    def ready(self) -> list[int]:
        """The engines on which cells run: all that live, without newcomers that run earlier cells."""
        with self._lock:
            return [each for each in self._engines.watch.living() if each not in self._newcomers]

    def healthy(self) -> bool:
        """Do as many live as there should be, and does the hub know them?"""
        living = self._engines.watch.living()
        return self._job.running() and list(self.client.ids) == living and len(living) == self.n

    def pids(self) -> list[int]:
        """The processes of the engines that live, in the order of their ids."""
        return [self._engines.watch.pid(each) for each in self._engines.watch.living()]

    def status(self) -> str:
        """Which engines live, and which rank each has."""
        if self._job.stopped():
            return "stopped"
        living, ranks = self._engines.watch.living(), self._engines.watch.ranks()
        named = [f"{each} (rank {ranks.index(each)})" if each in ranks else str(each) for each in living]
        return f"{count(len(living), 'engine')} of {self.n}: {', '.join(named)}"

    def rescue(self, timeout_s: float = 60.0, quiet: bool = False) -> None:
        """As many engines as there should be, in one job; those that live keep their variables. See :meth:`resize`.

        An engine that has waited in vain for the next epoch joins the others again. Where the hub is gone, all engines
        are started anew, and their variables are lost.
        """
        self._call_back()
        self.resize(self.n, timeout_s, quiet)

    def resize(self, n: int, timeout_s: float = 60.0, quiet: bool = False) -> None:
        """Start engines, or end some, until ``n`` live. Those that live keep their variables.

        A newcomer runs the cells again that ``%px`` has run on all engines without an error, so far as it can alone,
        see :mod:`workbench.elastic.notebook`; then what is running now. What came to the engines in another way, by
        ``push``, ``scatter``, ``apply`` or ``%px --targets``, it has not. A function under ``hvd.elastic.run`` takes it
        in at its next commit, and lets engines leave there. The others' weights come with ``state.sync()``, so at the
        beginning of such a function, and not before.

        Args:
            n: how many.
            timeout_s: deadline.
            quiet: print nothing.

        Raises:
            LaunchError: the cluster was stopped, or the engines did not start in time.
            ValueError: fewer than the least.
        """
        if self._job.stopped():
            raise LaunchError("the cluster was stopped: call cluster.up().")
        if n < self._place.least:
            raise ValueError(f"resize({n}): a training needs {self._place.least} at least (min_np).")
        self.n, self._asked = n, replace(self._place, n=n)
        if self._hub_is_gone():
            Speaker(quiet)(cells.HUB_GONE)
            self._place = self._asked
            return self._start_anew(timeout_s, Speaker(quiet))
        deadline, watch = time.monotonic() + timeout_s, self._engines.watch
        with self._lock:
            busy = bool(self._history.running())
        staying, log = watch.staying(), Speaker(quiet)
        with log.of(self._resizing):
            new, ended = self._start_more(n - len(staying), deadline), staying[n:]
            watch.leave(ended)
            for each in new:
                self._repeat(each)
            if not busy:
                self._settle(new, ended, deadline)
        if self._job.stopped():
            return  # meanwhile, on another thread
        for line in [*self._report(new, ended, busy), *([] if busy else self._late(new, timeout_s))]:
            log(line)

    def _resizing(self, seconds: float) -> str:
        living, new = len(self._engines.watch.living()), len(self._newcomers)
        catching_up = f", {count(new, 'new one')} not ready yet" if new else ""
        why = self._engines.watch.why_waiting()
        return f"{living} of {count(self.n, 'engine')} live{catching_up}{f'; {why}' if why else ''}, {seconds:.0f} s"

    # --- the start and the end --------------------------------------------------------------------------

    def _connect(self, profile: Path, connection_file: Path, deadline: float) -> None:
        super()._connect(profile, connection_file, deadline)
        watch, self._forgiving = self._engines.watch, Forgiving(self.client, self._newcomers)
        self.client.died = lambda engine: cells.gone([engine])
        watch.log, watch.on_due, watch.on_hub_gone = self._log, self._begin_epoch, self._lose_hub

    def _verify(self, deadline: float) -> None:
        self.view = self.client.direct_view("all")
        self.view.block = True
        self._pids = list(first_answers(self.client, os.getpid, deadline).values())
        if list(self.client.ids) != list(range(self.n)):
            raise LaunchError(f"the engines have the ids {self.client.ids}, and not 0 to {self.n - 1}.")
        self._engines.are_up(self._pids)
        self.view.execute = self._recorded(self.view.execute)

    def _stop(self) -> None:
        self._engines.watch.close()  # what ends from now on is not lost
        super()._stop()

    # --- cells ------------------------------------------------------------------------------------------

    def _recorded(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        """Cells for all engines, which newcomers will run again."""

        def run(code: str, silent: bool = True, targets: Any = None, block: bool | None = None, **options: Any) -> Any:
            self._look_for_losses()
            self._begin_epoch()
            block = self.view.block if block is None else block
            for_all = (self.view.targets if targets is None else targets) == "all"
            with self._lock:
                result = execute(code, silent=silent, targets=targets, block=False, **options)
                if for_all:
                    begins = any(not each.ready() for each in self._joining)  # the next epoch, before this cell
                    self._history.add(code, result, self._engines.watch.epoch + begins)
            if block:
                result.get()
                result.wait_for_output()
            return result

        return run

    def _look_for_losses(self) -> None:
        """Whom the hub has lost does not belong to the next cell's job.

        Raises:
            PeerLostError: the hub itself is gone.
        """
        if self._hub_is_gone():
            raise PeerLostError(f"{cells.HUB_GONE}: call engines.rescue() in a cell without %%px.")
        until = time.monotonic() + _HUB_BEFORE_US_S
        while set(self.ready()) - set(self.client.ids) and time.monotonic() < until:
            time.sleep(_LOOK_S)

    def _hub_is_gone(self) -> bool:
        return "controller" in self._job.codes()

    def _lose_hub(self) -> None:
        """No cell waits for answers that cannot come."""
        self._forgiving.fail_all(f"{cells.HUB_GONE}: call engines.rescue() in a cell without %%px.")
        self._log(cells.HUB_GONE)

    def _call_back(self) -> None:
        """Have engines that could not begin an epoch with the others come again: then the next one is due."""
        if self._job.stopped() or self._hub_is_gone():
            return
        with self._lock:
            watch = self._engines.watch
            for each in set(self.ready()) - set(watch.ranks()):
                self._called += self._ask_to_join(each)

    def _ask_to_join(self, engine: int) -> list[Any]:
        with contextlib.suppress(*unknown()):  # it may be dying
            return [self.client[engine].apply_async(notebook.join_again, self._engines.watch.epoch)]
        return []

    def _begin_epoch(self) -> None:
        """If engines were lost, leave, or wait to join, have all begin the next epoch before they run anything else."""
        with self._lock:
            if self._job.stopped() or not all(each.ready() for each in self._joining):
                return
            self._joining = []
            watch = self._engines.watch
            if watch.due():
                for each in watch.ranks():
                    self._joining += self._ask_to_join(each)
                for joining in list(self._joining):
                    joining.add_done_callback(lambda done: self._begun())

    def _begun(self) -> None:
        """Another epoch may be due by now; unless nobody is in a job."""
        with self._lock:
            again = all(each.ready() for each in self._joining) and _in_a_job(self._joining)
        if again:
            self._begin_epoch()

    # --- newcomers --------------------------------------------------------------------------------------

    def _start_more(self, n: int, deadline: float) -> list[int]:
        with self._lock:
            new = [self._engines.begin() for _ in range(n)]
            self._newcomers |= dict.fromkeys(new, 0)
        try:
            while not set(new) <= set(self.client.ids):
                if time.monotonic() > deadline or set(new) - set(self._engines.watch.living()):
                    names = ", ".join(map(str, new))
                    raise LaunchError(f"engines {names} did not start in time.\n{self._engines.report()}")
                time.sleep(_LOOK_S)
        except BaseException:  # Ctrl-C, too: nobody would give them cells
            self._engines.watch.end(new)
            with self._lock:
                for each in new:
                    del self._newcomers[each]
            raise
        return new

    def _repeat(self, engine: int) -> None:
        """Have a newcomer run the cells that the others have run, and once it has, those that run."""
        with self._lock:
            with contextlib.suppress(*unknown()):  # it may be dying, or all engines end
                cells, failed, self._newcomers[engine] = self._history.finished(self._newcomers[engine])
                for cell in failed:
                    self._log(f"engine {engine} leaves out a cell that has failed: {first_line(cell.strip(), 60)}")
                job = bool(self._engines.watch.ranks()) or not self.ready()
                if cells:
                    result = self.client[engine].apply_async(notebook.catch_up, cells, job)
                    result.add_done_callback(lambda done: self._repeated(engine, done))
                    return
                joined = self._engines.watch.joined.get(engine, math.inf)
                for number, cell, epoch in self._history.running():
                    one = self.client[engine]
                    if joined <= epoch:  # the others wait for all that it does in this cell
                        result = one.execute(cell, silent=False, block=False)
                    else:
                        result = one.apply_async(notebook.take_part, cell, job)
                    self._history.joins(number, result)
                    result.add_done_callback(lambda done: self._log_failure(engine, done))
            self._newcomers.pop(engine, None)

    def _repeated(self, engine: int, done: Any) -> None:
        self._log_failure(engine, done)
        if done.exception() is None:
            self._repeat(engine)
        else:
            with self._lock:
                self._newcomers.pop(engine, None)

    def _log_failure(self, engine: int, done: Any) -> None:
        error = done.exception()
        found = done.result() if error is None else []
        watch = self._engines.watch
        if error is not None and watch.is_alive() and engine in watch.living():
            self._log(f"engine {engine}: {error}")
        for line, why in found if isinstance(found, list) else []:
            self._log(f"engine {engine}: {line}  # {why}")

    def _settle(self, new: Collection[int], ended: Collection[int], deadline: float) -> None:
        """Where nothing runs: wait until newcomers belong to the job, and end those that are to leave."""
        watch = self._engines.watch
        while time.monotonic() < deadline:
            with self._lock:
                self._called = [each for each in self._called if not each.ready()]
                joining, catching_up = list(self._joining), self._called or set(new) & set(self._newcomers)
            if all(each.ready() for each in joining):
                if not catching_up and not (watch.due() and _in_a_job(joining)):
                    break
                self._begin_epoch()
            time.sleep(_LOOK_S)
        watch.end(ended)  # they have handed over, or had nothing to
        while set(ended) & {*self.client.ids, *watch.living()} and time.monotonic() < deadline:
            time.sleep(_LOOK_S)

    def _report(self, new: Sequence[int], ended: Sequence[int], busy: bool) -> list[str]:
        living = self._engines.watch.living()
        leaving = [each for each in ended if each in living]
        stay = [each for each in living if each not in leaving]
        lines = [f"{count(len(stay), 'engine')}: {', '.join(map(str, stay))}"]
        then = "it gets the others' weights in the next state.sync()"
        if busy:
            then = "the next commit or the cell's end takes it in"
        lines += [f"engine {each} is new and runs the same cells; {then}" for each in new if each in living]
        return lines + [f"engine {each} leaves at the next commit" for each in leaving]

    def _late(self, new: Collection[int], timeout_s: float) -> list[str]:
        """What has not come to an end by the deadline."""
        with self._lock:
            catching_up = sorted(set(new) & set(self._newcomers))
            joining = [each for each in self._joining if not each.ready()]
        lines = [f"{numbered(catching_up, 'engine')} did not run all earlier cells within {timeout_s:g} s"] * bool(
            catching_up
        )
        if joining or (catching_up and self._engines.watch.why_waiting()):
            lines.append(f"the next epoch has not begun: {self._engines.watch.why_waiting() or 'engines are busy'}")
        return lines


def _in_a_job(joining: Sequence[Any]) -> bool:
    """Was any engine in a job, when all were told to begin its next epoch?"""
    return not joining or any(each.exception() is None and each.result() for each in joining)
