"""The coordinator of a job, and each rank's announcer, with the accelerations that the settings ask for.

::

    faults/supervision.py       which names can never be complete?
     control/slots.py            on one machine the ranks agree by themselves  slots
     steady/autotune.py         how fast is it with other settings?    autotune
      steady/steady_state.py    whole sequences of known names at once     steady_state
        steady/cache.py         ids for requests and responses             cache_capacity
          steady/eager.py       the values of small tensors                eager_bytes
            steady/priority.py  what is needed sooner overtakes            piece_bytes
              core/coordinator.py counts

Each may be left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from workbench.common.waiting import OwnThread
from workbench.config import TUNED, Settings
from workbench.core.agreement import respond
from workbench.core.backend.base import Levels
from workbench.core.coordinator import CountingCoordinator
from workbench.core.engine import Engine
from workbench.core.protocols import Announcer, AtOnce, Batching, PlainAnnouncer
from workbench.runtime.coordinators import Agreement, Coordinator
from workbench.runtime.faults.cells import Cells
from workbench.runtime.faults.disagreement import explain
from workbench.runtime.faults.stall import StallInspector
from workbench.runtime.faults.supervision import SupervisingCoordinator, ValidatingCoordinator
from workbench.runtime.steady.autotune import TuningAnnouncer, TuningCoordinator
from workbench.runtime.steady.batching import Window
from workbench.runtime.steady.cache import CachingAnnouncer, CachingCoordinator, CoordinatorCache
from workbench.runtime.steady.caller_runs import CallerRuns
from workbench.runtime.steady.eager import EagerAnnouncer, EagerCoordinator
from workbench.runtime.steady.priority import PriorityCoordinator
from workbench.runtime.steady.steady_state import SteadyCoordinator
from workbench.runtime.steady.tuner import Choice, Tuner


def agrees_in_memory(settings: Settings) -> bool:
    """Do the ranks use slots, if they have some? Not while autotune measures what rank 0 decides."""
    return bool(settings.slots and settings.steady_state and settings.cache_capacity and not settings.autotune)


def coordinator(
    size: int, settings: Settings, tuner: Tuner | None = None, slots: Agreement | None = None
) -> SupervisingCoordinator:
    """Rank 0's. With ``tuner``, it tunes; with ``slots``, steady steps need it no more."""
    cells = Cells(size)
    answer = partial(respond, explain=explain)
    cache = CoordinatorCache(settings.cache_capacity, size, answer)
    counting = CountingCoordinator(size, cache.respond if cache.capacity else answer, cells.veto)
    found: Coordinator = counting
    if settings.piece_bytes:
        found = PriorityCoordinator(found, counting.members, 2 * settings.piece_bytes)
    if settings.eager_bytes:
        found = EagerCoordinator(found, counting.members)
    if cache.capacity:
        found = CachingCoordinator(found, cache)
        if settings.steady_state:
            calm = lambda seen: not (cells.unsettled or counting.crosses_failure(seen))  # noqa: E731
            found = SteadyCoordinator(found, cache, size, calm)
    if tuner:
        found = TuningCoordinator(found, tuner, settings.autotune_steps_per_sample)
    stall = StallInspector(settings.stall_warning_s, settings.stall_shutdown_s)
    supervising = ValidatingCoordinator if settings.chaos else SupervisingCoordinator
    return supervising(found, size, cells, cache.expand, settings.failed_rank_grace_s, stall, slots)


def announcer(rank: int, settings: Settings) -> Announcer:
    """Every rank's."""
    found: Announcer = PlainAnnouncer(rank)
    eager = EagerAnnouncer(found, rank, settings.eager_bytes) if settings.eager_bytes else None
    found = eager or found
    found = CachingAnnouncer(found, rank) if settings.cache_capacity else found
    return TuningAnnouncer(found, eager) if settings.autotune else found


def runner(settings: Settings, wake: Callable[[], None], a_core_each: bool, on_gpu: bool) -> OwnThread:
    """Every rank's.

    Args:
        wake: ends the engine's wait for messages.
        a_core_each: is there a core for each rank of this machine, each a process of its own?
        on_gpu: one thread alone may use the GPU's communicator.
    """
    if on_gpu or not settings.caller_runs:
        return OwnThread(wake)
    return CallerRuns(wake, settings.spin_s if a_core_each else 0.0)


def batching(settings: Settings) -> Batching:
    """Every rank's."""
    return Window(settings.fusion_window_s) if settings.fusion_window_s else AtOnce()


def tunes(engine: Engine, announcer: Announcer, batching: Batching, levels: Levels | None = None) -> None:
    """From each choice of autotune on, this engine plans and waits as chosen. Called before the engine starts.

    Args:
        engine, announcer, batching: of this rank.
        levels: of the backend that reduces gradients.
    """

    def use(choice: Choice) -> None:
        engine.settings = replace(engine.settings, **{name: getattr(choice, name) for name in TUNED})
        engine.tuned = (engine.tuned[0] + 1 if engine.tuned else 1), choice.bucket_bytes
        if isinstance(batching, Window):
            batching.window_s = choice.fusion_window_s
        if levels:
            levels.on = bool(choice.hierarchical_allreduce)

    if isinstance(announcer, TuningAnnouncer):
        announcer.use = use
