"""What lessons import, and what builds the notebooks from them. Uses the workbench like any user.

Notebooks that were handed out before the files got rooms import them by their old names: for one more release these
stand for the new ones, with a DeprecationWarning.
"""

from __future__ import annotations

from workbench.common.moved import moved

_SIMULATED, _TRAINING = "tasks.algorithms", "tasks.training_scripts"
MOVED = {
    **{
        name: f"simulator.{name}"
        for name in ("communicator", "deadlock", "parameter_server", "stopwatches", "topology")
    },
    **{name: f"training.{name}" for name in ("behaviour", "conversion", "measured", "scaling", "timing", "trial")},
    **{name: f"judging.{name}" for name in ("deadline", "judge", "rank_threads", "task")},
    "real": "judging.real_ranks",
    "run": "simulator.run",
    "tasks.t02": f"{_SIMULATED}.t02_collectives",
    "tasks.t03": f"{_SIMULATED}.t03_ring_allreduce",
    "tasks.t04": f"{_SIMULATED}.t04_parallel_sgd",
    "tasks.t05": f"{_SIMULATED}.t05_sharding",
    "tasks.t06": f"{_SIMULATED}.t06_distributed_optimizer",
    "tasks.t07": f"{_SIMULATED}.t07_fusion",
    "tasks.t08": f"{_SIMULATED}.t08_speedup",
    "tasks.t09": f"{_SIMULATED}.t09_large_batches",
    "tasks.t10": f"{_TRAINING}.t10_conversion",
    "tasks.t12": f"{_SIMULATED}.t12_gpus_and_nodes",
    "tasks.t13": f"{_TRAINING}.t13_capstone",
    "tasks.t14": f"{_TRAINING}.t14_frameworks",
}
"""Old name → new name, both below this package."""

for _old, _new in MOVED.items():
    moved(f"{__name__}.{_old}", f"{__name__}.{_new}")
