"""Ranks that are Ray's processes: where each is, and what it must know to meet the others in ``init()``.

Rank 0 listens at its node's own address, as Ray knows it, or at the loopback address if all ranks are on one machine.
The others find it there, and only who proves to know the job's secret is let in. The secret is drawn on the driver and
goes to the ranks in Ray's own messages, which are as private as Ray is told to be (RAY_AUTH_MODE, RAY_USE_TLS).
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from workbench import config
from workbench._version import __version__
from workbench.common.ports import listen
from workbench.errors import LaunchError
from workbench.job.context import place
from workbench.launch.hosts.ranks_on_hosts import host_environment
from workbench.launch.hosts.rehearsal import LOOPBACK, Endpoint
from workbench.launch.start import mpi
from workbench.launch.start.starters import launcher_variables
from workbench.machine import machine
from workbench.ray.needed import ray


@dataclass(frozen=True)
class Location:
    """Where a process is.

    Args:
        machine: equal for processes that share memory.
        host: the machine's name.
        node: Ray's id of its node; a machine may have several.
        interface, address: by which the other nodes reach it.
        pid: its process.
        gpus: those that Ray has given it.
        version: of this package.
    """

    machine: str
    host: str
    node: str
    interface: str
    address: str
    pid: int
    gpus: tuple[str, ...] = ()
    version: str = __version__


def here(nics: Sequence[str] = ()) -> Location:
    """This process's place.

    Args:
        nics: names of interfaces, of which the first that is here is to be used; none: the one that Ray uses.

    Raises:
        LaunchError: none of them is here.
    """
    address = str(ray.util.get_node_ip_address())
    found = {name: [each.address for each in all_of_it] for name, all_of_it in psutil.net_if_addrs().items()}
    interface = next((name for name, addresses in found.items() if address in addresses), "")
    if nics:
        interface = next((name for name in nics if name in found), "")
        if not interface:
            raise LaunchError(f"{socket.gethostname()} has no interface {' or '.join(nics)}, but {', '.join(found)}.")
        address = found[interface][0]
    gpus = tuple(str(gpu) for gpu in ray.get_gpu_ids())
    node = str(ray.get_runtime_context().get_node_id())
    return Location(machine(), socket.gethostname(), node, interface, address, os.getpid(), gpus)


def free_ports(address: str, asked: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Two ports that are free at an address of this host.

    Args:
        address: where rank 0 listens.
        asked: the first and the last that may be used; (0, 0): as ``WORKBENCH_PORTS`` says on this host.

    Raises:
        LaunchError: there are none, or the address is another host's.
    """
    ports = asked if asked[1] else config.ports()
    try:
        with listen(address, ports) as first, listen(address, ports) as second:
            return first.getsockname()[1], second.getsockname()[1]
    except OSError as error:
        raise LaunchError(f"{socket.gethostname()} cannot be rank 0's host: {error}.") from None


def meeting_point(places: Sequence[Location]) -> str:
    """The address at which rank 0 listens.

    Example:
        >>> meeting_point([Location("a", "a", "1", "eth0", "10.0.0.1", pid) for pid in (7, 8)])
        '127.0.0.1'
    """
    return _endpoint(places[0], (0, 0), alone=len({each.machine for each in places}) == 1).address


def variables(places: Sequence[Location], ports: tuple[int, int]) -> list[dict[str, str]]:
    """By rank, what it must know.

    Args:
        places: by rank.
        ports: free ones at the :func:`meeting_point`.

    Raises:
        LaunchError: the nodes have different versions of this package.

    Example:
        >>> places = [Location(name, name, name, "eth0", f"10.0.0.{i}", 7) for i, name in enumerate("aab")]
        >>> [(env["RANK"], env["LOCAL_RANK"], env["MASTER_ADDR"]) for env in variables(places, (4000, 4001))]
        [('0', '0', '10.0.0.0'), ('1', '1', '10.0.0.0'), ('2', '0', '10.0.0.0')]
    """
    _check_versions(places)
    machines, secret = [each.machine for each in places], secrets.token_hex(32)
    alone = len(set(machines)) == 1
    first = _endpoint(places[0], ports, alone)
    found = []
    for rank, each in enumerate(places):
        world = place(machines, rank)
        ours = (world.rank, world.size, world.local_rank, world.local_size, world.cross_rank, world.cross_size)
        env = launcher_variables(*ours) | host_environment(mpi.LOOPBACK, _endpoint(each, (0, 0), alone), first)
        env["WORKBENCH_SECRET"] = secret
        found.append(env | _gpus(places, each) | {"HOROVOD_HOSTNAME": each.node})
    return found


def _endpoint(one: Location, ports: tuple[int, int], alone: bool) -> Endpoint:
    interface, address = LOOPBACK if alone else (one.interface, one.address)
    return Endpoint(one.host, interface, address, ports)


def _gpus(places: Sequence[Location], mine: Location) -> dict[str, str]:
    """All GPUs that the machine's ranks have, in the order of their ranks, so ``local_rank()`` is the number of one."""
    gpus = [gpu for each in places if each.machine == mine.machine for gpu in each.gpus]
    return {"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(gpus))} if gpus else {}


def _check_versions(places: Sequence[Location]) -> None:
    other = [each for each in places if each.version != __version__]
    if other:
        raise LaunchError(
            f"The workbench is {__version__} on the driver, and {other[0].version} on {other[0].host} "
            f"({other[0].address}). Install one version everywhere."
        )
