"""What the panel and the table show: a row for each rank, made of what engines say twice a second and more often."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from workbench.cluster.panel.activity import EngineStates, missing_for, sentence, step_of
from workbench.common.text import rank_spans, spans
from workbench.launch.start.mpi import usable_cores

LOOK_S = 0.2
KEPT_S = 60  # of history
_SPARING_S = 0.5
_RATE_S = 0.9  # rates are of so long at least


class Row(TypedDict):
    """What is shown of a rank.

    Args:
        rank: its number, or its engine's where it has called no ``init()``.
        state: "computes", "waits", "idle", "silent" or "gone".
        detail: for whom it waits and in what, or how long it has been silent.
        line: where in the user's code.
        missing: the ranks for which it waits.
        loop: variables of its training loop.
        step_s: seconds of a step of the loop; None if none is seen.
        gb_s: 10^9 bytes a second in collectives, since the last row.
        cpu: cores in use.
        memory: bytes.
        gpu: of its GPU the ``percent`` of time that it was busy and ``memory``; None if none is known.
    """

    rank: int
    state: str
    detail: str
    line: str
    missing: list[int]
    loop: dict[str, float]
    step_s: float | None
    gb_s: float
    cpu: float
    memory: int
    gpu: dict[str, int] | None


class Feed:
    """Asks the engines, and makes rows.

    Args:
        client: a :class:`workbench.cluster.ipyparallel_internals.Client`.
        engines: which.
        every_s: how often. By default five times a second; twice where ranks have all cores, and hub and notebook
            would take theirs: 1.1 % of two cores for two ranks, and so 0.5 %.
    """

    def __init__(self, client: Any, engines: Sequence[int], every_s: float | None = None) -> None:
        every_s = every_s or (LOOK_S if usable_cores() > len(engines) else _SPARING_S)
        self._client, self._engines = client, list(engines)
        self._states = EngineStates(client, engines, every_s, stack=True)
        self._before: dict[int, tuple[float, Mapping[str, Any]]] = {}
        self._rates: dict[int, tuple[float, float, float | None]] = dict.fromkeys(engines, (0.0, 0.0, None))
        self._history = {engine: deque[tuple[float, float]](maxlen=KEPT_S) for engine in engines}
        self._kept_at = self._made_at = 0.0
        self._stacks: dict[int, str] = {}

    def rows(self) -> list[Row]:
        """One for each engine, of the newest answers; asks all of them again.

        Raises:
            OSError: the client is closed.
        """
        if self._client.closed:
            raise OSError("The client is closed.")
        self._states.poll()
        self._made_at = time.monotonic()
        keep = time.monotonic() - self._kept_at >= 1.0
        if keep:
            self._kept_at = time.monotonic()
        ranks = self._ranks()
        return [self._row(each, ranks, keep) for each in self._engines]

    def _ranks(self) -> dict[int, int]:
        """By engine."""
        return {engine: int(state.get("rank", engine)) for engine, state in self._states.known.items()}

    def news(self) -> bool:
        """Has any engine said something since the last rows, or is due to?"""
        newest = max((at for at, _ in self._client.states.values()), default=0.0)
        return newest > self._made_at or time.monotonic() - self._made_at >= _SPARING_S

    def history(self) -> dict[str, dict[str, list[float]]]:
        """By rank of the last minute, ``cpu`` and ``gb_s`` once a second."""
        known = self._states.known
        return {
            str(known.get(engine, {}).get("rank", engine)): {
                "cpu": [round(each[0], 2) for each in kept],
                "gb_s": [round(each[1], 4) for each in kept],
            }
            for engine, kept in self._history.items()
        }

    def stacks(self) -> dict[str, str]:
        """By rank the innermost lines of its cell, about once a second."""
        for engine, state in self._states.known.items():
            if state.get("cell_s") is None:
                self._stacks.pop(engine, None)
            elif "stack" in state:
                self._stacks[engine] = state["stack"]
        ranks = self._ranks()
        return {str(ranks[engine]): stack for engine, stack in self._stacks.items()}

    def stack_lines(self) -> list[str]:
        """The stacks, those of ranks that are at the same place once."""
        ranks = defaultdict[str, list[int]](list)
        for rank, stack in self.stacks().items():
            ranks[stack].append(int(rank))
        return [f"{rank_spans(who)}, innermost line last:\n{stack}" for stack, who in ranks.items()]

    def sentence(self) -> str:
        """The ranks that run a cell, in a line; "" if none does."""
        busy = {e: s for e, s in self._states.known.items() if s.get("cell_s") is not None}
        return sentence(busy, (), self._states.silent()) if busy else ""

    def _row(self, engine: int, ranks: Mapping[int, int], keep: bool) -> Row:
        state = self._states.known.get(engine, {})
        cpu, gb_s, step_s = self._rate(engine, state)
        if keep:
            self._history[engine].append((cpu, gb_s))
        word, detail, missing = self._word(engine, state, ranks)
        return {
            "rank": ranks.get(engine, engine),
            "state": word,
            "detail": detail,
            "line": (state["waits"][0]["line"] if state.get("waits") else state.get("line")) or "",
            "missing": missing,
            "loop": state.get("loop") or {},
            "step_s": step_s,
            "gb_s": gb_s,
            "cpu": cpu,
            "memory": state.get("memory", 0),
            "gpu": state.get("gpu"),
        }

    def _word(self, engine: int, state: Mapping[str, Any], ranks: Mapping[int, int]) -> tuple[str, str, list[int]]:
        if engine not in self._client.ids:
            return "gone", "its process has ended", []
        if (silent_s := self._states.silent().get(engine)) is not None:
            return "silent", f"no answer for {silent_s:.0f} s", []
        if state.get("waits"):
            wait = state["waits"][0]
            missing = missing_for(wait, self._states.known, ranks)
            for_whom = f"for {spans(missing)} " if missing else ""
            return "waits", f"{for_whom}in {wait['name']}, {wait['since_s']:.0f} s", missing
        if state.get("cell_s") is not None:
            return "computes", f"{state['cell_s']:.0f} s", []
        return "idle", "", []

    def _rate(self, engine: int, state: Mapping[str, Any]) -> tuple[float, float, float | None]:
        """Cores in use, 10^9 bytes a second, and seconds of a step, since an answer about a second ago."""
        now, (at, before) = self._states.heard[engine], self._before.get(engine, (0.0, {}))
        if not before:
            self._before[engine] = now, state
        elif now - at >= _RATE_S:
            cpu = max(0.0, state["cpu_s"] - before["cpu_s"]) / (now - at)
            moved = max(0, state.get("bytes", 0) - before.get("bytes", 0)) / (now - at) / 1e9
            steps = (step_of(state.get("loop")) or 0) - (step_of(before.get("loop")) or 0)
            self._rates[engine] = cpu, moved, (now - at) / steps if steps > 0 else None
            self._before[engine] = now, state
        return self._rates[engine]


class PanelThread:
    """Makes rows on a thread of its own, until it is stopped.

    Args:
        make: gives rows and the line about them; no rows if they are as before, None if there will be no more.
        show: gets them, at the end None; is somebody still there?
        every_s: how often.
    """

    def __init__(
        self,
        make: Callable[[], tuple[list[Row], str] | None],
        show: Callable[[list[Row] | None, str], bool],
        every_s: float = LOOK_S,
    ) -> None:
        self._make, self._show, self._every_s = make, show, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workbench-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(2.0)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                made = self._make()
            except Exception:  # noqa: BLE001 - the client is being closed; the next look says whether the cluster is down
                continue
            if not self._show(*(made or (None, ""))) or made is None:
                return
