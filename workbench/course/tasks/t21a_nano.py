"""Lesson 21, the coordinator of ``nano.py``: what is ready, and which ranks are missing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from workbench.course.judging.judge import unlike
from workbench.course.judging.task import PlainTask

Function = Callable[..., Any]
Announcements = list[tuple[int, str]]
Timed = list[tuple[int, int, str]]


def ready(size: Any, announcements: Any) -> Any:
    """Return the names of the tensors in the order in which they become ready.

    size: how many ranks there are.
    announcements: (rank, name), in the order in which rank 0 receives them. A tensor is ready when all ranks have
    announced it. From then on the same name stands for the tensor of the next step, which all announce again.
    """
    ### BEGIN SOLUTION
    announced_by: dict[str, set[int]] = {}
    names = []
    for rank, name in announcements:
        ranks = announced_by.setdefault(name, set())
        ranks.add(rank)
        if len(ranks) == size:
            del announced_by[name]
            names.append(name)
    return names
    ### END SOLUTION


def _ready(size: int, announcements: Announcements) -> list[str]:
    """The obvious way: of each rank's k-th announcement of a name, the last one counts."""
    times: dict[tuple[str, int], list[int]] = {}
    seen: dict[tuple[int, str], int] = {}
    for at, (rank, name) in enumerate(announcements):
        step = seen[rank, name] = seen.get((rank, name), -1) + 1
        times.setdefault((name, step), []).append(at)
    complete = {key: max(at) for key, at in times.items() if len(at) == size}
    return [name for name, _ in sorted(complete, key=lambda key: complete[key])]


def _some_announcements(source: random.Random, size: int, names: str, steps: int) -> Announcements:
    """Each rank announces the names of a step in an order of its own; in the last step one name is missing."""
    found = []
    for step in range(steps):
        queues = [[(rank, name) for name in source.sample(names, len(names))] for rank in range(size)]
        if step == steps - 1:
            queues[source.randrange(size)].pop()
        while any(queues):
            found.append(source.choice([queue for queue in queues if queue]).pop(0))
    return found


def _told_ready(function: Function, cases: Iterable[tuple[int, Announcements]]) -> str:
    for size, announcements in cases:
        yours, wanted = function(size, list(announcements)), _ready(size, announcements)
        if wrong := unlike(yours, wanted):
            return f"{size} ranks, {_listed(announcements)}{wrong}"
    return ""


def _ready_small(function: Function) -> str:
    """One step of two ranks, in any order."""
    cases = ["0a 1a", "0a 1b", "0b 1a 1b 0a", "0a 1b 0b 1a", "0a 0b 0c 1c 1a", ""]
    return _told_ready(function, [(2, [(int(one[0]), one[1]) for one in case.split()]) for case in cases])


def _ready_steps(function: Function) -> str:
    """The same names in the next steps."""
    cases = ["0a 1a 1a 0a", "0a 0b 1b 1a 0b 1b 0a", "0a 1a 0a"]
    return _told_ready(function, [(2, [(int(one[0]), one[1]) for one in case.split()]) for case in cases])


def _ready_many(function: Function) -> str:
    """100 jobs of up to 5 ranks."""
    source = random.Random(0)
    jobs = [(size, _some_announcements(source, size, "abcd", source.randint(1, 3))) for size in [*range(1, 6)] * 20]
    return _told_ready(function, jobs)


def culprits(size: Any, announcements: Any, now: Any, deadline_s: Any) -> Any:
    """Return a dict: the name of each tensor that is late → the list of the ranks that have not announced it.

    size: how many ranks there are.
    announcements: (seconds, rank, name), in the order of time; each rank announces a name once at most.
    A tensor is late if it is not ready now, and was first announced deadline_s ago or earlier. Ranks stand in order.
    """
    ### BEGIN SOLUTION
    first: dict[str, int] = {}
    announced_by: dict[str, set[int]] = {}
    for seconds, rank, name in announcements:
        first.setdefault(name, seconds)
        announced_by.setdefault(name, set()).add(rank)
    late = [name for name, seconds in first.items() if now - seconds >= deadline_s]
    missing = {name: [rank for rank in range(size) if rank not in announced_by[name]] for name in late}
    return {name: ranks for name, ranks in missing.items() if ranks}
    ### END SOLUTION


def _culprits(size: int, announcements: Timed, now: int, deadline_s: int) -> dict[str, list[int]]:
    found = {}
    for name in dict.fromkeys(name for _, _, name in announcements):
        said = {rank: seconds for seconds, rank, each in announcements if each == name}
        missing = sorted(set(range(size)) - said.keys())
        if missing and min(said.values()) + deadline_s <= now:
            found[name] = missing
    return found


def _told_culprits(function: Function, cases: Iterable[tuple[int, Timed, int, int]]) -> str:
    for size, announcements, now, deadline_s in cases:
        right = _culprits(size, announcements, now, deadline_s)
        yours = function(size, list(announcements), now, deadline_s)
        if isinstance(yours, dict) and yours == right:
            continue
        about = f"{size} ranks, deadline {deadline_s} s, at {now} s, {_timed(announcements)}"
        if yours is None:
            return f"{about}: your result is None. Is there a return?"
        if not isinstance(yours, dict):
            return f"{about}: your result is of type {type(yours).__name__}, expected a dict"
        return f"{about}: your result is {yours}, expected {right}"
    return ""


def _culprits_small(function: Function) -> str:
    """Two and three ranks, of which one is late, or two."""
    return _told_culprits(
        function,
        [
            (2, [(0, 0, "a")], 30, 10),
            (2, [(0, 0, "a"), (1, 1, "a")], 30, 10),
            (3, [(0, 1, "a"), (1, 2, "b")], 30, 10),
            (2, [(0, 0, "a"), (25, 1, "b")], 30, 10),
            (2, [], 30, 10),
        ],
    )


def _culprits_at_the_deadline(function: Function) -> str:
    """The deadline, which begins with the first announcement, and is over when it is reached."""
    return _told_culprits(
        function,
        [
            (2, [(20, 1, "a")], 30, 10),
            (3, [(5, 0, "a"), (25, 2, "a")], 30, 10),
            (2, [(21, 1, "a")], 30, 10),
            (4, [(20, 3, "a"), (20, 0, "b"), (30, 1, "b")], 30, 10),
        ],
    )


def _culprits_many(function: Function) -> str:
    """100 jobs of up to 5 ranks."""
    source, jobs = random.Random(0), []
    for size in [*range(1, 6)] * 20:
        said = [(rank, name) for rank in range(size) for name in "abcd" if source.random() < 0.7]
        source.shuffle(said)
        times = sorted(source.randrange(40) for _ in said)
        jobs.append((size, [(at, *one) for at, one in zip(times, said, strict=True)], 40, 15))
    return _told_culprits(function, jobs)


def _listed(announcements: Announcements) -> str:
    return ", ".join(f"rank {rank} {name}" for rank, name in announcements) or "nothing announced"


def _timed(announcements: Timed) -> str:
    return ", ".join(f"rank {rank} {name} at {at} s" for at, rank, name in announcements) or "nothing announced"


_CULPRIT_PROBES: list[tuple[int, Timed, int, int]] = [
    (3, [(0, 1, "a"), (1, 2, "b"), (2, 0, "b")], 30, 10),
    (2, [(0, 0, "a"), (1, 1, "a"), (5, 1, "b")], 30, 10),
    (4, [(20, 3, "a"), (20, 0, "b"), (30, 1, "b"), (25, 2, "c")], 30, 10),
    (3, [(5, 0, "a"), (25, 2, "a")], 30, 10),
    (2, [(20, 1, "a")], 30, 10),
    (2, [(21, 0, "a")], 30, 10),
    (2, [(2, 0, "a")], 5, 10),
]

TASKS = [
    PlainTask(
        "21.ready",
        "the coordinator: what is ready, in which order",
        ready,
        probes=lambda: [
            (2, [(0, "b"), (1, "c"), (0, "a"), (1, "a"), (1, "b")]),
            *((size, _some_announcements(random.Random(size), size, "bac", 2)) for size in range(1, 6)),
        ],
        properties=[_ready_small, _ready_steps, _ready_many],
        points=1,
    ),
    PlainTask(
        "21.culprits",
        "the coordinator: which ranks are missing",
        culprits,
        probes=lambda: _CULPRIT_PROBES,
        properties=[_culprits_small, _culprits_at_the_deadline, _culprits_many],
        points=1,
    ),
]
