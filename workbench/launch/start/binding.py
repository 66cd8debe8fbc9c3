"""Which cores each rank of this machine keeps: ``workbench run --bind …``, and the engines of ``cluster.up``.

::

    cores that may be used ─► share: a part for each rank ─► WORKBENCH_CORES=0,1;2,3     one text for all ranks
                other load ─► or a reason for none                │ each rank, before its command
                                                                  └─► sched_setaffinity({2, 3})

A rank that nobody binds is moved between cores, and loses its cache each time. A bound one keeps its threads, and the
memory that it touches first, on cores of its own. It is bound before its command starts, so this holds from the first
thread and the first page on. OMP_NUM_THREADS is the least number of cores in a share, see ``mpi.threads_per_rank``.

Ranks that cannot have cores of their own are better off unbound, for then the system moves them to what is free:

1. There are more ranks than cores, or than the cgroup's quota pays for.
2. By default, also where other programs compute, another job of this user among them: a bound rank could not get out of
   their way.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from workbench import config
from workbench.common.text import count, plural
from workbench.errors import LaunchError
from workbench.launch.ranks.supervisor import CORES
from workbench.launch.start import cores

AUTO, NONE, CORE, NUMA = config.BINDINGS
_LOADAVG = Path("/proc/loadavg")
_LOOKS, _LOOK_S = 5, 0.005


@dataclass(frozen=True)
class Binding:
    """What :func:`bind` decided.

    Args:
        shares: by rank its cores; empty where the ranks are not bound.
        why: the reason where they are not.
        notable: to be said in any case: the user asked for something that cannot be.
    """

    shares: tuple[tuple[int, ...], ...] = ()
    why: str = ""
    notable: bool = False

    @property
    def env(self) -> dict[str, str]:
        if not self.shares:
            return {"WORKBENCH_UNBOUND": self.why}
        return {CORES: ";".join(",".join(map(str, share)) for share in self.shares)}

    def line(self) -> str:
        """What was decided, for whoever starts the ranks.

        Example:
            >>> Binding(((0, 1), (2, 3))).line()
            'rank 0 is bound to cores 0-1, rank 1 to cores 2-3'
            >>> Binding(why="4 ranks on 2 cores").line()
            'the launcher binds no rank to cores: 4 ranks on 2 cores'
        """
        if not self.shares:
            return f"the launcher binds no rank to cores: {self.why}"
        each = [f"to {plural('core', len(share))} {cores.spelled(share)}" for share in self.shares]
        first, *more = (f"rank {rank} {where}" for rank, where in enumerate(each))
        return ", ".join([first.replace(" to ", " is bound to ", 1), *more])


def bind(n: int, way: str) -> Binding:
    """Give each of ``n`` ranks of this machine its share of the cores that this process may use.

    Args:
        n: how many ranks.
        way: ``core``: each gets cores of its own. ``numa``: it gets the cores of a NUMA node, which it may have to
            share with its neighbours, or of several. ``auto``: as ``core``, unless other programs compute here.
            ``none``: no rank is bound.

    Returns:
        The shares, or why there are none.

    Raises:
        LaunchError: there is no such way.

    Example:
        >>> bind(2, "none").line()
        'the launcher binds no rank to cores: --bind none'
    """
    if way not in config.BINDINGS:
        raise LaunchError(f"WORKBENCH_BIND={way!r} is not one of {', '.join(config.BINDINGS)}. Set it to one of these.")
    asked = way in (CORE, NUMA)
    if way == NONE or n == 1:
        return Binding(why="--bind none" if way == NONE else "one rank has them all")
    if not hasattr(os, "sched_setaffinity"):
        return Binding(why="this system binds no process", notable=asked)
    these = cores.usable()
    if n > cores.paid_for():
        return Binding(why=f"{n} ranks on {count(cores.paid_for(), 'core')}", notable=asked)
    found = shares(n, cores.nodes(these), way)
    why = _unfit(found) or ("" if asked else _load(n, these))
    if why:
        return Binding(why=why, notable=asked)
    try:
        _try(found)
    except OSError as error:
        return Binding(why=f"this process may not choose its cores ({error.strerror})", notable=True)
    return Binding(found)


def shares(n: int, nodes: Sequence[Sequence[int]], way: str = CORE) -> tuple[tuple[int, ...], ...]:
    """The cores of each rank. All are dealt out; neighbours in rank are neighbours on the machine.

    Args:
        n: how many ranks, at most as many as there are cores.
        nodes: the cores by NUMA node.
        way: ``numa`` deals out whole nodes, anything else cores.

    Example:
        >>> shares(2, [[0, 1], [2, 3, 4]]), shares(3, [[0, 1], [2, 3]], "numa")
        (((0, 1), (2, 3, 4)), ((0, 1), (0, 1), (2, 3)))
    """
    parts = [list(node) for node in nodes] if way == NUMA else [[core] for node in nodes for core in node]
    firsts = [len(parts) * rank // n for rank in range(n + 1)]
    chosen = [parts[first : max(first + 1, end)] for first, end in pairwise(firsts)]
    return tuple(tuple(core for part in share for core in part) for share in chosen)


def placed(binding: Binding, rank: int, index: int) -> dict[str, str]:
    """The binding's variables, in which the ``index``-th share stands where the supervisor of ``rank`` looks it up.

    Example:
        >>> placed(Binding(((0, 1), (2, 3))), rank=3, index=1)
        {'WORKBENCH_CORES': '0,1;2,3;;2,3'}
    """
    env = dict(binding.env)
    if CORES in env and index >= len(binding.shares):
        del env[CORES]  # there were fewer slots at the start
    elif CORES in env:
        shares = env[CORES].split(";")
        mine, shares = shares[index], shares + [""] * (rank + 1 - len(shares))
        if rank < len(binding.shares):
            shares[index] = shares[rank]
        shares[rank] = mine
        env[CORES] = ";".join(shares)
    return env


def _unfit(found: Sequence[tuple[int, ...]]) -> str:
    """Why these shares of NUMA nodes bind nothing; "" if they do."""
    ranks = Counter(found)
    if len(ranks) == 1:
        return "there is one NUMA node"
    crowded = (f"{many} ranks on {count(len(share), 'core')} of a NUMA node" for share, many in ranks.items())
    return next((text for text, share in zip(crowded, ranks, strict=True) if ranks[share] > len(share)), "")


def _load(n: int, these: Sequence[int]) -> str:
    """Do other programs compute, so that there are fewer idle cores than ranks? The least of several looks counts.

    The system counts for the whole machine: that says nothing where this process may use a part of it.
    """
    if len(these) < (os.cpu_count() or 1):
        return ""
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_S)
        if (others := _running() - 1) + n <= len(these):
            return ""
    return f"other programs keep {count(min(others, len(these)), 'core')} of {len(these)} busy"


def _running(loadavg: Path = _LOADAVG) -> int:
    """How many threads of the machine run or want to, this one included; 1 where the system does not say so."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(loadavg.read_text().split()[3].partition("/")[0])
    return 1


def _try(found: Sequence[tuple[int, ...]]) -> None:
    """Bind this thread to each share for a moment: a sandbox may forbid it.

    Raises:
        OSError: it does.
    """
    before = os.sched_getaffinity(0)
    try:
        for share in set(found):
            os.sched_setaffinity(0, share)
            if os.sched_getaffinity(0) != set(share):
                raise PermissionError(0, "the cgroup gives others")
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)
