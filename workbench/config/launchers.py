"""The environment variables that launchers set for their processes: the rank, the number of ranks, the host."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import entry_points

from workbench.config.variables import parse
from workbench.errors import LaunchError

_WITHIN = {"WORKBENCH_MEMBER", "TORCHELASTIC_RUN_ID"}  # a rank has started torchrun
_ALONE = (
    "torchrun or accelerate launch, started by a rank, has started this process, which would train alone. Leave that "
    "launcher out: workbench run -np {} python script.py"
)


@dataclass(frozen=True)
class Launch:
    """How this process was started, read from its environment alone.

    Args:
        launcher: ``mpich``, ``openmpi``, ``pmix``, ``slurm``, ``torchrun``, ``elastic`` or ``none``.
        rank, size, local_rank, local_size: as the launcher says; MPI's own answer wins later. In an elastic job
            ``rank`` is the worker's number, which stays while its rank changes.
        address, port: of the rendezvous, when the ranks were not started by MPI.
        file: … or the file for the rendezvous, or of an elastic job the socket where its membership is asked for; only
            this user can read and write it.
        board: … or the port at ``address`` where rank 0 holds a board for it.
        agent: torchrun's agent already listens on the port and serves the store for all ranks.
        attempt: how often torchrun has started the ranks again.
    """

    launcher: str
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    address: str = ""
    port: int = 0
    file: str = ""
    board: int = 0
    agent: bool = False
    attempt: int = 0

    @property
    def several(self) -> bool:
        """Are there other ranks, or may there be?"""
        return self.launcher == "elastic" or self.size > 1


def launch(env: Mapping[str, str] | None = None) -> Launch:
    """Who started this process? The most specific answer first.

    mpiexec under Slurm leaves both MPI's and Slurm's variables, torchrun under Slurm both torchrun's
    and Slurm's; so Slurm comes last.

    Example:
        >>> found = launch({"PMI_RANK": "1", "PMI_SIZE": "4"})
        >>> found.launcher, found.rank, found.size
        ('mpich', 1, 4)
    """
    env = os.environ if env is None else env
    by_torchrun = {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= env.keys()
    if "WORKBENCH_MEMBERSHIP" in env:
        worker, slot = _integer(env, "WORKBENCH_WORKER", 0), _integer(env, "LOCAL_RANK", 0)
        return Launch("elastic", worker, 0, slot, 0, file=env["WORKBENCH_MEMBERSHIP"])
    # Beside another launcher's, Open MPI's best known variables may be there for scripts that look at them, by hand or
    # by --as-horovod; where Open MPI itself has set them, those of its runtime are there as well.
    within = env.keys() >= _WITHIN
    by_runtime = {"PMIX_RANK", "OMPI_UNIVERSE_SIZE"} & env.keys()
    for_scripts = within or ((by_torchrun or "PMI_RANK" in env) and not by_runtime)
    if "OMPI_COMM_WORLD_SIZE" in env and not for_scripts:
        return _numbers(env, "openmpi", *(f"OMPI_COMM_WORLD_{x}" for x in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")))
    if ("PMI_SIZE" in env or "PMI_RANK" in env) and not within:
        return _numbers(env, "mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    if by_torchrun:
        found = _numbers(env, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        found = _at_address(found, env["MASTER_ADDR"], _integer(env, "MASTER_PORT", 29500))
        agent, attempt = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True", "TORCHELASTIC_RESTART_COUNT"
        file, board = env.get("WORKBENCH_RENDEZVOUS_FILE", ""), _integer(env, "WORKBENCH_RENDEZVOUS_PORT", 0)
        return replace(found, file=file, board=board, agent=agent, attempt=_integer(env, attempt, 0))
    if "PMIX_RANK" in env:
        return _numbers(env, "pmix", "PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID", "")
    if "SLURM_PROCID" in env and "SLURM_STEP_NODELIST" in env and _integer(env, "SLURM_STEP_NUM_TASKS", 1) > 1:
        found = _numbers(env, "slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "")
        job, step = _integer(env, "SLURM_JOB_ID", 0), _integer(env, "SLURM_STEP_ID", 0)
        port = 20000 + (job * 131 + step) % 20000  # the same on all ranks, different for neighbouring steps
        return _at_address(found, first_host(env["SLURM_STEP_NODELIST"]), port)
    return Launch("none")


def names_torch_store(numbers: bool, env: Mapping[str, str] | None = None) -> bool:
    """Do torch's variables say where the ranks meet, and, where ``numbers`` are asked for, which of how many this is?

    Example:
        >>> names_torch_store(False, {"MASTER_ADDR": "a", "MASTER_PORT": "1"}), names_torch_store(True, {"RANK": "0"})
        (True, False)
    """
    wanted = {"MASTER_ADDR", "MASTER_PORT"} | ({"RANK", "WORLD_SIZE"} if numbers else set())
    return wanted <= (os.environ if env is None else env).keys()


def torch_group_variables(takes: bool = True) -> dict[str, str]:
    """What ranks need for that; or for torch to find this package only.

    Raises:
        LaunchError: torch would not find the plugin.
    """
    if not entry_points(group="torch.backends", name="workbench"):
        raise LaunchError(
            "For groups of torch this package has to be installed, or torch does not find it: pip install -e ."
        )
    return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1", **({"WORKBENCH_C10D": "1"} if takes else {})}


def shown_variables() -> dict[str, str]:
    """Those that say how torch's ranks find each other and compute, for a page that others see; none is secret."""
    shown = re.compile(r"(MASTER|GLOO|NCCL|TORCH|OMP|CUDA)_\w+|(LOCAL_)?RANK|WORLD_SIZE")
    return {name: text for name, text in os.environ.items() if shown.fullmatch(name)}


def refusal(env: Mapping[str, str] | None = None) -> str:
    """Why this process cannot be a rank, although its environment says that it is one; "" if it can.

    Example:
        >>> refusal({"WORKBENCH_MEMBER": "0.member", "HOROVOD_SIZE": "2", "TORCHELASTIC_RUN_ID": "7"})[:42]
        'torchrun or accelerate launch, started by '
        >>> refusal({"PMI_RANK": "0", "PMI_SIZE": "2"})
        ''
    """
    env = os.environ if env is None else env
    if env.keys() >= _WITHIN:
        size, alone = _integer(env, "HOROVOD_SIZE", 1), _integer(env, "GROUP_WORLD_SIZE", 1) == 1
        return _ALONE.format(size) if size > 1 and alone else ""
    if env.get("PMI_FD", "").isdecimal() and not _is_socket(int(env["PMI_FD"])):
        return (
            "a rank has started this process without its connection to mpiexec (PMI_FD). Call init() in the rank "
            "itself; or let this process be the rank: subprocess.run(..., close_fds=False)."
        )
    return ""


def _is_socket(number: int) -> bool:
    with suppress(OSError):
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    return False


def _numbers(env: Mapping[str, str], launcher: str, rank: str, size: str, local_rank: str, local_size: str) -> Launch:
    return Launch(
        launcher,
        _integer(env, rank, 0),
        _integer(env, size, 1),
        _integer(env, local_rank, 0),
        _integer(env, local_size, 1),
    )


def _integer(env: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(env.get(name) or default)
    except ValueError:
        raise LaunchError(f"{name}={env[name]!r} is not a whole number; the launcher should have set it.") from None


def _at_address(found: Launch, address: str, port: int) -> Launch:
    return replace(found, address=address, port=port)


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list.

    Example:
        >>> first_host("rack[1-2]node[03-05,9],login1"), first_host("iris-179,iris-180")
        ('rack1node03', 'iris-179')
    """
    return re.sub(r"\[(\d+)[^\]]*\]|,.*", r"\1", nodelist)


@dataclass(frozen=True)
class BatchPart:
    """Hosts of a Slurm job: all of them, or those of one component of a heterogeneous job.

    Args:
        nodes: how many there are.
        names: as Slurm writes them.
        tasks: how many tasks each host takes, as Slurm writes it; "" if it does not say.
    """

    nodes: int
    names: str
    tasks: str = ""


def batch_parts(env: Mapping[str, str] | None = None) -> list[BatchPart]:
    """The parts of the Slurm job around this process: one, or one for each component; none outside of a job.

    Example:
        >>> batch_parts({"SLURM_NNODES": "2", "SLURM_NODELIST": "gpu[03-04]", "SLURM_TASKS_PER_NODE": "2(x2)"})
        [BatchPart(nodes=2, names='gpu[03-04]', tasks='2(x2)')]
    """
    env = os.environ if env is None else env
    components = [f"_HET_GROUP_{i}" for i in range(_integer(env, "SLURM_HET_SIZE", 0))]
    found = []
    for end in [end for end in components if f"SLURM_JOB_NODELIST{end}" in env] or [""]:
        nodes = _integer(env, f"SLURM_JOB_NUM_NODES{end}", 0) or _integer(env, f"SLURM_NNODES{end}", 1)
        names = env.get(f"SLURM_JOB_NODELIST{end}") or env.get(f"SLURM_NODELIST{end}", "")
        found.append(BatchPart(nodes, names, env.get(f"SLURM_TASKS_PER_NODE{end}", "")))
    return [part for part in found if part.names]


def set_horovod_numbers(
    rank: int, size: int, local_rank: int, local_size: int, cross_rank: int, cross_size: int
) -> None:
    """Set those of Horovod's variables that scripts read. In an elastic job each epoch has its own."""
    horovod = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
    horovod |= {"CROSS_RANK": cross_rank, "CROSS_SIZE": cross_size}
    os.environ.update({f"HOROVOD_{name}": str(number) for name, number in horovod.items()})


def rank_and_size(env: Mapping[str, str] | None = None) -> tuple[int, int]:
    """The rank and the number of ranks; in an elastic job, of the epoch, and until the first one what is likely.

    Example:
        >>> rank_and_size({"WORKBENCH_MEMBERSHIP": "7", "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"})
        (1, 2)
        >>> rank_and_size({"PMI_RANK": "1", "PMI_SIZE": "4"}), rank_and_size({})
        ((1, 4), (0, 1))
    """
    env = os.environ if env is None else env
    found = launch(env)
    if found.launcher != "elastic":
        return found.rank, found.size
    return _integer(env, "HOROVOD_RANK", 0), _integer(env, "HOROVOD_SIZE", 1)


def set_rank_here(rank: int | None) -> None:
    """Leave word, for the processes that this one starts, that it is this rank; with None that it is none any more."""
    if rank is None:
        os.environ.pop("WORKBENCH_RANK_HERE", None)
    else:
        os.environ["WORKBENCH_RANK_HERE"] = f"{os.getpid()} {rank}"


def most_ranks(env: Mapping[str, str] | None = None) -> int:
    """With how many ranks an elastic job may run at most, as its launcher says; 0 if it says nothing.

    Example:
        >>> most_ranks({"WORKBENCH_MAX_NP": "4"}), most_ranks({})
        (4, 0)
    """
    return _integer(os.environ if env is None else env, "WORKBENCH_MAX_NP", 0)


# What one launcher tells its processes, and the ranks of another must not hear.
_LAUNCHER_NAMES = re.compile(
    r"OMPI_COMM_WORLD_\w+|PMIX?_\w+|MPI_LOCAL\w+|HYDI_\w+|RANK|WORLD_SIZE|(LOCAL|GROUP|ROLE)_(RANK|WORLD_SIZE)"
    r"|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+|HOROVOD_(LOCAL_|CROSS_)?(RANK|SIZE)|WORKBENCH_(AS_HOROVOD|AT_START|C10D|CHECK|MEMBER|RANK_HERE|SECRET|RENDEZVOUS_(FILE|PORT)|HOST_ADDRESS|UNBOUND|MEMBERSHIP|WATCH|WORKER|MAX_NP)|HOROVOD_ELASTIC"
)


def without_launcher(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` without what a launcher said to this process about its rank.

    Example:
        >>> without_launcher({"PMI_RANK": "0", "RANK": "1", "HOME": "/root"})
        {'HOME': '/root'}
    """
    return {name: text for name, text in env.items() if not _LAUNCHER_NAMES.fullmatch(name)}


def become(variables: Mapping[str, str]) -> None:
    """Change this process's environment as if a launcher had started it with ``variables``.

    What another launcher has said to it goes: Ray may run inside a Slurm step, whose tasks have a rank, too.

    Example:
        >>> become({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}); launch().rank
        1
        >>> become({}); launch().launcher
        'none'
    """
    for name in os.environ.keys() - without_launcher(os.environ).keys():
        del os.environ[name]
    os.environ.update(variables)


def log_server_variables(address: str, port: int, secret: bytes) -> dict[str, str]:
    """What tells a rank where :func:`workbench.ray.ray_logger.log` goes.

    Example:
        >>> log_server_variables("10.0.0.1", 4000, b"secret")
        {'WORKBENCH_RAY_LOG': '10.0.0.1 4000 736563726574'}
    """
    return {"WORKBENCH_RAY_LOG": f"{address} {port} {secret.hex()}"}


def start_timeout_s(env: Mapping[str, str]) -> float:
    """How long the launcher waits until all ranks have started."""
    return float(parse("HOROVOD_START_TIMEOUT", env.get("HOROVOD_START_TIMEOUT", "30"), float, 1))


def spark_start_timeout_s() -> float:
    """How long ``workbench.spark.run`` waits until all of its Spark tasks run."""
    name = "HOROVOD_SPARK_START_TIMEOUT"
    return float(parse(name, os.environ.get(name, "600"), float, 1))


def ports(env: Mapping[str, str] | None = None) -> tuple[int, int]:
    """The first and the last port that may be listened on, as ``WORKBENCH_PORTS`` says; (0, 0): any.

    Raises:
        LaunchError: it is no range of ports.

    Example:
        >>> ports({"WORKBENCH_PORTS": "40000-40100"}), ports({})
        ((40000, 40100), (0, 0))
    """
    env = os.environ if env is None else env
    text = env.get("WORKBENCH_PORTS", "").strip()
    if not text:
        return 0, 0
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    low, high = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 0 < low <= high < 1 << 16:
        raise LaunchError(f"WORKBENCH_PORTS={text!r} is not a range of ports: write it as 40000-40100.")
    return low, high
