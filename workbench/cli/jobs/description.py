"""What a job needs, in the words of no engine: checked when it is made, so that what an engine is told makes sense."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from workbench.errors import LaunchError

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035: a pod's name is its host name
_LABEL_LENGTH = 63
_QUEUE = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")  # a label's value in Kubernetes
_SUBDOMAIN = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")  # of a Secret, a namespace, a priority class
_BYTES = re.compile(r"[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)")
_ANNOTATION = re.compile(r"([a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_TOLERATION = re.compile(
    rf"(?P<key>{_ANNOTATION.pattern})(=(?P<value>[-_.A-Za-z0-9]{{0,63}}))?"
    r"(:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?"
)
_VOLUME = re.compile(
    r"((?P<kind>configmap|secret|claim)/)?(?P<name>[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?)"
    r":(?P<path>/[^:\0]*[^:/\0])(?P<ro>:ro)?"
)
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_DIGITS = re.compile(r"[0-9]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOME = "/home/workbench"
_TAKEN = (
    *("/tmp", "/dev", "/proc", "/sys", "/opt/workbench", "/etc/workbench", "/etc/mpi"),
    *(f"{_HOME}/{each}" for each in (".ssh", ".cache", ".config", ".local", ".ipython", ".jupyter")),
)
_DAY_S, _HOUR_S, _MINUTE_S = 86400, 3600, 60


@dataclass(frozen=True)
class JobDescription:
    """A job: equal workers, each with so many ranks.

    Args:
        command: what each rank runs, word by word.
        np: how many ranks.
        slots: ranks of each worker, which is a pod, or a node of Slurm.
        name: of the job, and so of its pods.
        image: of the container, with a tag or digest; needed on Kubernetes.
        gpus, cpus: of each rank.
        memory: of each rank, as Kubernetes writes it: ``2Gi``.
        env: variables of the ranks.
        min_np, max_np: the job goes on with so few ranks, and takes so many; 0 for both: it is not elastic.
        time: its limit as Slurm writes it, ``30:00`` is half an hour; "": none.
        queue: of Kueue, or Slurm's partition.
        priority: a PriorityClass.
        namespace: "": the one that kubectl is set to.
        ssh_secret: a Secret with the job's private key, for the chart; "": the chart makes one.
        node_selector: labels of the nodes that the job's pods may be on.
        tolerations: of its pods, as ``kubectl taint`` writes a taint: ``key=value:NoSchedule``, ``key:NoExecute``,
            ``key``.
        volumes: of its pods, each with its place: ``claim-of-a-volume:/data``, ``configmap/NAME:/etc/more``,
            ``secret/NAME:/run/keys``; ``:ro`` at the end, and it is read-only.
        shm_size: of a worker's ``/dev/shm``, which counts as its memory; "": 1Gi, or all its memory if that is less.
        pull_secrets: Secrets with which the image is pulled.
        annotations: of the workers' pods.
        ttl: seconds after which a job that has ended is deleted; None: never.

    Raises:
        LaunchError: a value is out of its range, or two contradict each other.

    Example:
        >>> JobDescription(["python", "train.py"], np=4, slots=2).workers
        2
        >>> JobDescription(["python", "train.py"], np=5, slots=2)
        Traceback (most recent call last):
        workbench.errors.LaunchError: 5 ranks do not fill workers of 2. All workers are alike: take 4 or 6, or slots=1.
    """

    command: Sequence[str]
    np: int = 1
    slots: int = 1
    name: str = "workbench"
    image: str = ""
    gpus: int = 0
    cpus: int = 1
    memory: str = "2Gi"
    env: Mapping[str, str] = field(default_factory=dict)
    min_np: int = 0
    max_np: int = 0
    time: str = ""
    queue: str = ""
    priority: str = ""
    namespace: str = ""
    ssh_secret: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[str] = ()
    volumes: Sequence[str] = ()
    shm_size: str = ""
    pull_secrets: Sequence[str] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    ttl: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.command, str) or not self.command:
            raise LaunchError(f"command is {self.command!r}, but must be words: ['python', 'train.py'].")
        _check_numbers(self)
        _check_elastic(self)
        _check_words(self)
        _check_pods(self)
        seconds(self.time)
        longest = f"{self.name}-worker-{self.most_workers - 1}"
        if not _LABEL.fullmatch(self.name) or len(longest) > _LABEL_LENGTH:
            raise LaunchError(
                f"{self.name!r} is not a valid name for a job. Use letters a to z, digits and -, with a letter first; "
                f"the name of its last pod, {longest}, may have at most {_LABEL_LENGTH} characters."
            )

    @property
    def is_elastic(self) -> bool:
        return bool(self.min_np or self.max_np)

    @property
    def workers(self) -> int:
        return self.np // self.slots

    @property
    def most_workers(self) -> int:
        """How many there may ever be."""
        return max(self.np, self.max_np) // self.slots


def _check_numbers(job: JobDescription) -> None:
    least = {"np": 1, "slots": 1, "cpus": 1, "gpus": 0, "min_np": 0, "max_np": 0}
    for name, at_least in least.items():
        value = getattr(job, name)
        if type(value) is not int or value < at_least:  # True is an int as well
            raise LaunchError(f"{name} is {value!r}, but must be a whole number, {at_least} or more.")
    for name in ("np", "min_np", "max_np"):
        value, slots = getattr(job, name), job.slots
        if value % slots:
            below, above = value - value % slots, value - value % slots + slots
            either = f"{below} or {above}" if below else f"{above}"
            what = "ranks" if name == "np" else f"ranks as {name}"
            raise LaunchError(
                f"{value} {what} do not fill workers of {slots}. All workers are alike: take {either}, or slots=1."
            )


def _check_elastic(job: JobDescription) -> None:
    if job.is_elastic and not 0 < job.min_np <= job.np <= job.max_np:
        raise LaunchError(
            f"min_np={job.min_np}, np={job.np}, max_np={job.max_np}: an elastic job has all three, each at least 1 and "
            "no smaller than the one before it."
        )


def _check_words(job: JobDescription) -> None:
    if not _BYTES.fullmatch(job.memory):
        raise LaunchError(f"memory is {job.memory!r}, but must be a number with a unit: 500Mi, 2Gi.")
    for name in job.env:
        if not _VARIABLE.fullmatch(name):
            raise LaunchError(
                f"env: {name!r} is not a valid name of a variable: use letters, digits and _, with no digit first."
            )
    if job.queue and not _QUEUE.fullmatch(job.queue):
        raise LaunchError(f"queue is {job.queue!r}, but may have only letters, digits, -, _ and ., at most 63.")
    for name in ("priority", "namespace", "ssh_secret"):
        value = getattr(job, name)
        if value and not _SUBDOMAIN.fullmatch(value):
            raise LaunchError(f"{name} is {value!r}, but must have letters a to z, digits, - and . alone.")
    if any("\0" in word for word in [*job.command, *job.env.values()]):
        raise LaunchError("command or env contains a null character, which cannot be passed to a process.")


def _check_pods(job: JobDescription) -> None:
    for name, labels, value in (("node_selector", job.node_selector, _QUEUE), ("annotations", job.annotations, None)):
        for key, text in labels.items():
            if not _ANNOTATION.fullmatch(key) or (value and text and not value.fullmatch(text)):
                raise LaunchError(f"{name}: {key}={text} is no label of Kubernetes: team.example/pool=gpu, for one.")
    for each in job.pull_secrets:
        if not _SUBDOMAIN.fullmatch(each):
            raise LaunchError(f"pull_secrets has {each!r}, but must have letters a to z, digits, - and . alone.")
    if job.ttl is not None and (type(job.ttl) is not int or job.ttl < 0):
        raise LaunchError(f"ttl is {job.ttl!r}, but must be a whole number of seconds, 0 or more.")
    for each in job.tolerations:
        toleration(each)
    places = [volume(each)["path"] for each in job.volumes]
    if twice := [place for place in places if places.count(place) > 1]:
        raise LaunchError(f"volumes: two are at {twice[0]}. Mount each at a different path.")
    _check_shm(job)


def _check_shm(job: JobDescription) -> None:
    if not job.shm_size:
        return
    if not _BYTES.fullmatch(job.shm_size):
        raise LaunchError(f"shm_size is {job.shm_size!r}, but must be a number with a unit: 500Mi, 2Gi.")
    if quantity(job.shm_size) > quantity(job.memory) * job.slots:
        raise LaunchError(
            f"shm_size is {job.shm_size}, but a worker has {job.slots} times {job.memory} of memory, of which "
            "/dev/shm is a part. Take less, or more memory."
        )


def quantity(text: str) -> int:
    """Bytes, as Kubernetes writes them.

    Example:
        >>> quantity("2Ki"), quantity("2k")
        (2048, 2000)
    """
    number = text.rstrip("KMGTik")
    return int(number) * _UNITS[text.removeprefix(number)]


def toleration(text: str) -> dict[str, str]:
    """What a pod tolerates, in Kubernetes' words.

    Raises:
        LaunchError: it is none.

    Example:
        >>> toleration("nvidia.com/gpu:NoSchedule")
        {'key': 'nvidia.com/gpu', 'operator': 'Exists', 'effect': 'NoSchedule'}
    """
    found = _TOLERATION.fullmatch(text)
    if not found:
        raise LaunchError(
            f"tolerations has {text!r}, but must be as key=value:NoSchedule, key:NoSchedule or key; the effect is "
            "NoSchedule, PreferNoSchedule or NoExecute."
        )
    value = {"operator": "Exists"} if found["value"] is None else {"operator": "Equal", "value": found["value"]}
    return {"key": found["key"], **value, **({"effect": found["effect"]} if found["effect"] else {})}


def volume(text: str) -> dict[str, str]:
    """A volume's kind, name and path; ``ro`` is empty where it may be written.

    Raises:
        LaunchError: it is none, or would hide what the image or the job has there.

    Example:
        >>> volume("imagenet:/data:ro")
        {'kind': 'claim', 'name': 'imagenet', 'path': '/data', 'ro': ':ro'}
    """
    found = _VOLUME.fullmatch(text)
    if not found or ".." in found["path"].split("/"):
        raise LaunchError(
            f"volumes has {text!r}, but must be as claim-of-a-volume:/data, configmap/NAME:/etc/more or "
            "secret/NAME:/run/keys; with :ro at the end it is read-only."
        )
    path = found["path"]
    if any(f"{path}/".startswith(f"{taken}/") or taken.startswith(f"{path}/") for taken in _TAKEN):
        raise LaunchError(f"volumes has {text!r}, but the image or the job itself has something at {path}.")
    return {"kind": found["kind"] or "claim", "name": found["name"], "path": path, "ro": found["ro"] or ""}


def seconds(time: str) -> int:
    """A limit as Slurm writes it: minutes, minutes:seconds, hours:minutes:seconds, or days- before hours.

    Raises:
        LaunchError: it is none.

    Example:
        >>> seconds("30"), seconds("30:00"), seconds("1:30:00"), seconds("1-12"), seconds("")
        (1800, 1800, 5400, 129600, 0)
    """
    if not time:
        return 0
    days, dash, rest = time.rpartition("-")
    parts = rest.split(":")
    if not all(_DIGITS.fullmatch(part) for part in [*parts, *([days] if dash else [])]) or len(parts) > 3:
        raise LaunchError(
            f"time is {time!r}, but must be as 30:00 (half an hour), 2:00:00, or 1-12 (a day and a half)."
        )
    numbers = [int(part) for part in parts]
    if dash:
        units: tuple[int, ...] = (_HOUR_S, _MINUTE_S, 1)
    else:
        units = (_HOUR_S, _MINUTE_S, 1) if len(parts) == 3 else (_MINUTE_S, 1)
    found = sum(number * unit for number, unit in zip(numbers, units, strict=False)) + int(days or 0) * _DAY_S
    if not found:
        raise LaunchError(f"time is {time!r}: a job without any time ends before it begins. Leave it out for no limit.")
    return found


def run_words(job: JobDescription, *hosts: str) -> list[str]:
    """The command line that starts the ranks, from where all hosts can be reached.

    Args:
        job: the job.
        hosts: options that name the hosts.

    Example:
        >>> run_words(JobDescription(["python", "train.py"], np=2), "--hostfile", "hosts")
        ['workbench', 'run', '-np', '2', '--hostfile', 'hosts', '--', 'python', 'train.py']
    """
    limits = ["--min-np", str(job.min_np), "--max-np", str(job.max_np)] if job.is_elastic else []
    return ["workbench", "run", "-np", str(job.np), *limits, *hosts, "--", *job.command]


def fixed_size(job: JobDescription, kind: str) -> None:
    """See to it that a job is not elastic.

    Raises:
        LaunchError: it is.
    """
    if job.is_elastic:
        raise LaunchError(
            f"A {kind} has a fixed number of ranks, and this job has {job.min_np} to {job.max_np}. For an elastic job "
            "use mpijob or helm-values."
        )
