"""What the ranks of a running cell are at, in one line: who computes, who waits, for whom, since when."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from workbench.common.cell_numbers import STATE
from workbench.common.text import first_line, rank_spans

_SILENT_S = 1.5
_ASK_S = 4.0  # engines go on for ten seconds
_MOST = 90  # characters of a line of code


class EngineStates:
    """Has engines say what they are at, and waits for none.

    Args:
        client: a :class:`workbench.cluster.ipyparallel_internals.Client`.
        engines: which.
        every_s: how often each says it, if it does not wait for another one; then it does five times a second.
        stack: once a second with its stack, too?

    Attributes:
        known: by engine the last answer.
        heard: by engine when it came, by ``time.monotonic()``.
    """

    def __init__(self, client: Any, engines: Sequence[int], every_s: float = 0.5, stack: bool = False) -> None:
        self._client, self._asked, self._asked_at = client, dict[int, Any](), dict[int, float]()
        self._question = {"every_s": every_s, "stack": stack}
        self.known: dict[int, dict[str, Any]] = {}
        self.heard = dict.fromkeys(engines, time.monotonic())

    def poll(self, now: bool = False) -> None:
        """Take what they have said; ask those that shall go on saying it, or all for what they are at ``now``."""
        clock = time.monotonic()
        for engine in self.heard:
            asked = self._asked.get(engine)
            if asked is not None and asked.done():
                if asked.exception() is None:
                    self.known[engine], self.heard[engine] = asked.result()["content"], clock
                asked = self._asked.pop(engine) and None
            at, state = self._client.states.get(engine, (0.0, {}))
            if at > self.heard[engine]:
                self.known[engine], self.heard[engine] = state, at
            due = now or clock - self._asked_at.get(engine, 0.0) >= _ASK_S
            if asked is None and due and (asked := self._client.ask(engine, STATE, self._question)) is not None:
                self._asked[engine], self._asked_at[engine] = asked, clock

    def silent(self) -> dict[int, float]:
        """By engine that does not answer, for how many seconds."""
        now = time.monotonic()
        return {engine: now - at for engine, at in self.heard.items() if now - at > _SILENT_S}


def sentence(
    states: Mapping[int, Mapping[str, Any]], done: Collection[int] = (), silent: Mapping[int, float] | None = None
) -> str:
    """What ranks are at, in one line.

    Args:
        states: by engine; see ``launch/ranks/activity.py`` and ``job/state.py``.
        done: those that have ended the cell.
        silent: those that do not answer, and for how long.

    Example:
        >>> wait = {"name": "allreduce.x", "process_set": 0, "members": [0, 1], "line": "", "since_s": 4.2}
        >>> states = {0: {"rank": 0, "waits": [wait]}, 1: {"rank": 1, "waits": [], "line": "in the cell, line 5: f()"}}
        >>> sentence(states)
        "rank 0 waits for rank 1 in 'allreduce.x' (4 s); rank 1: in the cell, line 5: f()"
    """
    return "; ".join(lines(states, done, silent))


def lines(
    states: Mapping[int, Mapping[str, Any]], done: Collection[int] = (), silent: Mapping[int, float] | None = None
) -> list[str]:
    """The same, one text for each thing that some ranks are at: the waits first."""
    silent = silent or {}
    ranks = {engine: state.get("rank", engine) for engine, state in states.items()}
    at_work = {e: s for e, s in states.items() if e not in done and e not in silent}
    found = _waits(at_work, ranks, done)
    busy = defaultdict[str, list[int]](list)
    for engine, state in at_work.items():
        if not state.get("waits"):
            busy[first_line(state.get("line") or "in a library", _MOST)].append(ranks[engine])
    found += [f"{rank_spans(who)}: {line}" for line, who in busy.items()]
    found += [f"rank {ranks.get(e, e)} has not answered for {s:.0f} s" for e, s in silent.items() if e not in done]
    if done and at_work:
        who = [ranks.get(each, each) for each in done]
        found.append(f"{rank_spans(who)} {'has' if len(who) == 1 else 'have'} ended the cell")
    loops = [state["loop"] for state in at_work.values() if state.get("loop")]
    return [*found, *([_progress(loops)] if loops else [])]


def _waits(at_work: Mapping[int, Mapping[str, Any]], ranks: Mapping[int, int], done: Collection[int]) -> list[str]:
    """Of each tensor: who waits for it, and which members have not submitted it."""
    waiting = defaultdict[tuple[int, str], list[int]](list)
    first: dict[tuple[int, str], Mapping[str, Any]] = {}
    for engine, state in at_work.items():
        for wait in state.get("waits") or ():
            key = wait["process_set"], wait["name"]
            waiting[key].append(ranks[engine])
            if key not in first or wait["since_s"] > first[key]["since_s"]:
                first[key] = wait
    found = []
    for key, who in waiting.items():
        wait = first[key]
        missing = missing_for(wait, at_work, ranks)
        for_whom = f" for {rank_spans(missing)}" if missing else ""
        verb = "waits" if len(set(who)) == 1 else "wait"
        found.append(f"{rank_spans(who)} {verb}{for_whom} in {key[1]!r} ({wait['since_s']:.0f} s)")
    return found


def missing_for(
    wait: Mapping[str, Any], states: Mapping[int, Mapping[str, Any]], ranks: Mapping[int, int]
) -> list[int]:
    """The members that have not submitted what somebody waits for."""
    key = [wait["process_set"], wait["name"]]
    has = {ranks[e] for e, s in states.items() if key in [list(each) for each in s.get("pending") or ()]}
    has |= {ranks[e] for e, s in states.items() for each in s.get("waits") or () if each["name"] == wait["name"]}
    return [rank for rank in wait["members"] or sorted(ranks.values()) if rank not in has]


def _progress(loops: Sequence[Mapping[str, float]]) -> str:
    """The loop's variables of the rank that is behind."""
    last = min(loops, key=lambda loop: step_of(loop) or 0)
    return ", ".join(f"{name} {value:.4g}" if name == "loss" else f"{name} {value:d}" for name, value in last.items())


def step_of(loop: Mapping[str, float] | None) -> float | None:
    """The number of a training loop's step, by whatever name; None if none is seen."""
    return next((value for name, value in (loop or {}).items() if name != "loss"), None)
