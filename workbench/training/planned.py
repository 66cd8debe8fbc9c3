"""``plan=``: what all ranks of a job choose alike from a measurement.

Rank 0 decides, and says so to all: their measurements may differ, and what they do may not.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workbench.errors import MismatchError, WorkbenchError
from workbench.job import api
from workbench.job.context import HOLDER
from workbench.job.objects import allgather_object, broadcast_object
from workbench.simulate.measured.plan import COMPRESSIONS, Plan, SendMode, choose, values
from workbench.simulate.measured.prediction import Measured

PlanSource = str | Path | Measured | Plan
"""``"auto"``, ``"auto, fp16"``, ``"auto, bf16"``, a measurement or the path of a saved one, or a plan."""

log = logging.getLogger("workbench")
_AUTO = {"auto": "", **{f"auto, {name}": name for name in COMPRESSIONS}}
_GIVE = 'Give "auto", "auto, fp16", "auto, bf16", a measurement, the path of a saved one, or a plan.'


class Measurements:
    """A part of the job: what was measured last.

    Attributes:
        by_wire: one for each dtype on the wire.
    """

    def __init__(self) -> None:
        self.by_wire: dict[str, Measured] = {}


def keep(found: Measured) -> Measured:
    """Keep it on the job, with the names of the ranks' hosts; all ranks call it."""
    found = replace(found, machines=tuple(allgather_object(socket.gethostname(), "workbench.measure.machines")))
    HOLDER.get().part(Measurements).by_wire[found.links.wire] = found
    return found


def agree(asked: PlanSource, given: Sequence[str], cannot_defer: str, numbers: int) -> Plan:
    """What all ranks do; all call it.

    Args:
        asked: by the user.
        given: arguments of this call that leave nothing to choose.
        cannot_defer: why ``overlap_forward`` cannot be chosen; "" if it can.
        numbers: that are reduced in a step.

    Raises:
        ValueError: ``asked`` is something else.
        MismatchError: the ranks ask for different plans.
        WorkbenchError: there is no measurement, or it is one of other ranks, hosts or models.
    """
    if not isinstance(asked, PlanSource):
        raise ValueError(f"plan={asked!r}: {_GIVE}")
    if api.size() == 1:
        return Plan(SendMode(), "As it is: there is one rank, so nothing is sent.")
    says = (_text(asked), *given, cannot_defer, numbers)
    everyone = allgather_object((says, socket.gethostname()), "DistributedOptimizer.plan")
    if len({each for each, _ in everyone}) > 1:
        lines = [f"rank {rank}: {_line(*each)}" for rank, (each, _) in enumerate(everyone)]
        raise MismatchError(
            "The ranks make a DistributedOptimizer with plan= unlike one another:\n" + "\n".join(lines) + "\n"
            "Give the same arguments and the same model on all ranks."
        )
    if given:
        return Plan(SendMode(), f"As the arguments say: {', '.join(given)} leaves nothing to choose.")
    found: Plan | str = ""
    if api.rank() == 0:
        try:
            found = _decide(asked, cannot_defer, numbers, [machine for _, machine in everyone])
            log.info("DistributedOptimizer: %s", found.why)
        except (WorkbenchError, ValueError) as error:
            found = str(error)
    found = broadcast_object(found, 0, "DistributedOptimizer.plan.chosen")
    if isinstance(found, str):
        raise WorkbenchError(f"plan={_text(asked)}: {found}")
    return found


def _text(asked: PlanSource) -> str:
    """The same on ranks that ask for the same."""
    if isinstance(asked, Measured):
        return "a measurement"
    return f"a plan for {asked.way.name}" if isinstance(asked, Plan) else repr(str(asked))


def _line(plan: str, *rest: object) -> str:
    *given, cannot_defer, numbers = rest
    return ", ".join(filter(None, [f"plan={plan}", *map(str, given), f"{numbers:,} numbers", str(cannot_defer)]))


def _decide(asked: PlanSource, cannot_defer: str, numbers: int, machines: Sequence[str]) -> Plan:
    if isinstance(asked, Plan):
        if asked.way.overlap_forward and cannot_defer:
            raise WorkbenchError(cannot_defer)
        return asked
    shorter = None
    if isinstance(asked, Measured):
        measured = asked
    elif str(asked) in _AUTO:
        measured = _kept("float32", "")
        name = _AUTO[str(asked)]
        shorter = _kept(COMPRESSIONS[name], f', wire="{COMPRESSIONS[name]}"') if name else None
    else:
        measured = _load(Path(asked))
    for found in filter(None, [measured, shorter]):
        _check_fits(found, numbers, machines)
    piece_bytes = HOLDER.get().settings.piece_bytes
    return choose(measured, shorter, cannot_defer=cannot_defer, piece_bytes=piece_bytes)


def _kept(wire: str, argument: str) -> Measured:
    found = HOLDER.get().part(Measurements).by_wire.get(wire)
    if found is None:
        raise WorkbenchError(
            f"nothing was measured in this job with {wire} on the wire. Before it, call on all ranks: "
            f"workbench.measure(model, (inputs, targets){argument})."
        )
    return found


def _load(path: Path) -> Measured:
    try:
        return Measured.load(path)
    except OSError as error:
        raise WorkbenchError(f"rank 0 cannot read this file: {error.strerror}. {_GIVE}") from None


def _check_fits(found: Measured, numbers: int, machines: Sequence[str]) -> None:
    """Raise a WorkbenchError if it was measured elsewhere, or with another model."""
    world, links = HOLDER.get().world, found.links
    of, here = (links.hosts * links.per_host, links.hosts), (world.size, world.cross_size)
    again = "Measure again, here: workbench.measure(model, (inputs, targets))."
    if of != here:
        raise WorkbenchError(
            f"it was measured with {of[0]} ranks on {of[1]} hosts, and the job has {here[0]} on {here[1]}. {again}"
        )
    if sorted(found.machines) != sorted(machines):
        where = ", ".join(sorted(set(found.machines))) or "machines that it does not name"
        raise WorkbenchError(
            f"it was measured on {where}, and the job is on {', '.join(sorted(set(machines)))}. {again}"
        )
    if values(found) not in (0, numbers):
        raise WorkbenchError(
            f"it was measured with a model of {values(found):,} numbers, and this optimizer has {numbers:,}. {again}"
        )
