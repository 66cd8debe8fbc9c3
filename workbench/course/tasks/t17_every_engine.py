"""Lesson 17, the same job on every engine: what starts a rank, which rank it is, and where the hosts are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from workbench.course.judging.task import PlainTask

Pod = dict[str, Any]


def table() -> Any:
    """Return a dict: by engine, a dict with the answers to four questions.

    Engines: ssh, slurm, mpijob, jobset. The questions, and the words to choose from:

    starts: what starts the processes of the ranks on a host?
        "agent by ssh", "agent by srun" or "torchrun".
    finds: what knows the hosts? "the user", "Slurm", "the operator" or "DNS".
    slots: the name of the option, key or variable that says how many ranks a host gets.
    replaces: what starts a rank instead of a lost one, while the others train?
        "the launcher" or "nobody".
    """
    ### BEGIN SOLUTION
    return {
        "ssh": {"starts": "agent by ssh", "finds": "the user", "slots": "-H", "replaces": "nobody"},
        "slurm": {"starts": "agent by srun", "finds": "Slurm", "slots": "ntasks-per-node", "replaces": "nobody"},
        "mpijob": {
            "starts": "agent by ssh",
            "finds": "the operator",
            "slots": "slots-per-host",
            "replaces": "the launcher",
        },
        "jobset": {"starts": "torchrun", "finds": "DNS", "slots": "PET_NPROC_PER_NODE", "replaces": "nobody"},
    }
    ### END SOLUTION


def who_am_i(env: Any) -> Any:
    """Return (rank, size, local_rank) of a process.

    env: its environment, a dict of strings.
    torchrun sets RANK, WORLD_SIZE, LOCAL_RANK.
    mpiexec of MPICH sets PMI_RANK, PMI_SIZE, MPI_LOCALRANKID.
    srun sets SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID.
    A process that none of them has started is alone: (0, 1, 0).
    """
    ### BEGIN SOLUTION
    launchers = [
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ]
    for names in launchers:
        if all(name in env for name in names):
            rank, size, local_rank = (int(env[name]) for name in names)
            return rank, size, local_rank
    return 0, 1, 0
    ### END SOLUTION


def discover(pods: Any, service: Any) -> Any:
    """Return the lines that the program prints: "name.service:slots" for each host.

    Each pod is a dict: name (such as "train-worker-3"); role ("worker" or "launcher");
    ready and deleted (True or False; a deleted pod may still run for 30 s); limits (a
    dict; "nvidia.com/gpu" is a number, as text).
    A host is a pod that can take ranks now. It takes a rank for each of its GPUs; one
    without GPUs takes one rank. Sort by the number at the end of the name, so that ranks
    of a host that stays do not move.
    """
    ### BEGIN SOLUTION
    there = [pod for pod in pods if pod["role"] == "worker" and pod["ready"] and not pod["deleted"]]
    there.sort(key=lambda pod: int(pod["name"].rpartition("-")[2]))
    return [f"{pod['name']}.{service}:{int(pod['limits'].get('nvidia.com/gpu', 0)) or 1}" for pod in there]
    ### END SOLUTION


# --- 17.table -----------------------------------------------------------------------------------------

_QUESTIONS = {
    "starts": {
        "ssh": ({"agent by ssh"}, "-H names hosts, and workbench run reaches them"),
        "slurm": (
            {"agent by srun"},
            "in a Slurm job workbench run needs no ssh: which program does Slurm have for this?",
        ),
        "mpijob": ({"agent by ssh"}, "which command does the launcher's pod run, and what does a worker's pod run?"),
        "jobset": ({"torchrun"}, "no pod runs workbench run: look at args"),
    },
    "finds": {
        "ssh": ({"the user"}, "who wrote a and b?"),
        "slurm": ({"Slurm"}, "no host is named in the script: who gives them?"),
        "mpijob": ({"the operator"}, "who writes /etc/mpi/discover_hosts.sh, again and again?"),
        "jobset": ({"DNS"}, "each pod is told a name, PET_MASTER_ADDR: who turns it into an address?"),
    },
    "slots": {
        "ssh": ({"h", "hosts"}, "a:2"),
        "slurm": ({"ntasks-per-node"}, "an #SBATCH option"),
        "mpijob": (
            {"slots-per-host"},
            "slotsPerWorker goes into a hostfile, which this job does not read: its script prints hosts without slots",
        ),
        "jobset": ({"pet-nproc-per-node"}, "torchrun reads its options from variables that begin with PET_"),
    },
    "replaces": {
        "ssh": ({"nobody"}, "without --min-np the job ends when a rank is lost"),
        "slurm": ({"nobody"}, "without --min-np the job ends when a rank is lost"),
        "mpijob": ({"the launcher"}, "--min-np 2: who goes on while a pod is made anew, and starts ranks in it?"),
        "jobset": ({"nobody"}, "maxRestarts: 0; and a restart of a JobSet starts all of its pods again"),
    },
}


def _answers(question: str) -> Callable[[Callable[..., Any]], str]:
    def judge(function: Callable[..., Any]) -> str:
        mine = function()
        if not isinstance(mine, Mapping):
            engines = ", ".join(_QUESTIONS[question])
            return f"your result is {mine!r}. A dict is asked for, with the engines {engines} as keys"
        for engine, (right, where) in _QUESTIONS[question].items():
            row = mine.get(engine)
            if not isinstance(row, Mapping) or question not in row:
                return f"your result has no {question!r} for {engine}"
            said = str(row[question])
            plain = said.strip().lstrip("-").lower().replace("_", "-") if question == "slots" else said
            if plain not in right:
                return f"{engine}: {said!r}. Look again: {where}"
        return ""

    judge.__doc__ = {
        "starts": "What starts the ranks of a host.",
        "finds": "Who knows the hosts.",
        "slots": "Where the number of ranks per host stands.",
        "replaces": "Who replaces a lost rank.",
    }[question]
    return judge


# --- 17.who_am_i --------------------------------------------------------------------------------------

_TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
_MPIEXEC = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
_SRUN = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "2"}
_SRUN |= {"SLURM_NTASKS": "8", "SLURM_STEP_NODELIST": "n[1-2]"}
_BATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}


def _known(cases: Iterable[tuple[str, dict[str, str], tuple[int, int, int]]]) -> Callable[[Callable[..., Any]], str]:
    listed = list(cases)

    def judge(function: Callable[..., Any]) -> str:
        for what, env, right in listed:
            mine = function(dict(env))
            mine = mine.tolist() if hasattr(mine, "tolist") else mine  # numpy's and torch's
            mine = tuple(mine) if isinstance(mine, list) else mine
            if mine != right:
                return f"{what}, {_short(env)}: your result is {mine!r}, expected {right}{_which(mine, right)}"
        return ""

    return judge


def _which(mine: Any, right: tuple[int, int, int]) -> str:
    if not isinstance(mine, (tuple, list)) or len(mine) != 3:
        return ""
    wrong = [name for name, a, b in zip(("rank", "size", "local rank"), mine, right, strict=True) if a != b]
    text = list(map(str, mine)) == list(map(str, right))
    return f". Wrong: {', '.join(wrong)}{', which are text and no numbers' if text else ''}"


def _short(env: Mapping[str, str]) -> str:
    return " ".join(f"{name}={text}" for name, text in env.items()) or "an empty environment"


def one_launcher(function: Callable[..., Any]) -> str:
    """One launcher alone: torchrun, mpiexec, srun."""
    return _known(
        [
            ("torchrun", _TORCHRUN, (3, 4, 1)),
            ("mpiexec", _MPIEXEC, (2, 3, 0)),
            ("srun", _SRUN, (5, 6, 2)),
            ("mpiexec, ten or more ranks", {**_MPIEXEC, "PMI_RANK": "10", "PMI_SIZE": "12"}, (10, 12, 0)),
        ]
    )(function)


def no_launcher(function: Callable[..., Any]) -> str:
    """A process that was started by hand, also in the shell of a Slurm job."""
    shell = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"}
    return _known(
        [
            ("started by hand", {}, (0, 1, 0)),
            ("by hand in salloc's shell", shell, (0, 1, 0)),
            ("in a batch script, without srun", _BATCH, (0, 1, 0)),
        ]
    )(function)


def two_launchers(function: Callable[..., Any]) -> str:
    """One launcher inside another: the launcher that started the process itself counts."""
    return _known(
        [
            ("mpiexec in a batch script of Slurm", {**_BATCH, **_MPIEXEC}, (2, 3, 0)),
            ("torchrun on each node, started by srun", {**_SRUN, **_TORCHRUN}, (3, 4, 1)),
            ("mpiexec in a step of srun", {**_SRUN, **_MPIEXEC}, (2, 3, 0)),
        ]
    )(function)


# --- 17.discover --------------------------------------------------------------------------------------


def _pod(number: int, **about: Any) -> Pod:
    common = {"name": f"train-worker-{number}", "role": "worker", "ready": True, "deleted": False, "limits": {}}
    return {**common, **about}


def _gpus(count: int) -> dict[str, str]:
    return {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": str(count)}


def _printed(function: Callable[..., Any], cases: Iterable[tuple[str, list[Pod], list[str]]]) -> str:
    for what, pods, right in cases:
        mine = function([{**pod, "limits": dict(pod["limits"])} for pod in pods], "train")
        if mine is None:
            return "your result is None. Is there a return?"
        if isinstance(mine, str):
            return f"{what}: your result is one text, {mine!r}. A list is asked for, with a text for each host"
        if list(mine) != right:
            return f"{what}: your result is {list(mine)}, expected {right}"
    return ""


def names_and_slots(function: Callable[..., Any]) -> str:
    """A line for each worker, with a slot for each GPU."""
    pods = [_pod(0, limits=_gpus(4)), _pod(1, limits=_gpus(2))]
    return _printed(
        function,
        [
            ("two pods with 4 and 2 GPUs", pods, ["train-worker-0.train:4", "train-worker-1.train:2"]),
            ("a pod without GPUs", [_pod(0, limits={"cpu": "2"})], ["train-worker-0.train:1"]),
            ("a pod without limits", [_pod(0)], ["train-worker-0.train:1"]),
            ("no pod", [], []),
        ],
    )


def only_who_can(function: Callable[..., Any]) -> str:
    """Pods that are not ready, deleted pods and the launcher take no rank."""
    pods = [
        _pod(0, ready=False, limits=_gpus(2)),
        _pod(1, deleted=True, limits=_gpus(2)),
        {**_pod(0), "name": "train-launcher-0", "role": "launcher"},
        _pod(2, limits=_gpus(2)),
    ]
    one = ["train-worker-2.train:2"]
    return _printed(
        function,
        [
            ("worker-0 is not ready", [pods[0], pods[3]], one),
            ("worker-1 is deleted and still ready", [pods[1], pods[3]], one),
            ("one pod is the launcher", [pods[2], pods[3]], one),
            ("nobody is ready", pods[:2], []),
        ],
    )


def in_order(function: Callable[..., Any]) -> str:
    """By number: worker-10 comes after worker-2."""
    pods = [_pod(number) for number in (10, 2, 0, 11, 1)]
    right = [f"train-worker-{number}.train:1" for number in (0, 1, 2, 10, 11)]
    return _printed(function, [("pods in the order 10, 2, 0, 11, 1", pods, right)])


def _probes() -> list[tuple[list[Pod], str]]:
    launcher = {**_pod(0), "name": "train-launcher-0", "role": "launcher"}
    some = [_pod(0, limits=_gpus(4)), _pod(1, limits=_gpus(2))]
    many = [_pod(number) for number in (10, 2, 0)]
    unready, gone = [_pod(3, ready=False), *some], [_pod(4, deleted=True), *some]
    return [(pods, "train") for pods in (some, [_pod(0)], many, unready, gone, [launcher, *some], [])]


TASKS = [
    PlainTask(
        "17.table",
        "read four job descriptions",
        table,
        properties=[_answers(question) for question in _QUESTIONS],
    ),
    PlainTask(
        "17.who_am_i",
        "which rank is this process, with any launcher?",
        who_am_i,
        properties=[one_launcher, no_launcher, two_launchers],
    ),
    PlainTask(
        "17.discover",
        "which pods can take ranks",
        discover,
        probes=_probes,
        properties=[names_and_slots, only_who_can, in_order],
    ),
]
