"""What ``cluster.rescue`` tries before it restarts the engines: interrupt them, test the job, start a new job."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from workbench.cluster import proof
from workbench.cluster.proof import Standing
from workbench.common.text import by_rank, rank_list
from workbench.errors import PeerLostError

_PATIENCE_S = 1.5  # with an engine that may be slow and no more, as on a busy machine
_ANSWER_S = 5.0  # for an engine that was interrupted
_PROOF_S = 5.0  # for collectives that take a millisecond
_AGAIN_S = 20.0  # for shutdown() and init(): the former waits 10 s for ranks that do not come


class InPlaceRecovery:
    """The steps that keep the engines' variables.

    Args:
        client: the ``ipyparallel.Client``.
        n: how many engines there should be.
        gone: gives the ranks whose process is no more.
        log: prints a line.
        of_mpi: are they one MPI job?
    """

    def __init__(
        self, client: Any, n: int, gone: Callable[[], list[int]], log: Callable[[str], None], of_mpi: bool = True
    ) -> None:
        self._client, self._n, self._gone, self._log, self._of_mpi = client, n, gone, log, of_mpi
        self._step, self._missing = "", list[int]()

    def at(self, seconds: float) -> str:
        """What goes on, in a line."""
        for_whom = f" for {rank_list(self._missing)}" if self._missing else ""
        return f"rescue: {self._step}, waits{for_whom}, {seconds:.0f} s"

    def run(self) -> bool:
        """Bring all engines to answer and their job to work, and say how; False if that takes new engines."""
        busy, silent = self._interrupt()
        if silent:
            if not self._gone():  # a process takes a moment to die
                self._log(f"{are(silent)} not even ended by Ctrl-C")
            return False
        problem, curable = self._try_out()
        if not problem:
            self._log(f"{are(busy)} interrupted; all {self._n} engines answer" if busy else "nothing to rescue")
            return True
        self._log(f"{are(busy)} interrupted; {problem}" if busy else problem)
        return curable and self._begin_again()

    def _interrupt(self) -> tuple[list[int], list[int]]:
        """Ctrl-C for engines that are busy: (those that were, those that are still)."""
        self._step = "do all engines answer?"
        busy = self._silent(_PATIENCE_S)
        there = [rank for rank in busy if rank in self._client.ids]
        if self._gone():
            return busy, busy
        self._step = "busy engines are interrupted"
        for rank in there:
            with suppress(*unknown()):  # it may be dying at this moment
                self._client.send_signal(signal.SIGINT, targets=rank, block=False)
        return busy, self._silent(_ANSWER_S) if busy else []

    def _silent(self, patience_s: float) -> list[int]:
        """Engines that have not answered so many seconds after the last one that has."""
        well = self._ask(lambda view: view.apply_async(os.getpid), patience_s)
        return [rank for rank in range(self._n) if rank not in well]

    def _ask(self, question: Callable[[Any], Any], patience_s: float) -> dict[int, Any]:
        """What each engine answers; without those that raise, or are silent so long after the last answer."""
        answers = {}
        for rank in range(self._n):
            with suppress(*unknown()):  # also one that dies between a look at the ids and the question
                answers[rank] = question(self._client[rank])
        missing, deadline = list(answers.values()), time.monotonic() + patience_s
        while missing and time.monotonic() < deadline:
            left = [answer for answer in missing if not answer.ready()]
            self._missing = [rank for rank, answer in answers.items() if not answer.ready()]
            if len(left) < len(missing):
                missing, deadline = left, time.monotonic() + patience_s
            time.sleep(0.01)
        return {rank: each.get() for rank, each in answers.items() if each.ready() and each.exception() is None}

    def _try_out(self) -> tuple[str, bool]:
        """What is wrong, "" where the job and MPI prove to work; and can it be right again without new engines?"""
        self._step = "the job is tried out"
        standings = self._ask(lambda view: view.apply_async(proof.standing, _PROOF_S), _PROOF_S + _ANSWER_S)
        if found := problem(standings, self._n):
            lost = len(standings) < self._n or any(each.lost for each in standings.values())
            return found, not lost and {each.size for each in standings.values()} <= {0, self._n}
        if not self._of_mpi:
            return "", False
        passed = self._ask(lambda view: view.apply_async(proof.passes_barrier, _PROOF_S), _PROOF_S + _ANSWER_S)
        return "" if len(passed) == self._n and all(passed.values()) else "a barrier over MPI does not complete", False

    def _begin_again(self) -> bool:
        """Let all engines leave their job and begin it again; does it work then?"""
        self._step = "the engines begin the job again"
        begun = self._ask(lambda view: view.apply_async(proof.begin_again), _AGAIN_S)
        if len(begun) < self._n or self._try_out()[0]:
            return False
        self._log("all ranks left the job and began it again; variables are kept, process sets are not")
        return True


def problem(standings: Mapping[int, Standing], n: int) -> str:
    """What is wrong by the engines' own words; "" for nothing.

    Example:
        >>> problem({0: Standing(2, "ShutDownError: Rank 1 has left the job"), 1: Standing()}, 2)
        'rank 1 is in no job, and that of the others does not work'
    """
    if silent := [rank for rank in range(n) if rank not in standings]:
        return f"{are(silent)} silent when the job is tried out"
    if lost := [rank for rank, each in standings.items() if each.lost]:
        return f"{rank_list(lost)} lost the job, which goes on in threads: was workbench deleted from sys.modules?"
    wrong = {rank: each.problem for rank, each in standings.items() if each.problem}
    outside = [rank for rank, each in standings.items() if not each.size]
    if wrong and outside and len(outside) < n:
        return f"{are(outside)} in no job, and that of the others does not work"
    return "; ".join(line.strip() for line in by_rank(wrong))


def are(ranks: list[int]) -> str:
    """``rank 2 is``, ``ranks 0, 2 are``."""
    return f"{rank_list(ranks)} {'are' if len(ranks) > 1 else 'is'}"


def unknown() -> tuple[type[Exception], ...]:
    """What a client raises for an engine that the hub has just taken from its list."""
    from ipyparallel.error import NoEnginesRegistered

    return KeyError, IndexError, NoEnginesRegistered, PeerLostError
