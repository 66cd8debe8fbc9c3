"""Where ``cluster.up`` starts its engines: on this machine, on hosts that are named, or on hosts of Slurm's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench import config
from workbench.cluster import reservation
from workbench.cluster.engines_here import Here
from workbench.cluster.engines_on_hosts import OnHosts
from workbench.cluster.reservation import Reservation
from workbench.launch.hosts.connections import Target
from workbench.launch.hosts.ranks_on_hosts import Plan, find_hosts
from workbench.launch.hosts.remote_shell import Here as NoShell
from workbench.launch.site import Site
from workbench.launch.start import mpi
from workbench.launch.start.gpus import Asked, pin

# The hosts that Slurm has reserved for this kernel, at most once: they outlive the engines.
_held: list[Reservation] = []


def find(
    site: Site,
    n: int | None,
    hosts: Sequence[str] | str | None,
    slurm: Mapping[str, Any] | None,
    gpus: Asked,
    mpiexec: str,
    say: Callable[[str], None],
) -> Here | OnHosts:
    """The place that the arguments of ``cluster.up`` and the site file name; Slurm is asked for hosts, if need be.

    Raises:
        LaunchError, ValueError: see there.
    """
    if hosts and slurm is not None:
        raise ValueError("hosts and slurm exclude each other: Slurm gives the hosts.")
    if n is not None and n < 1:
        raise ValueError(f"n={n}: a cluster has at least 1 rank.")
    if slurm is not None:
        held = _reserved(slurm, site, say)
        return _on(held.targets, n, site, gpus, say, held)
    listed = list(site.hosts) if hosts is None else [hosts] if isinstance(hosts, str) else list(hosts)
    targets = _named(listed, n if hosts is not None else None)
    if targets and not all(isinstance(target.shell, NoShell) for target in targets):
        return _on(targets, n, site, gpus, say, None)
    n = _allowed(n or sum(target.slots for target in targets) or site.engines, site, say)
    pins = pin(n, gpus)
    return Here(n, tuple(mpi.command(n, mpiexec, alone=True)), pins)


def _named(listed: Sequence[str], n: int | None) -> list[Target]:
    """Within a Slurm job its own hosts are reached by srun: ssh may be closed there."""
    if not listed:
        return []
    targets = find_hosts(",".join(listed), "", n)
    around = reservation.around({}) if config.batch_job() else None
    by_srun = {target.name: target.shell for target in around.targets} if around else {}
    return [Target(each.name, each.slots, by_srun.get(each.name, each.shell)) for each in targets]


def _on(
    targets: Sequence[Target],
    n: int | None,
    site: Site,
    gpus: Asked,
    say: Callable[[str], None],
    held: Reservation | None,
) -> OnHosts:
    n = _allowed(n or sum(target.slots for target in targets), site, say)
    networks = [site.interface] if site.interface else []
    asked: Asked = "none" if gpus is not None and not gpus else gpus
    plan = Plan(targets, networks, config.ports(), asked)
    plan.ranks(n)
    return OnHosts(n, plan, held, site.modules)


def _allowed(n: int, site: Site, say: Callable[[str], None]) -> int:
    if 0 < site.most_engines < n:
        say(f"{site.most_engines} engines instead of {n}: {site.path} allows no more")
        return site.most_engines
    return n


def _reserved(slurm: Mapping[str, Any], site: Site, say: Callable[[str], None]) -> Reservation:
    """The job around this process; else the hosts that are held, if they are what is asked for; else new ones."""
    asked = reservation.request(slurm, site)
    asked = (_held[0].asked or asked) if _held and not slurm else asked
    if around := reservation.around(slurm):
        return around
    for old in list(_held):
        if over := old.ended():
            say(over)
        elif not slurm or old.asked == asked:
            return old
        else:
            say(f"Slurm job {old.number} is given back, for another one is asked for")
        _held.remove(old)
        old.release()
    found = reservation.reserve(asked, say)
    _held.append(found)
    return found


def fits(running: Here | OnHosts, place: Here | OnHosts, gpus: Asked) -> bool:
    """Is a cluster at the one place what is asked for by the other?"""
    if isinstance(running, Here) and isinstance(place, Here):
        return running.n == place.n and (gpus is None or running.pins == place.pins)
    return running == place


def time_left(place: Here | OnHosts) -> list[str]:
    """A line about the hosts' time, if it is limited."""
    return [place.reservation.line()] if isinstance(place, OnHosts) and place.reservation else []


def held() -> list[Reservation]:
    """The hosts that Slurm has reserved."""
    return list(_held)


def release() -> None:
    """Give them back.

    Raises:
        LaunchError: Slurm does not answer.
    """
    while _held:
        _held[-1].release()
        _held.pop()


__all__ = ["find", "fits", "held", "release", "time_left"]
