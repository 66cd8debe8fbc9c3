"""The cores of a machine, as the kernel describes them: quotas and NUMA nodes, from files made for the test."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.launch.start import cores


def written(root: Path, files: dict[str, str]) -> Path:
    """The folder, with these files in it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1 = {"cpu.cfs_quota_us": "150000\n", "cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("own", "files", "right"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2.5),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "400000 100000\n"}, 2.0),
        ("0::/a/b\n", {"a/cpu.max": "max 100000\n", "a/b/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/not/in/the/container\n", {"cpu.max": "300000 100000\n"}, 3.0),
        ("0::/../../elsewhere\n", {"cpu.max": "300000 100000\n"}, 3.0),
        ("4:cpu,cpuacct:/a\n1:name=systemd:/\n", {f"cpu,cpuacct/a/{name}": text for name, text in V1.items()}, 1.5),
        ("4:cpuacct,cpu:/a\n0::/\n", {f"cpu/{name}": text for name, text in V1.items()}, 1.5),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ("3:cpuset:/a\n", {f"cpuset/a/{name}": text for name, text in V1.items()}, math.inf),
        ("0::/\n", {"cpu.max": "nonsense"}, math.inf),
        ("", {}, math.inf),
    ],
)
def test_the_least_quota_on_the_way_up_counts(tmp_path: Path, own: str, files: dict[str, str], right: float) -> None:
    """In version 1 and 2 of cgroups, in a container that sees its own at the root, and without any limit."""
    mine = tmp_path / "cgroup"
    mine.write_text(own)
    assert cores.quota(mine, written(tmp_path / "root", files)) == right


def test_without_cgroups_there_is_no_quota(tmp_path: Path) -> None:
    """Where the kernel has none, the files are missing."""
    assert cores.quota(tmp_path / "none", tmp_path) == math.inf


def test_a_quota_lowers_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 cores a quota of 2.5 pays for two; of less than one core it is one, for a rank has a thread at least."""
    monkeypatch.setattr(cores, "usable", lambda: list(range(8)))
    for quota, right in ((math.inf, 8), (2.5, 2), (0.5, 1), (100.0, 8)):
        monkeypatch.setattr(cores, "quota", lambda quota=quota: quota)
        assert cores.paid_for() == right


def test_cores_by_node_with_hardware_threads_side_by_side(tmp_path: Path) -> None:
    """Nodes come by number, without cores that may not be used; threads of one core are neighbours."""
    system = written(
        tmp_path,
        {
            "node/node10/cpulist": "12-13\n",
            "node/node2/cpulist": "4-7\n",
            "node/node0/cpulist": "0-3,8-11\n",
            "node/node3/cpulist": "\n",
            "node/possible": "0-3\n",
            **{f"cpu/cpu{core}/topology/thread_siblings_list": f"{core % 8},{core % 8 + 8}\n" for core in range(12)},
        },
    )
    assert cores.nodes(range(14), system) == [[0, 8, 1, 9, 2, 10, 3, 11], [4, 5, 6, 7], [12, 13]]
    assert cores.nodes([9, 1, 3, 13, 99], system) == [[1, 9, 3], [13], [99]]


def test_without_numa_all_cores_are_one_node(tmp_path: Path) -> None:
    """Where the kernel describes no nodes and no cores, they are taken in order."""
    assert cores.nodes([2, 0, 1], tmp_path) == [[0, 1, 2]]


@given(st.sets(st.integers(0, 300)))
def test_lists_of_cores_are_read_as_they_are_written(these: set[int]) -> None:
    """The kernel's notation holds the same numbers, sorted."""
    assert cores.parse(cores.spelled(these)) == sorted(these)
