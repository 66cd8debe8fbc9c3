"""Where ``cluster.up`` starts its engines: on this machine, on hosts that are named, or on hosts of Slurm's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import config
from workbench.cluster import reservation
from workbench.cluster.elastic.engines import ElasticHere
from workbench.cluster.engines_here import Here, Log
from workbench.cluster.engines_on_hosts import OnHosts
from workbench.cluster.reservation import Allocation, Reservation
from workbench.errors import LaunchError
from workbench.launch.hosts.agent_connections import Target
from workbench.launch.hosts.host_plan import HostPlan, find_hosts
from workbench.launch.hosts.remote_shell import LocalShell
from workbench.launch.site import Site
from workbench.launch.start import mpi
from workbench.launch.start.gpus import GpuChoice, pin

if TYPE_CHECKING:
    from workbench.ray.engines import RayPlaces

AnyPlace = Here | OnHosts | ElasticHere
PODS = "/etc/workbench/job/discover_hosts.sh"
"""Of our chart, see deploy/kubernetes/workbench."""

# The hosts that Slurm or Ray has given to this kernel, at most once: they outlive the engines.
_held: list[Allocation] = []


@dataclass(frozen=True)
class ClusterSpec:
    """What a notebook asks for: the arguments of ``cluster.up``, see there; and in full those that name the hosts.

    Args:
        slurm: ``nodes``, ``tasks_per_node``, ``time``, ``gpus_per_node``, ``gpus_per_task``, ``cpus_per_task``;
            ``partition``, ``account``, ``reservation``, which ``workbench.toml`` may say instead; ``name``;
            ``options``, a list of sbatch's; and ``queue_timeout_s``: a request that waits for longer is cancelled, by
            default after 600 s. While it waits, place and reason are shown; Ctrl-C cancels it. In a notebook that runs
            in a Slurm job itself, that job's hosts are taken.
        ray: ``cpus`` and ``gpus`` of each engine, ``strategy`` and ``timeout_s``, see
            :class:`workbench.ray.engines.RayRequest`. The kernel is connected to the cluster, by ``ray.init()``.
        k8s: ``script``, which prints the pods that are ready, one ``host:slots`` a line; the chart's by default. The
            kernel runs in a pod that reaches them by ssh, as the chart's JupyterLab does.
    """

    n: int | None = None
    hosts: Sequence[str] | str | None = None
    slurm: Mapping[str, Any] | None = None
    ray: Mapping[str, Any] | None = None
    k8s: Mapping[str, Any] | None = None
    gpus: GpuChoice = None
    mpiexec: str = ""
    min_np: int | None = None


def find(spec: ClusterSpec, site: Site, log: Log, give_back: Callable[[], None]) -> AnyPlace:
    """The place that a notebook and the site file name; Slurm is asked for hosts, if need be.

    Args:
        spec: the notebook's.
        site: of its folder.
        log: gets what happens meanwhile.
        give_back: ends what runs on hosts that Slurm or Ray has given, and releases them.

    Raises:
        LaunchError, ValueError: see ``cluster.up``.
    """
    words = [name for name in ("hosts", "slurm", "ray", "k8s") if getattr(spec, name) not in (None, [], "")]
    if len(words) > 1:
        raise ValueError(f"{' and '.join(words)} exclude each other: each gives the hosts.")
    if spec.n is not None and spec.n < 1:
        raise ValueError(f"n={spec.n}: a cluster has at least 1 rank.")
    if spec.slurm is not None:
        held = _reserved(spec.slurm, site, log, give_back)
        return _on(held.targets, spec, site, log, held)
    if spec.ray is not None:
        given = _in_ray(spec.n or site.engines, spec.ray, log, give_back)
        return _on(given.targets, replace(spec, n=given.asked.n), site, log, given, folder=".")
    if spec.k8s is not None:
        return _on(_pods(spec.k8s), spec, site, log)
    named = [spec.hosts] if isinstance(spec.hosts, str) else spec.hosts
    targets = _targets(list(site.hosts if named is None else named))
    if all(isinstance(target.shell, LocalShell) for target in targets):
        n = _allowed(spec.n or sum(target.slots for target in targets) or site.engines, site, log)
        if spec.min_np is not None:
            return ElasticHere(n, _least(spec.min_np, n), pin(n, spec.gpus))
        return Here(n, tuple(mpi.command(n, spec.mpiexec, alone=True)), pin(n, spec.gpus))
    return _on(targets, spec, site, log)


def _pods(asked: Mapping[str, Any]) -> list[Target]:
    """Those that are ready.

    Raises:
        LaunchError: a word is unknown, or this is no pod of the chart's.
    """
    if unknown := [name for name in asked if name != "script"]:
        raise LaunchError(f"k8s: {unknown[0]!r} is not known. There are: script.")
    script = str(asked.get("script", PODS))
    if not asked and not Path(script).exists():
        raise LaunchError(
            f"k8s: this kernel runs in no pod of the chart deploy/kubernetes/workbench, for {script} is not there. "
            "cluster.up(k8s=…) starts no pods: open the notebook in the chart's JupyterLab. In pods of another kind, "
            "name the program that prints the hosts: k8s=dict(script=…)."
        )
    return find_hosts("", "", None, script=script)


def _in_ray(n: int, words: Mapping[str, Any], log: Log, give_back: Callable[[], None]) -> RayPlaces:
    """The places that are held, if they are what is asked for; else new ones.

    Raises:
        LaunchError: MPI is insisted on, or see :class:`workbench.ray.engines.RayPlaces`.
    """
    if config.settings().backend == "mpi":
        raise LaunchError("WORKBENCH_BACKEND=mpi, but MPI's launcher starts nothing in Ray's places. Unset it.")
    from workbench.ray.engines import RayPlaces, request  # an extra

    asked = request(n, words)
    for old in list(_held):
        if isinstance(old, RayPlaces) and old.asked == asked and old.intact():
            return old
        give_back()
    found = RayPlaces(asked, log)
    _held.append(found)
    return found


def _least(min_np: int, n: int) -> int:
    if not 1 <= min_np <= n:
        raise ValueError(f"min_np={min_np}: of {n} engines at least 1 and at most {n} can be needed.")
    return min_np


def _targets(listed: Sequence[str]) -> list[Target]:
    """Within a Slurm job its own hosts are reached by srun: ssh may be closed there."""
    found = find_hosts(",".join(listed), "", None) if listed else []
    if not config.batch_job() or all(isinstance(target.shell, LocalShell) for target in found):
        return found
    around = reservation.around({})
    by_srun = {target.name: target.shell for target in around.targets} if around else {}
    return [replace(each, shell=by_srun.get(each.name, each.shell)) for each in found]


def _on(
    targets: Sequence[Target], spec: ClusterSpec, site: Site, log: Log, held: Allocation | None = None, folder: str = ""
) -> OnHosts:
    n = _allowed(spec.n or sum(target.slots for target in targets), site, log)
    if spec.min_np is not None:
        raise ValueError("min_np: engines that may die are on this machine only. On several hosts: workbench run.")
    networks = [site.interface] if site.interface else []
    gpus: GpuChoice = "none" if spec.gpus is not None and not spec.gpus else spec.gpus
    plan = HostPlan(targets, networks, config.ports(), gpus, folder)
    plan.ranks(n)  # are there so many slots?
    return OnHosts(n, plan, held, site.modules)


def _allowed(n: int, site: Site, log: Log) -> int:
    if 0 < site.most_engines < n:
        log(f"{site.most_engines} engines instead of {n}: {site.path} allows no more")
        return site.most_engines
    return n


def _reserved(slurm: Mapping[str, Any], site: Site, log: Log, give_back: Callable[[], None]) -> Reservation:
    """The job around this process; else the hosts that are held, if they are what is asked for; else new ones."""
    asked = reservation.request(slurm, site)
    mine = [each for each in _held if isinstance(each, Reservation)]
    asked = (mine[0].asked or asked) if mine and not slurm else asked
    if around := reservation.around(slurm):
        return around
    for old in mine:
        if over := old.ended():
            log(over)
        elif not slurm or old.asked == asked:
            return old
        else:
            log(f"Slurm job {old.number} is given back, for another one is asked for")
        give_back()
    found = reservation.reserve(asked, log)
    _held.append(found)
    return found


def fits(running: AnyPlace, place: AnyPlace, gpus: GpuChoice) -> bool:
    """Is a cluster at the one place what is asked for by the other?"""
    if isinstance(running, Here) and isinstance(place, Here):
        return running.n == place.n and (gpus is None or running.pins == place.pins)
    return running == place


def time_left(place: AnyPlace) -> list[str]:
    """A line about the hosts' time, if it is limited."""
    return [place.reservation.line()] if isinstance(place, OnHosts) and place.reservation else []


def held() -> list[Allocation]:
    """The hosts that Slurm or Ray has given."""
    return list(_held)


def release() -> None:
    """Give them back.

    Raises:
        LaunchError: Slurm does not answer.
    """
    while _held:
        _held[-1].release()
        _held.pop()
