"""What NCCL sees of this machine: which GPUs NVLink joins, and which network cards reach into a GPU's memory.

NCCL writes the tree that it makes for a communicator into a file, if NCCL_TOPO_DUMP_FILE names one. In it::

    system ─ cpu ─ pci (busid) ┬─ gpu (dev: nvidia-smi's number, gdr) ─ nvlink (target: a busid, count, tclass)
                               └─ nic ─ net (name, speed in Mb/s, gdr)

``tclass`` is the PCI class of what is at the other end of the links. A switch says nothing of its own other ends, but
NVSwitch joins all. A card that is no PCI device is listed once under each cpu.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import TypeVar
from xml.etree import ElementTree

from workbench.common.text import count
from workbench.diagnostics.finding import Finding, Severity
from workbench.errors import LaunchError
from workbench.launch.start import mpi

_V = TypeVar("_V")
_TIMEOUT_S = 30.0
_ASK = "from workbench.diagnostics.nccl_topology import make_communicators; make_communicators()"
# The beginning of a PCI class → what it is.
_CLASSES = {"0x0680": "NVSwitch", "0x03": "a GPU elsewhere", "0x06": "the CPU"}
_NO_CUPY = "cupy is not installed"
_CURES = {_NO_CUPY: "Install it for the machine's CUDA, the extra cuda12 or cuda13 (see pyproject.toml)."}
_CURE = "Try it with NCCL_DEBUG=INFO: python -c 'from cupy.cuda import nccl; nccl.NcclCommunicator.initAll(1)'"


@dataclass(frozen=True)
class GpuCard:
    """A GPU.

    Args:
        number: nvidia-smi's.
        links: how many NVLinks lead to what: to the number of another GPU, or to ``NVSwitch``, ``the CPU``.
        direct: may a network card reach into its memory?
    """

    number: int
    links: Mapping[int | str, int]
    direct: bool = False


@dataclass(frozen=True)
class Net:
    """A network card's port.

    Args:
        name: as the system calls it.
        gbits: Gb/s.
        direct: does it do GPUDirect RDMA?
    """

    name: str
    gbits: float
    direct: bool


@dataclass(frozen=True)
class GpuTopology:
    """GPUs by number, and network cards."""

    cards: tuple[GpuCard, ...] = ()
    nets: tuple[Net, ...] = ()


def parse(text: str) -> GpuTopology:
    """A topology from the text of NCCL's file.

    Raises:
        LaunchError: it is no such text.

    Example:
        >>> gpu = '<gpu dev="0" gdr="1"><nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu>'
        >>> parse(f'<system><cpu><pci busid="0000:1b:00.0">{gpu}</pci></cpu></system>').cards
        (GpuCard(number=0, links={'NVSwitch': 18}, direct=True),)
    """
    try:
        root = ElementTree.fromstring(text)
        places = [(pci.get("busid", "").lower(), gpu) for pci in root.iter("pci") for gpu in pci.findall("gpu")]
        numbers = {bus: int(gpu.attrib["dev"]) for bus, gpu in places}
        cards = {numbers[bus]: _card(numbers[bus], gpu, numbers) for bus, gpu in places}
        nets = {net.attrib["name"]: _net(net) for net in root.iter("net")}
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        raise LaunchError(f"The topology that NCCL wrote cannot be read: {error!r}.") from error
    return GpuTopology(tuple(cards[number] for number in sorted(cards)), tuple(nets.values()))


def _card(number: int, gpu: ElementTree.Element, numbers: Mapping[str, int]) -> GpuCard:
    links: dict[int | str, int] = {}
    for link in gpu.findall("nvlink"):
        target = _target(link.get("target", "").lower(), link.get("tclass", ""), numbers)
        links[target] = links.get(target, 0) + int(link.attrib["count"])
    return GpuCard(number, links, gpu.get("gdr") == "1")


def _target(bus: str, pci_class: str, numbers: Mapping[str, int]) -> int | str:
    if bus in numbers:
        return numbers[bus]
    return next((what for start, what in _CLASSES.items() if pci_class.startswith(start)), "something unknown")


def _net(net: ElementTree.Element) -> Net:
    return Net(net.attrib["name"], float(net.get("speed", "0")) / 1000, net.get("gdr") == "1")


def describe(topology: GpuTopology) -> list[Finding]:
    """A line about NVLink, and one about GPUDirect RDMA.

    Example:
        >>> gpus = GpuCard(0, {1: 12}), GpuCard(1, {0: 12})
        >>> for finding in describe(GpuTopology(gpus, (Net("mlx5_0", 400.0, False),))):
        ...     print(finding.line())
        ✓ NVLink       GPU 0–1: 12 links
        ✓ GPUDirect    RDMA: mlx5_0 (400 Gb/s) no
    """
    return [
        Finding(Severity.OK, "NVLink", _nvlink(topology.cards)),
        Finding(Severity.OK, "GPUDirect", f"RDMA: {_rdma(topology)}"),
    ]


def _nvlink(cards: Sequence[GpuCard]) -> str:
    if not any(card.links for card in cards):
        return "none; the GPUs communicate over PCIe" if len(cards) > 1 else "none"
    pairs = {f"{one.number}–{two.number}": _between(one, two) for one, two in combinations(cards, 2)}
    parts = [f"GPU {', '.join(same)}: {count(links, 'link')}" for links, same in _same(pairs) if links]
    others = {str(card.number): _elsewhere(card) for card in cards}
    parts += [f"GPU {', '.join(same)}: {text}" for text, same in _same(others) if text]
    return "; ".join(parts)


def _between(one: GpuCard, two: GpuCard) -> int:
    return max(one.links.get(two.number, 0), two.links.get(one.number, 0))


def _elsewhere(card: GpuCard) -> str:
    """What joins it to others than the GPUs of this list."""
    if not card.links:
        return "none"
    return ", ".join(f"{count(links, 'link')} to {what}" for what, links in card.links.items() if isinstance(what, str))


def _rdma(topology: GpuTopology) -> str:
    if not topology.nets:
        return "no network card"
    without = ", ".join(str(card.number) for card in topology.cards if not card.direct)
    yes = f"yes, but not to GPU {without}" if without else "yes"
    said = {net.name: f"({net.gbits:g} Gb/s) {yes if net.direct else 'no'}" for net in topology.nets}
    return "; ".join(f"{', '.join(names)} {text}" for text, names in _same(said))


def _same(values: Mapping[str, _V]) -> Iterable[tuple[_V, list[str]]]:
    """Each value with the names that have it, in order."""
    found: dict[_V, list[str]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return found.items()


def look(machine: Sequence[tuple[str, str]]) -> list[Finding]:
    """The doctor's lines; none where there is no GPU.

    Args:
        machine: (uuid, name) of each GPU that the driver knows.

    Example:
        >>> look([])
        []
    """
    if not machine:
        return []
    topology, problem = probe(machine)
    if topology is None:
        return [Finding(Severity.WARNING, "NVLink", f"not known: {problem}", _CURES.get(problem, _CURE))]
    return describe(topology)


def probe(machine: Sequence[tuple[str, str]]) -> tuple[GpuTopology | None, str]:
    """Have another process make a communicator over all GPUs that it sees, and read what NCCL wrote down.

    Args:
        machine: (uuid, name) of each GPU that the driver knows.

    Returns:
        (the topology, ""), or (None, why there is none).

    Example:
        >>> probe([])
        (None, 'there is no GPU')
    """
    if not machine:
        return None, "there is no GPU"
    if find_spec("cupy") is None:
        return None, _NO_CUPY
    with tempfile.TemporaryDirectory(prefix="workbench-topology-") as folder:
        path = Path(folder, "topology.xml")
        if problem := _begin(path):
            return None, problem
        try:
            return parse(path.read_text(encoding="utf-8", errors="replace")), ""
        except LaunchError as error:
            return None, str(error)


def _begin(path: Path) -> str:
    """Have the file written; "" or what went wrong."""
    ask, env = [sys.executable, "-c", _ASK], mpi.environment(1) | {"NCCL_TOPO_DUMP_FILE": str(path)}
    try:
        done = subprocess.run(
            ask, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL, env=env
        )
    except OSError as error:
        return str(error)
    except subprocess.TimeoutExpired:
        return f"NCCL had not begun after {_TIMEOUT_S:g} s"
    if done.returncode or not path.exists():
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}, and no file"]
        return f"NCCL did not begin: {last[0]}"
    return ""


def make_communicators() -> None:
    """What that process runs. It ends without taking them down, which is more than is needed and may hang."""
    from cupy.cuda import nccl, runtime

    nccl.NcclCommunicator.initAll(list(range(runtime.getDeviceCount())))
    os._exit(0)
