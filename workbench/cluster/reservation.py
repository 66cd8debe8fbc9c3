"""Hosts that Slurm has reserved: they stay while engines come and go, until they are released or their time is over.

::

    sbatch (sleeps) ──► PENDING: place and reason are shown ──► RUNNING ──► release(): scancel
                          │ Ctrl-C, too late: scancel             │ engines: agents by srun --jobid=…

If the process that reserved them ends, or is killed, its watchdog gives them back.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from workbench import config
from workbench.common.text import numbered
from workbench.errors import LaunchError
from workbench.launch.hosts.agent_connections import Target
from workbench.launch.hosts.host_plan import slurm_targets
from workbench.launch.hosts.remote_shell import Srun
from workbench.launch.ranks.watchdog import Leftovers, Watchdog
from workbench.launch.site import Site
from workbench.launch.slurm.allocation import ask, job_gpus
from workbench.launch.slurm.batch import ENDED, Wanted, look, options, submit

QUEUE_TIMEOUT_S = 600.0
SHORT_S = 300.0
"""When so little time is left, it is warned of."""
_QUICK_LOOKS, _QUICK_S, _SLOW_S = 20, 0.5, 2.0  # a pool that is free grants at once; a queue is asked less often
_ENDING = "COMPLETING"  # on its way there Slurm does not say why
_OVER = ("0:00", "INVALID")
_AGAIN_S = 30.0  # where Slurm has not answered
_GONE = "Invalid job id"
_SITE = ("partition", "account", "reservation")
_WHY = {
    "TIMEOUT": "its time limit is over",
    "CANCELLED": "it was cancelled, by scancel or an administrator",
    "NODE_FAIL": "a node of it failed",
    "PREEMPTED": "a job that goes before has its nodes",
    "OUT_OF_MEMORY": "it needed more memory than it was given",
}


@dataclass(frozen=True)
class SlurmRequest:
    """What ``cluster.up(slurm=…)`` asks for.

    Args:
        wanted: nodes, tasks and GPUs.
        site: partition, account and reservation.
        queue_timeout_s: a request that waits longer is cancelled.
    """

    wanted: Wanted
    site: Site
    queue_timeout_s: float = QUEUE_TIMEOUT_S


def request(asked: Mapping[str, Any], site: Site) -> SlurmRequest:
    """A request by the words of a notebook; what it leaves out comes from the site file.

    Raises:
        LaunchError: a word is unknown, or a number is none or too small.

    Example:
        >>> request({"nodes": 2, "tasks_per_node": 4}, Site()).wanted.tasks_per_node
        4
        >>> request({"node": 2}, Site())
        Traceback (most recent call last):
        workbench.errors.LaunchError: slurm: 'node' is not known. There are: nodes, tasks_per_node, gpus_per_task, ...
    """
    known = [field.name for field in fields(Wanted) if field.name != "output"]
    if unknown := [name for name in asked if name not in (*known, *_SITE, "queue_timeout_s")]:
        names = ", ".join([*known, *_SITE, "queue_timeout_s"])
        raise LaunchError(f"slurm: {unknown[0]!r} is not known. There are: {names}.")
    least_of = {"nodes": 1, "tasks_per_node": 1, "gpus_per_task": 0, "gpus_per_node": 0, "cpus_per_task": 0}
    for name, least in least_of.items():
        if type(asked.get(name, least)) is not int or asked.get(name, least) < least:
            raise LaunchError(f"slurm: {name}={asked[name]!r}, but it must be a whole number, {least} or more.")
    wanted = Wanted(output="/dev/null", **{name: asked[name] for name in known if name in asked})
    timeout_s = float(asked.get("queue_timeout_s", QUEUE_TIMEOUT_S))
    return SlurmRequest(wanted, replace(site, **{name: asked[name] for name in _SITE if name in asked}), timeout_s)


class Allocation(Protocol):
    """Hosts that an engine has given to this kernel.

    Attributes:
        kind: which: the word of ``cluster.up`` that asks for other ones.
        targets: they.
    """

    kind: str
    targets: list[Target]

    def left_s(self) -> float | None:
        """Seconds until they go; None where there is no limit."""

    def short_s(self) -> float:
        """So few seconds before that a warning is due."""

    def ended(self) -> str:
        """Why they are no more; "" while they are there."""

    def line(self) -> str: ...

    def release(self) -> None: ...


class Reservation:
    """Hosts of a Slurm job, see :class:`Allocation`.

    Args:
        number: the job's.
        targets: its hosts.
        asked: for what; None: it is the job around this process, which is never ended from here.
        watchdog: cancels the job if this process dies.
    """

    kind = "slurm"

    def __init__(
        self, number: str, targets: list[Target], asked: SlurmRequest | None = None, watchdog: Watchdog | None = None
    ) -> None:
        self.number, self.targets, self.asked = number, targets, asked
        self._watchdog, self._owner, self._ended = watchdog, os.getpid(), ""
        if asked:
            atexit.register(self.release)

    def left_s(self) -> float | None:
        """Seconds until its time limit; None where there is none.

        Raises:
            LaunchError: Slurm does not answer.
        """
        return seconds(self._left())

    def short_s(self) -> float:
        """:data:`SHORT_S`, but half the time of a job that is shorter than twice that."""
        limit_s = seconds(ask(["squeue", "-h", "-j", self.number, "-o", "%l"], missing=_GONE).strip())
        return SHORT_S if limit_s is None else min(SHORT_S, limit_s / 2)

    def _left(self) -> str:
        return ask(["squeue", "-h", "-j", self.number, "-o", "%L"], missing=_GONE).strip()

    def ended(self) -> str:
        """Why the job is over; "" while it runs. What has been found once stays: Slurm forgets it."""
        self._ended = self._ended or self._look()
        return self._ended

    def _look(self) -> str:
        try:
            state, _ = look(self.number)
            if state == _ENDING:
                state = "TIMEOUT" if self._left() in _OVER else "CANCELLED"
        except LaunchError:
            return ""  # nothing is known
        if state not in ENDED:
            return ""
        return f"Slurm job {self.number} has ended: {_WHY.get(state, state.lower() or 'Slurm has forgotten it')}"

    def line(self) -> str:
        """For whoever uses it: the hosts, and how long they are there."""
        if over := self.ended():
            return over
        left_s, names = self.left_s(), ", ".join(target.name for target in self.targets)
        until = "without a time limit" if left_s is None else f"{spelled(left_s)} left"
        again = "; cluster.release() gives it back" if self.asked else ""
        return f"Slurm job {self.number} on {names}: {until}{again}"

    def release(self) -> None:
        """Give the hosts back; called again or in a forked child, do nothing.

        Raises:
            LaunchError: Slurm does not answer.
        """
        if not self.asked or self._owner != os.getpid():
            return
        atexit.unregister(self.release)
        ask(["scancel", self.number], missing=_GONE)
        if self._watchdog:
            self._watchdog.dismiss()
        self._watchdog = None


class ShortTime:
    """Warns once of a reservation's end, when :data:`SHORT_S` are left.

    Args:
        reservation: whose.
        log: gets the line.
    """

    def __init__(self, reservation: Allocation, log: Callable[[str], None]) -> None:
        self._reservation, self._log, self._due = reservation, log, 0.0

    def tick(self) -> None:
        """Look, if it is time to. Where little time was left from the beginning, ``up`` has said so."""
        if time.monotonic() < self._due:
            return
        first, self._due = not self._due, time.monotonic() + _AGAIN_S
        try:
            left_s, short_s = self._reservation.left_s(), self._reservation.short_s()
        except LaunchError:
            return
        if left_s is None or left_s < short_s:
            self._due = math.inf
            if left_s and not first:
                self._log(
                    f"{self._reservation.line().partition(' on ')[0]} ends in {spelled(left_s)}: save what you need"
                )
        else:
            self._due = time.monotonic() + left_s - short_s + 1.0


def reserve(asked: SlurmRequest, log: Callable[[str], None]) -> Reservation:
    """Ask Slurm for hosts, and wait for them; say the place in the queue and the reason meanwhile.

    Raises:
        LaunchError: Slurm refuses, can never grant it, or has not within ``asked.queue_timeout_s``. Nothing waits in
            the queue then, nor after Ctrl-C.
    """
    number = submit([*options(asked.wanted, asked.site), "--no-requeue", "--wrap", "exec sleep 2147483647"], log)
    scancel = ["scancel", number]
    watchdog = Watchdog(Leftovers(f"slurm-job-{number}-{os.getpid()}"), config.child_environment(), last=scancel)
    held = Reservation(number, [], asked, watchdog)
    try:
        _wait(number, asked.queue_timeout_s, log)
        held.targets = _targets(number, asked.wanted.tasks_per_node)
    except BaseException:
        with contextlib.suppress(LaunchError):
            held.release()
        raise
    return held


def around(asked: Mapping[str, Any]) -> Reservation | None:
    """The Slurm job around this process, if it is in one.

    Raises:
        LaunchError: it has fewer nodes than are asked for.
    """
    number, count = config.batch_job(), sum(part.nodes for part in config.batch_parts())
    if not number:
        return None
    if asked.get("nodes", 1) > count:
        raise LaunchError(
            f"This notebook runs in Slurm job {number}, which has {numbered(list(range(count)), 'node')}, but "
            f"{asked['nodes']} nodes are asked for. Start the notebook in a job of so many, or outside of any."
        )
    found = [replace(target, slots=asked.get("tasks_per_node", target.slots)) for target in slurm_targets()]
    return Reservation(number, found[: asked.get("nodes", len(found))])


def _wait(number: str, timeout_s: float, log: Callable[[str], None]) -> None:
    said, looks, until = "", 0, time.monotonic() + timeout_s
    while True:
        state, words = look(number)
        if state == "RUNNING":
            return
        if state in ENDED:
            raise LaunchError(f"Slurm has ended job {number} before it started: {_WHY.get(state, words)}.")
        if words != said:
            log(words)
        if time.monotonic() > until:
            raise LaunchError(
                f"Job {number} was cancelled, for it had waited {timeout_s:g} s in the queue ({words}). Ask for less, "
                f"or wait longer: slurm=dict(queue_timeout_s={5 * timeout_s:g}, …)."
            )
        said, looks = words, looks + 1
        time.sleep(_QUICK_S if looks < _QUICK_LOOKS else _SLOW_S)


def _targets(number: str, slots: int) -> list[Target]:
    listed = ask(["squeue", "-h", "-j", number, "-o", "%N"]).strip()
    names = ask(["scontrol", "show", "hostnames", listed]).split()
    shell = Srun(int(number), job_gpus(number))
    return [Target(name, slots, shell) for name in names]


def seconds(text: str) -> float | None:
    """A time as Slurm writes it; None where it is none.

    Example:
        >>> seconds("1-02:00:05"), seconds("29:45"), seconds("UNLIMITED")
        (93605.0, 1785.0, None)
    """
    days, _, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in [*parts, days or "0"]):
        return None
    found = 0
    for part in parts:
        found = 60 * found + int(part)
    return float(found + 86400 * int(days or 0))


def spelled(left_s: float) -> str:
    """A time as one says it.

    Example:
        >>> spelled(93605), spelled(1785), spelled(45)
        ('26 h', '29 min', '45 s')
    """
    if left_s < 120:
        return f"{left_s:.0f} s"
    return f"{left_s // 60:.0f} min" if left_s < 7200 else f"{left_s // 3600:.0f} h"
