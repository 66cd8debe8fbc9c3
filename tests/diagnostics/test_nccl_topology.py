"""What NCCL sees of a machine: from the text of its file, and from a process that has NCCL write it."""

from __future__ import annotations

import os
from importlib import util
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from workbench.diagnostics import nccl_topology
from workbench.diagnostics.finding import Severity
from workbench.diagnostics.nccl_topology import GpuCard, Net, describe, look, parse, probe
from workbench.errors import LaunchError

ONE = [("u0", "H200")]


def gpu(number: int, bus: str, links: str = "", gdr: int = 1) -> str:
    """A GPU at its place, as NCCL writes it."""
    inner = f'<gpu dev="{number}" sm="90" rank="{number}" gdr="{gdr}">{links}</gpu>'
    return f'<pci busid="{bus}" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">{inner}</pci>'


def link(target: str, count: int, pci_class: str) -> str:
    """NVLinks to one target."""
    return f'<nvlink target="{target}" count="{count}" tclass="{pci_class}"/>'


def net(name: str, mbits: int, gdr: int) -> str:
    """A network card."""
    attributes = f'name="{name}" dev="0" speed="{mbits}" port="1" latency="0.000000" maxconn="131072" gdr="{gdr}"'
    return f"<nic><net {attributes}/></nic>"


def cpu(number: int, *inner: str) -> str:
    """A NUMA node."""
    return f'<cpu numaid="{number}" affinity="ffff" arch="x86_64" vendor="GenuineIntel">{"".join(inner)}</cpu>'


def system(*cpus: str) -> str:
    """The whole file."""
    return f'<system version="1">\n{"".join(cpus)}\n</system>\n'


def lines(text: str) -> list[str]:
    """What the doctor prints about it, without marks and columns."""
    findings = describe(parse(text))
    assert [finding.severity for finding in findings] == [Severity.OK] * 2
    return [f"{finding.what}: {finding.text}" for finding in findings]


BRIDGED = system(
    cpu(
        0,
        gpu(0, "0000:1b:00.0", link("0000:1c:00.0", 12, "0x030200"), gdr=0),
        gpu(1, "0000:1C:00.0", link("0000:1b:00.0", 12, "0x030200"), gdr=0),
        net("eth0", 10_000, 0),
    )
)
SWITCHES = "".join(link(f"0000:0{i}:00.0", count, "0x068000") for i, count in enumerate((5, 4, 5, 4), 5))
SWITCHED = system(
    cpu(0, *(gpu(i, f"0000:1{i}:00.0", SWITCHES) + net(f"mlx5_{i}", 400_000, 1) for i in range(4))),
    cpu(1, *(gpu(i, f"0000:a{i}:00.0", SWITCHES) + net(f"mlx5_{i}", 400_000, 1) for i in range(4, 8))),
)


def test_two_gpus_side_by_side() -> None:
    """Links to another GPU's place become links to its number, in either case of letters; no RDMA over a plain card."""
    found = parse(BRIDGED)
    assert found.cards == (GpuCard(0, {1: 12}), GpuCard(1, {0: 12}))
    assert found.nets == (Net("eth0", 10.0, False),)
    assert lines(BRIDGED) == ["NVLink: GPU 0–1: 12 links", "GPUDirect: RDMA: eth0 (10 Gb/s) no"]


def test_eight_gpus_behind_switches() -> None:
    """Links to several NVSwitches are counted together, and what is alike is said once."""
    found = parse(SWITCHED)
    assert [card.number for card in found.cards] == list(range(8))
    assert all(card.links == {"NVSwitch": 18} for card in found.cards)
    cards = ", ".join(f"mlx5_{i}" for i in range(8))
    assert lines(SWITCHED) == [
        "NVLink: GPU 0, 1, 2, 3, 4, 5, 6, 7: 18 links to NVSwitch",
        f"GPUDirect: RDMA: {cards} (400 Gb/s) yes",
    ]


def test_gpus_on_pcie_alone() -> None:
    """No NVLink is said in so many words; a card that stands under each cpu is named once, and no card is none."""
    eth0 = net("eth0", 25_000, 0)
    two = system(cpu(0, gpu(0, "0000:01:00.0", gdr=0), eth0), cpu(1, gpu(1, "0000:81:00.0", gdr=0), eth0))
    assert lines(two) == ["NVLink: none; the GPUs communicate over PCIe", "GPUDirect: RDMA: eth0 (25 Gb/s) no"]
    assert lines(system(cpu(0, gpu(0, "0000:01:00.0")))) == ["NVLink: none", "GPUDirect: RDMA: no network card"]


def test_infiniband_beside_ethernet() -> None:
    """Each network card has its speed and its answer, and a GPU that it does not reach is named."""
    nets = net("mlx5_0", 200_000, 1) + net("mlx5_1", 200_000, 1) + net("eth0", 2_500, 0)
    text = system(cpu(0, gpu(0, "0000:01:00.0"), gpu(1, "0000:02:00.0"), nets))
    assert lines(text)[1] == "GPUDirect: RDMA: mlx5_0, mlx5_1 (200 Gb/s) yes; eth0 (2.5 Gb/s) no"
    text = system(cpu(0, gpu(0, "0000:01:00.0"), gpu(1, "0000:02:00.0", gdr=0), net("mlx5_0", 200_000, 1)))
    assert lines(text)[1] == "GPUDirect: RDMA: mlx5_0 (200 Gb/s) yes, but not to GPU 1"


def test_what_else_can_be_at_the_other_end() -> None:
    """A CPU, a GPU that is not in the communicator, a bus that a virtual machine hides, an unknown class, nothing."""
    odd = [
        link("0004:00:00.0", 3, "0x060400"),
        link("0000:99:00.0", 4, "0x030200"),
        link("fffffff:ff:ff.0", 18, "0x068000"),
        link("0000:98:00.0", 1, ""),
    ]
    text = system(cpu(0, *(gpu(i, f"0000:0{i}:00.0", each) for i, each in enumerate([*odd, ""]))))
    assert lines(text)[0] == (
        "NVLink: GPU 0: 3 links to the CPU; GPU 1: 4 links to a GPU elsewhere; GPU 2: 18 links to NVSwitch; "
        "GPU 3: 1 link to something unknown; GPU 4: none"
    )


def test_a_ring_of_gpus_names_each_pair_once() -> None:
    """Four GPUs in a ring, two of its sides twice as wide: pairs by their width, and the diagonals not at all."""
    bus = [f"0000:0{i}:00.0" for i in range(4)]
    width = {(a, b): 1 + a % 2 for a, b in pairwise([0, 1, 2, 3])} | {(0, 3): 2}
    width |= {(b, a): n for (a, b), n in width.items()}
    around = [[link(bus[b], n, "0x030200") for (a, b), n in width.items() if a == i] for i in range(4)]
    text = system(cpu(0, *(gpu(i, bus[i], "".join(around[i])) for i in range(4))))
    assert lines(text)[0] == "NVLink: GPU 0–1, 2–3: 1 link; GPU 0–3, 1–2: 2 links"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<system><cpu>",
        system(cpu(0, '<pci busid="0"><gpu sm="90"/></pci>')),
        system(net("a", 1, 1)).replace("1", "x"),
    ],
    ids=["empty", "cut short", "no number", "no numbers"],
)
def test_another_text_is_refused(text: str) -> None:
    """A file that was cut short, or that a later NCCL writes in another way, is an error that says so."""
    with pytest.raises(LaunchError, match="cannot be read"):
        parse(text)


# --- a process that has it written --------------------------------------------------------------------

COMMUNICATOR = """
import os
class NcclCommunicator:
    @staticmethod
    def initAll(devices):
        {then}
"""


@pytest.fixture
def cupy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A cupy whose communicator does what the test says; it sees two GPUs."""
    package = tmp_path / "cupy"
    (package / "cuda").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "cuda" / "__init__.py").touch()
    (package / "cuda" / "runtime.py").write_text("def getDeviceCount(): return 2")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return lambda then: (package / "cuda" / "nccl.py").write_text(COMMUNICATOR.format(then=then))


def test_the_file_is_read(cupy: Any) -> None:
    """A communicator over all GPUs is made with NCCL_TOPO_DUMP_FILE set, and what it wrote is what comes back."""
    cupy(f"assert devices == [0, 1]; open(os.environ['NCCL_TOPO_DUMP_FILE'], 'w').write({BRIDGED!r})")
    assert probe(ONE) == (parse(BRIDGED), "")
    assert [finding.what for finding in look(ONE)] == ["NVLink", "GPUDirect"]


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("raise RuntimeError('NCCL_ERROR_SYSTEM_ERROR')", "NCCL did not begin: RuntimeError: NCCL_ERROR_SYSTEM_ERROR"),
        ("os._exit(9)", "NCCL did not begin: exit code 9"),
        ("pass", "NCCL did not begin: exit code 0, and no file"),
        ("open(os.environ['NCCL_TOPO_DUMP_FILE'], 'w').write('<system>')", "cannot be read"),
        ("import time; time.sleep(60)", "had not begun after 2 s"),
    ],
    ids=["raises", "dies", "writes nothing", "writes half", "hangs"],
)
def test_a_nccl_that_fails_is_one_warning(cupy: Any, monkeypatch: pytest.MonkeyPatch, then: str, said: str) -> None:
    """The doctor goes on, with its last words, and a command to try; one that hangs is ended."""
    monkeypatch.setattr(nccl_topology, "_TIMEOUT_S", 2.0)
    cupy(then)
    (finding,) = look(ONE)
    assert (finding.severity, finding.what) == (Severity.WARNING, "NVLink")
    assert said in finding.text
    assert "NCCL_DEBUG=INFO" in finding.cure


def test_without_cupy_or_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU: not a line. No cupy: a line that says which extra to install."""
    monkeypatch.setattr(nccl_topology, "find_spec", lambda name: None if name == "cupy" else util.find_spec(name))
    assert (look([]), probe([])) == ([], (None, "there is no GPU"))
    (finding,) = look(ONE)
    assert finding.text == "not known: cupy is not installed"
    assert "cuda12" in finding.cure
