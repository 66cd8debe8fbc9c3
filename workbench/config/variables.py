"""Settings, and other environment variables of this process, except its rank in a job.

Each field of :class:`Settings` can be set by ``WORKBENCH_<FIELD IN CAPITALS>``; where Horovod has a
variable for the same thing, that one is read too, and ``WORKBENCH_*`` wins. The table
:data:`HOROVOD_NAMES` holds Horovod's names and the factor between its unit and ours.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from workbench.errors import LaunchError


@dataclass(frozen=True)
class Settings:
    """What can be tuned. Units are in the names.

    Args:
        fusion_threshold_bytes: tensors are packed into one buffer up to this size; 0 turns fusion off.
        fusion_window_s: how long the engine delays announcements while no thread waits for the tensors and more
            tensors are submitted. A tensor that a thread waits for is announced at once.
        bucket_bytes: DistributedOptimizer's gradients are stored in buckets of this size, each of which is sent as one
            tensor; 0 turns them off, and so does ``fusion_threshold_bytes`` 0.
        piece_bytes: with ``overlap_forward``, gradients are sent in pieces of this size, so that others can overtake.
        eager_bytes: a tensor up to this size is sent inside its announcement, its result inside the response; 0: none.
        hierarchical_bytes: on several machines, arrays from this size on are reduced inside each machine first.
        wire: ``float16`` or ``bfloat16``: how float32 and float64 travel between machines in such an allreduce; empty:
            as they are.
        gpu_operations: ``auto``, ``nccl``, ``mpi``, ``staged`` (through pinned host memory) or ``off``: how tensors
            on GPUs are transferred.
        hierarchical_allreduce: 1: over NCCL, GPUs reduce inside each machine first, then across. On CPUs with shared
            memory that is always so from ``hierarchical_bytes`` on, unless autotune finds one level faster.
        steady_state: 1: ranks that announce known names in the same order have them completed at once; 0: one by one.
        slots: 1: in such steps the ranks of one machine agree in shared memory, without asking rank 0; 0: they ask.
        caller_runs: 1: a thread that waits for a small tensor does the engine's work meanwhile; 0: it sleeps.
        spin_s: so long it asks for the answer before it sleeps, where each rank has a core of its own; 0: it sleeps.
        cache_capacity: names whose negotiation is remembered; 0 turns the response cache off.
        backend: ``auto``, ``shm``, or one of :data:`BACKENDS`: who moves the bytes. ``gloo``, as in Horovod: not MPI.
        init_timeout_s: deadline for all ranks to connect in ``init()``.
        elastic_timeout_s: how long a rank of an elastic job waits in ``init()`` for enough others.
        shutdown_timeout_s: how long ``shutdown()`` waits until the other ranks call it, too.
        heartbeat_s: interval of every rank's heartbeats.
        peer_timeout_s: a rank without a heartbeat for this long counts as lost.
        failed_rank_grace_s: how long a collective waits for a rank whose cell raised, or ended without calling it.
        data_timeout_s: a transfer fails after this long without any progress.
        stall_warning_s: a tensor that some ranks have not submitted is reported after this long; 0: never.
        stall_shutdown_s: after this long it fails on all ranks; 0: never.
        compare_steps: how often the ranks compare what one may have done alone; 0: never. See ``training/progress.py``.
        timeline: file for the timeline, or ``dynamic``: later, by ``start_timeline()``.
        timeline_mark_cycles: 1 marks each message of responses in the timeline.
        report: folder into which each rank writes its part of the job's report; see ``workbench run --report``.
        control_address: address on which rank 0 listens; found by itself when empty.
        autotune: 1: rank 0 tries values of the settings in :data:`TUNED` while the job runs, and keeps the fastest.
            Those that are set explicitly stay as they are.
        autotune_log: file for what was tried, as CSV.
        autotune_warmup_samples: samples that are forgotten.
        autotune_steps_per_sample: steps that are measured for each choice.
        autotune_bayes_opt_max_samples: choices that are tried until the best stays.
        autotune_gaussian_process_noise: of a sample, 0 to 1, where 1 is the standard deviation of all.
        autotune_start: file that ``workbench.measure(model, batch).save()`` has written: what the simulator
            finds best is tried early.
        autotune_fixed: names of settings that are not tuned, with commas; those set explicitly are added.
        chaos: faults that ranks do to themselves; what ``workbench run --chaos`` was told. Empty: none.
        bind: what the launcher binds ranks to: one of :data:`BINDINGS`.
    """

    fusion_threshold_bytes: int = 64 << 20
    fusion_window_s: float = 0.001
    bucket_bytes: int = 16 << 20
    piece_bytes: int = 2 << 20
    eager_bytes: int = 4096
    hierarchical_bytes: int = 256 << 10
    wire: str = ""
    gpu_operations: str = "auto"
    hierarchical_allreduce: int = 0
    steady_state: int = 1
    slots: int = 1
    caller_runs: int = 1
    spin_s: float = 0.0002
    cache_capacity: int = 1024
    backend: str = "auto"
    init_timeout_s: float = 120.0
    elastic_timeout_s: float = 600.0
    shutdown_timeout_s: float = 10.0
    heartbeat_s: float = 1.0
    peer_timeout_s: float = 30.0
    failed_rank_grace_s: float = 0.75
    data_timeout_s: float = 300.0
    stall_warning_s: float = 60.0
    stall_shutdown_s: float = 0.0
    compare_steps: int = 64
    timeline: str = ""
    timeline_mark_cycles: int = 0
    report: str = ""
    control_address: str = ""
    autotune: int = 0
    autotune_log: str = ""
    autotune_warmup_samples: int = 3
    autotune_steps_per_sample: int = 10
    autotune_bayes_opt_max_samples: int = 20
    autotune_gaussian_process_noise: float = 0.8
    autotune_start: str = ""
    autotune_fixed: str = ""
    chaos: str = ""
    bind: str = "auto"

    def tunes(self, name: str) -> bool:
        """May autotune change the setting with this name?

        Example:
            >>> Settings().tunes("eager_bytes"), Settings(autotune=1).tunes("eager_bytes")
            (False, True)
            >>> Settings(autotune=1, autotune_fixed="eager_bytes").tunes("eager_bytes")
            False
        """
        return bool(self.autotune) and name in TUNED and name not in self.fixed

    @property
    def fixed(self) -> list[str]:
        """The names in ``autotune_fixed``; with ``wire`` also that of two levels, for in one it would do nothing."""
        names = [name.strip() for name in self.autotune_fixed.split(",") if name.strip()]
        return [*names, "hierarchical_allreduce"] if self.wire else names


BACKENDS = {"mpi": "MPI", "sockets": "TCP"}
"""What can connect ranks that are processes, as the setting's value and the name that people know it by.

``connect`` of the module with that name in ``workbench/transport/host`` makes it. A new backend needs a line here.
"""

BINDINGS = ("auto", "none", "core", "numa")
"""Values of ``bind``; see :mod:`workbench.launch.start.binding`."""

_ALIKE = (
    *("cache_capacity", "gpu_operations", "hierarchical_allreduce", "timeline", "timeline_mark_cycles", "autotune"),
    *("autotune_log", "autotune_warmup_samples", "autotune_steps_per_sample", "autotune_bayes_opt_max_samples"),
    "autotune_gaussian_process_noise",
)
HOROVOD_NAMES: dict[str, tuple[str, float]] = {name: (f"HOROVOD_{name.upper()}", 1) for name in _ALIKE} | {
    "fusion_threshold_bytes": ("HOROVOD_FUSION_THRESHOLD", 1),
    "fusion_window_s": ("HOROVOD_CYCLE_TIME", 1e-3),
    "backend": ("HOROVOD_CPU_OPERATIONS", 1),
    "elastic_timeout_s": ("HOROVOD_ELASTIC_TIMEOUT", 1),
    "stall_warning_s": ("HOROVOD_STALL_CHECK_TIME_SECONDS", 1),
    "stall_shutdown_s": ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 1),
}


TUNED = ("fusion_threshold_bytes", "fusion_window_s", "bucket_bytes", "eager_bytes", "hierarchical_allreduce")
"""What autotune may change; what the user sets of these stays as it is."""


def settings(env: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from ``env`` (default: the process environment).

    Raises:
        ValueError: a variable's text is not a number where one is needed.

    Example:
        >>> settings({"HOROVOD_CYCLE_TIME": "5"}).fusion_window_s
        0.005
    """
    env = os.environ if env is None else env
    found: dict[str, str | int | float] = {}
    for field in fields(Settings):
        own, (other, unit) = f"WORKBENCH_{field.name.upper()}", HOROVOD_NAMES.get(field.name, ("", 1))
        if own in env:
            found[field.name] = parse(own, env[own], type(field.default), 1)
        elif other and other in env:
            found[field.name] = parse(other, env[other], type(field.default), unit)
    for name in {"backend", "gpu_operations", "bind"} & found.keys():
        found[name] = str(found[name]).lower()
    if env.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0") and "WORKBENCH_STALL_WARNING_S" not in env:
        found["stall_warning_s"] = 0.0
    if found.get("autotune"):
        said = [str(found.get("autotune_fixed", "")), *(name for name in TUNED if name in found)]
        found["autotune_fixed"] = ",".join(name for name in said if name)
    return Settings(**found)  # type: ignore[arg-type]  # each value was converted to its field's type


def parse(name: str, text: str, kind: type, unit: float) -> str | int | float:
    """A variable's text as a value of this kind, in our unit.

    Raises:
        ValueError: it is no number, or a negative one.
    """
    if kind is str:
        return text.strip()
    try:
        value = float(text) * unit
    except ValueError:
        value = math.nan
    if math.isnan(value) or (kind is int and math.isinf(value)):
        raise ValueError(f"{name}={text!r} is not a number. Set it to a number or unset it.")
    if value < 0:
        raise ValueError(f"{name}={text!r} is negative. Set it to 0 or more, or unset it.")
    return int(value) if kind is int else value


def cache_dir(env: Mapping[str, str] | None = None) -> Path:
    """The folder for downloaded data: ``$XDG_CACHE_HOME/workbench`` or ``~/.cache/workbench``."""
    env = os.environ if env is None else env
    base = env.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "workbench"


def visible_gpus(env: Mapping[str, str] | None = None) -> str | None:
    """Which GPUs CUDA may use, as CUDA_VISIBLE_DEVICES says it: "" for none of them, None if nobody has said so.

    Example:
        >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "0,GPU-5a1c"}), visible_gpus({})
        ('0,GPU-5a1c', None)
    """
    env = os.environ if env is None else env
    return env.get("CUDA_VISIBLE_DEVICES")


def engines_of_first_cell(env: Mapping[str, str] | None = None) -> int | None:
    """How many engines a ``%%px`` cell starts where there is no cluster, as WORKBENCH_UP says: None if it starts none.

    Returns:
        0: as many as ``cluster.up()`` does by itself.

    Raises:
        LaunchError: it is no number and not ``auto``.

    Example:
        >>> engines_of_first_cell({"WORKBENCH_UP": "4"}), engines_of_first_cell({"WORKBENCH_UP": "auto"})
        (4, 0)
        >>> engines_of_first_cell({})
    """
    text = (os.environ if env is None else env).get("WORKBENCH_UP", "").strip()
    if text in ("", "0"):
        return None
    if text != "auto" and not text.isdecimal():
        raise LaunchError(f"WORKBENCH_UP={text!r} is no number of engines, nor auto.")
    return 0 if text == "auto" else int(text)


def child_environment(**changes: str) -> dict[str, str]:
    """The whole environment of this process, with ``changes``, for a child process."""
    return {**os.environ, **changes}


def pass_on(variables: Mapping[str, str]) -> None:
    """Set variables of this process for the programs that it starts, such as a notebook's ``!`` lines."""
    os.environ.update(variables)


def let_ranks_share_a_gpu() -> None:
    """Tell NCCL, before its first communicator, that ranks of this job share a GPU, and to be small enough for it.

    Their kernels wait for each other, so all must find room on the GPU at once: one thread block for each.
    """
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    os.environ.setdefault("NCCL_MAX_CTAS", "1")


@contextmanager
def changed_environment(**changes: str | None) -> Iterator[None]:
    """Within the block this process's environment has these variables; those given as None stay as they are."""
    new = {name: text for name, text in changes.items() if text is not None}
    before = {name: os.environ.get(name) for name in new}
    os.environ.update(new)
    try:
        yield
    finally:
        for name, text in before.items():
            os.environ.pop(name)
            if text is not None:
                os.environ[name] = text


def replace_environment(env: Mapping[str, str]) -> None:
    """From now on this process's environment is ``env``."""
    os.environ.clear()
    os.environ.update(env)


def secret(env: Mapping[str, str] | None = None) -> bytes:
    """The job's secret, as the launcher or the user has said it in WORKBENCH_SECRET; empty if nobody has.

    It is not in :class:`Settings`, because settings are printed and sent to other ranks.

    Raises:
        LaunchError: it is short enough to be guessed.

    Example:
        >>> secret({"WORKBENCH_SECRET": "0123456789abcdef"}), secret({})
        (b'0123456789abcdef', b'')
    """
    env = os.environ if env is None else env
    said = env.get("WORKBENCH_SECRET", "").strip().encode()
    if 0 < len(said) < 16:
        raise LaunchError(
            f"WORKBENCH_SECRET has {len(said)} characters and could be guessed: at least 16 are needed. Set "
            "it to a random text, the same for all ranks: openssl rand -hex 16"
        )
    return said


def private_folders(env: Mapping[str, str] | None = None) -> list[Path]:
    """Where files may lie that only this user reads; the first is the likeliest to be shared between hosts."""
    runtime = (os.environ if env is None else env).get("XDG_RUNTIME_DIR", "")
    mine = Path(tempfile.gettempdir()) / f"workbench-{os.getuid()}"
    return [cache_dir(env) / "jobs", *([Path(runtime) / "workbench"] if runtime else []), mine]
