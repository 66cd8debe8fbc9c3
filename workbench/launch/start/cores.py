"""The cores of this machine: which ones may be used, for how much of their time, and how they lie together."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from workbench import machine
from workbench.common.text import runs

usable = machine.cores
_SYSTEM = Path("/sys/devices/system")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def paid_for() -> int:
    """How many of the usable cores this process may keep busy at a time: the cgroup's quota may be less than all."""
    return max(1, min(len(usable()), math.floor(min(quota(), 1e6))))


def quota(own: Path = _OWN_CGROUP, root: Path = _CGROUPS) -> float:
    """How many cores' time the cgroup of this process gets: the least of its own limit and those above it.

    Args:
        own: the file that names this process's cgroups.
        root: where they are mounted, version 1 or 2. A container may see its own cgroup there under no other name.
    """
    found = [math.inf]
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for mount in _mounts(root, controllers):
                parts = [part for part in path.split("/") if part not in ("", "..")]
                found += (_limit(mount.joinpath(*parts[:depth])) for depth in range(len(parts) + 1))
    return min(found)


def _mounts(root: Path, controllers: str) -> list[Path]:
    if not controllers:
        return [root, root / "unified"]
    return [root / controllers, root / "cpu"] if "cpu" in controllers.split(",") else []


def _limit(folder: Path) -> float:
    """The limit of one cgroup, infinite for none."""
    with contextlib.suppress(OSError, ValueError):
        allowed, period = (folder / "cpu.max").read_text().split()
        return math.inf if allowed == "max" else int(allowed) / int(period)
    with contextlib.suppress(OSError, ValueError):
        allowed, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return math.inf if int(allowed) < 0 else int(allowed) / int(period)
    return math.inf


def nodes(these: Sequence[int], system: Path = _SYSTEM) -> list[list[int]]:
    """Cores by NUMA node, in the order of the nodes; hardware threads of one core stand side by side.

    Args:
        these: the cores; nodes without any of them are left out. Without NUMA all are one node.
        system: where the kernel describes them.
    """
    rest, found = set(these), []
    for _, listed in sorted(_listed(system)):
        if here := rest & set(listed):
            found.append(here)
            rest -= here
    return [sorted(each, key=lambda core: (_first_thread(core, system), core)) for each in [*found, rest] if each]


def _listed(system: Path) -> Iterator[tuple[int, list[int]]]:
    for folder in system.glob("node/node[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            yield int(folder.name.removeprefix("node")), parse((folder / "cpulist").read_text())


def _first_thread(core: int, system: Path) -> int:
    """The first of the hardware threads that share a core with this one."""
    with contextlib.suppress(OSError, ValueError):
        return min(parse((system / f"cpu/cpu{core}/topology/thread_siblings_list").read_text()))
    return core


def parse(text: str) -> list[int]:
    """Numbers of cores, as the kernel writes them.

    Example:
        >>> parse("0-2,8"), parse("")
        ([0, 1, 2, 8], [])
    """
    ends = [word.partition("-") for word in text.strip().split(",") if word]
    return [core for first, _, last in ends for core in range(int(first), int(last or first) + 1)]


def spelled(these: Iterable[int]) -> str:
    """Numbers of cores, as the kernel writes them.

    Example:
        >>> spelled([8, 0, 1, 2])
        '0-2,8'
    """
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs(these))
