"""The coordinator of a job, and each rank's announcer, with the accelerations that the settings ask for.

::

    faults/supervision.py       which names can never be complete?
      steady/steady_state.py    whole sequences of known names at once     steady_state
        steady/cache.py         ids for requests and responses             cache_capacity
          steady/eager.py       the values of small tensors                eager_bytes
            core/coordinator.py counts

Each may be left out.
"""

from __future__ import annotations

from functools import partial

from workbench.config import Settings
from workbench.core.agreement import respond
from workbench.core.coordinator import CountingCoordinator
from workbench.core.protocols import Announcer, AtOnce, Batching, PlainAnnouncer
from workbench.faults.cells import Cells
from workbench.faults.disagreement import explain
from workbench.faults.stall import StallInspector
from workbench.faults.supervision import SupervisingCoordinator
from workbench.steady.batching import Window
from workbench.steady.cache import CachingAnnouncer, CachingCoordinator, CoordinatorCache
from workbench.steady.eager import EagerAnnouncer, EagerCoordinator
from workbench.steady.steady_state import SteadyCoordinator
from workbench.steady.wrapper import Coordinator


def coordinator(size: int, settings: Settings) -> SupervisingCoordinator:
    """Rank 0's."""
    cells = Cells(size)
    answer = partial(respond, explain=explain)
    cache = CoordinatorCache(settings.cache_capacity, size, answer)
    counting = CountingCoordinator(size, cache.respond if cache.capacity else answer, cells.veto)
    found: Coordinator = counting
    if settings.eager_bytes:
        found = EagerCoordinator(found, counting.members)
    if cache.capacity:
        found = CachingCoordinator(found, cache)
        if settings.steady_state:
            calm = lambda seen: not (cells.unsettled or counting.crosses_failure(seen))  # noqa: E731
            found = SteadyCoordinator(found, cache, size, calm)
    stall = StallInspector(settings.stall_warning_s, settings.stall_shutdown_s)
    return SupervisingCoordinator(found, size, cells, cache.expand, settings.failed_rank_grace_s, stall)


def announcer(rank: int, settings: Settings) -> Announcer:
    """Every rank's."""
    found: Announcer = PlainAnnouncer(rank)
    if settings.eager_bytes:
        found = EagerAnnouncer(found, rank, settings.eager_bytes)
    return CachingAnnouncer(found, rank) if settings.cache_capacity else found


def batching(settings: Settings) -> Batching:
    """Every rank's."""
    return Window(settings.fusion_window_s) if settings.fusion_window_s else AtOnce()
