"""What the flags of ``workbench run`` mean for the ranks: the variables that they set."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.config import HOROVOD_NAMES

# A flag of `workbench run`, without dashes → the variable that it sets for the ranks, and the factor between their
# units. Names and units are horovodrun's; `--bind` is ours.
VARIABLES: dict[str, tuple[str, float]] = {
    "fusion_threshold_mb": ("HOROVOD_FUSION_THRESHOLD", 1 << 20),
    "cycle_time_ms": ("HOROVOD_CYCLE_TIME", 1),
    "cache_capacity": ("HOROVOD_CACHE_CAPACITY", 1),
    "hierarchical_allreduce": ("HOROVOD_HIERARCHICAL_ALLREDUCE", 1),
    "hierarchical_allgather": ("HOROVOD_HIERARCHICAL_ALLGATHER", 1),
    "torus_allreduce": ("HOROVOD_TORUS_ALLREDUCE", 1),
    "autotune": ("HOROVOD_AUTOTUNE", 1),
    "autotune_log_file": ("HOROVOD_AUTOTUNE_LOG", 1),
    "autotune_warmup_samples": ("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", 1),
    "autotune_steps_per_sample": ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", 1),
    "autotune_bayes_opt_max_samples": ("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", 1),
    "autotune_gaussian_process_noise": ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", 1),
    "timeline_filename": ("HOROVOD_TIMELINE", 1),
    "timeline_mark_cycles": ("HOROVOD_TIMELINE_MARK_CYCLES", 1),
    "no_stall_check": ("HOROVOD_STALL_CHECK_DISABLE", 1),
    "stall_check_warning_time_seconds": ("HOROVOD_STALL_CHECK_TIME_SECONDS", 1),
    "stall_check_shutdown_time_seconds": ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 1),
    "mpi_threads_disable": ("HOROVOD_MPI_THREADS_DISABLE", 1),
    "num_nccl_streams": ("HOROVOD_NUM_NCCL_STREAMS", 1),
    "gloo_timeout_seconds": ("HOROVOD_GLOO_TIMEOUT_SECONDS", 1),
    "log_level": ("HOROVOD_LOG_LEVEL", 1),
    "log_without_timestamp": ("HOROVOD_LOG_HIDE_TIME", 1),
    "start_timeout": ("HOROVOD_START_TIMEOUT", 1),
    "bind": ("WORKBENCH_BIND", 1),
}


def with_flags(env: Mapping[str, str], flags: Mapping[str, str | float | None]) -> dict[str, str]:
    """``env`` with the variables that flags of ``workbench run`` set; a flag that is None was not given.

    A flag wins over both names of its variable, ``HOROVOD_*`` and ``WORKBENCH_*``.

    Example:
        >>> with_flags({"WORKBENCH_CACHE_CAPACITY": "7"}, {"cache_capacity": 8, "autotune": True, "log_level": None})
        {'HOROVOD_CACHE_CAPACITY': '8', 'HOROVOD_AUTOTUNE': '1'}
    """
    found = {
        VARIABLES[flag][0]: _render(value, VARIABLES[flag][1]) for flag, value in flags.items() if value is not None
    }
    names = {field: {name} for field, (name, _) in HOROVOD_NAMES.items()}
    names["stall_warning_s"].add("HOROVOD_STALL_CHECK_DISABLE")
    hidden = {f"WORKBENCH_{field.upper()}" for field, others in names.items() if others & found.keys()}
    return {name: text for name, text in env.items() if name not in hidden} | found


def has_effect(flag: str) -> bool:
    """Does anything here read the variable that this flag sets?"""
    elsewhere = ("HOROVOD_START_TIMEOUT", "HOROVOD_STALL_CHECK_DISABLE", "WORKBENCH_BIND")
    return VARIABLES[flag][0] in {*elsewhere, *(name for name, _ in HOROVOD_NAMES.values())}


def _render(value: str | float, factor: float) -> str:
    if isinstance(value, str):
        return value
    number = float(value * factor)
    return str(int(number)) if number.is_integer() else str(number)
