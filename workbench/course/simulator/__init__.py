"""Ranks that are threads of one process, on a virtual clock: every run is the same, and shows each message."""

from workbench.course.simulator.comm import Comm
from workbench.course.simulator.communicator import Communicator
from workbench.course.simulator.failures import Kill, RankDiedError
from workbench.course.simulator.run import Computed, DeadlockError, Run, SimulatedMessage
from workbench.course.simulator.scheduler import ALPHA_S, BETA_S, EAGER_BYTES, simulate

__all__ = [
    "ALPHA_S",
    "BETA_S",
    "EAGER_BYTES",
    "Comm",
    "Communicator",
    "Computed",
    "DeadlockError",
    "Kill",
    "RankDiedError",
    "Run",
    "SimulatedMessage",
    "simulate",
]
