"""``workbench.chaos``: ranks fail by plan within a block, of a script or of a notebook's cell."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence

from workbench import config
from workbench.common.chaos import STATES, parse
from workbench.job.context import HOLDER, Passing
from workbench.job.objects import broadcast_object
from workbench.runtime.faults import chaos as doing


@contextlib.contextmanager
def chaos(
    seed: int = 0,
    *,
    kills: int = 0,
    stops: int = 0,
    delays: int = 0,
    cuts: int = 0,
    states: Sequence[str] = STATES,
    at: Sequence[str] = (),
) -> Iterator[None]:
    """Within the block ranks fail at named protocol states, as with ``workbench run --chaos``. All ranks call it.

    The same seed and the same number of ranks give the same plan. Each fault prints one line on standard error, with
    the option that repeats only this fault. In a job that is not elastic the first kill ends the job for all: the
    others get a PeerLostError that names the rank, and in a notebook ``engines.rescue()`` brings it back.

    Args:
        seed: of the plan.
        kills: this many ranks end by SIGKILL.
        stops: … are stopped (SIGSTOP) for 1 s.
        delays: … are delayed for 0.25 s.
        cuts: … lose their connection to rank 0; if rank 0 is chosen, all others do.
        states: where: see :mod:`workbench.common.chaos`.
        at: single faults, ``act:state:rank:nth``; they come first.

    Raises:
        NotInitializedError: before ``init()``.
        ValueError: there is no such state, a number is negative, or there is no fault at all.

    Example:
        >>> import workbench
        >>> workbench.init()
        >>> with workbench.chaos(at=["delay:announced:0:1"]):
        ...     print(workbench.allreduce([1.0], name="x"))
        [1.]
        >>> workbench.shutdown()
    """
    context = HOLDER.get()
    counts = {"kills": kills, "stops": stops, "delays": delays, "cuts": cuts}
    words = [f"seed={seed}", *(f"{name}={n}" for name, n in counts.items() if n)]
    words += [f"states={'+'.join(states)}", *(f"at={fault}" for fault in at)]
    parse(",".join(words))  # before a rank waits for the others
    folder = tempfile.mkdtemp(prefix="workbench-chaos-") if context.world.rank == 0 else ""
    folder = broadcast_object(folder, root_rank=0, name="chaos")
    text = parse(",".join(words), context.world.size, folder).text
    player = doing.player(text, os.getpid())
    doing.enter(player, context.bootstrap, context.control.sockets)
    unwatch, passing = doing.watch(context.engine, player), context.part(Passing)
    passes, passing.passes = passing.passes, player.passes
    try:
        with config.changed_environment(WORKBENCH_CHAOS=text):  # for the epochs that begin in the block
            yield
    finally:
        player.stop()
        unwatch()
        passing.passes = passes
        if context.world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
