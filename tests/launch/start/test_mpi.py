"""Finding an mpiexec that fits mpi4py, its flags, and a rank's environment. No MPI is started here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.errors import LaunchError
from workbench.launch.start import gforker, mpi


def program(path: Path, prints: str) -> str:
    """A shell script that prints one text."""
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "vendor"),
    [
        ("HYDRA build details:\n    Version:  5.0.2", "MPICH"),
        ("MPICH Version:      5.0.2\nMPICH ABI: 18:0:6", "MPICH"),
        ("MVAPICH Version:  3.0", "MPICH"),
        ("MPI VERSION    : CRAY MPICH version 8.1.29", "MPICH"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.12", "Intel MPI"),
        ("mpiexec (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/", "Open MPI"),
        ("mpiexec (Open MPI) 5.0.11", "Open MPI"),
        ("Open MPI v4.1.4, package: Debian OpenMPI", "Open MPI"),
        ("slurm 22.05.8", ""),
    ],
)
def test_vendor_is_read_from_version_texts(text: str, vendor: str) -> None:
    """The version texts of mpiexec and of the library name the same vendor."""
    assert mpi.vendor_of(text) == vendor


def test_only_hydra_is_shared() -> None:
    """A vendor's mpiexec starts its own programs; MPICH and Intel MPI also each other's."""
    assert mpi.same_family("Open MPI", "Open MPI")
    assert mpi.same_family("Intel MPI", "MPICH")
    assert not mpi.same_family("MPICH", "Open MPI")
    assert not mpi.same_family("", "MPICH")


def test_the_first_fitting_mpiexec_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several mpiexec commands the first of mpi4py's vendor is taken, and none is run but for its version."""
    wrong = program(tmp_path / "wrong", "mpiexec (OpenRTE) 4.1.4")
    right = program(tmp_path / "right", "HYDRA build details:")
    monkeypatch.setattr(mpi, "library_vendor", lambda: "MPICH")
    monkeypatch.setattr(mpi, "candidates", lambda: [wrong, right])
    assert mpi.find_mpiexec() == right
    assert mpi.command(3)[:3] == [right, "-n", "3"]


def test_environments_own_mpiexec_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mpiexec beside this Python is tried first, the first one on PATH next."""
    other = program(tmp_path / "mpiexec", "HYDRA build details:")
    monkeypatch.setenv("PATH", str(tmp_path))
    own = Path(sys.executable).parent / "mpiexec"
    assert mpi.candidates() == ([str(own), other] if own.exists() else [other])


def test_mpich_without_a_port_is_taken_where_it_can_do_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher beside mpiexec that listens nowhere, but for several hosts, mpiexec's own words, or a named one."""
    usual = program(tmp_path / "mpiexec", "HYDRA build details:")
    monkeypatch.setattr(mpi, "library_vendor", lambda: "MPICH")
    monkeypatch.setattr(mpi, "candidates", lambda: [usual])
    assert usual in mpi.command(2), "not every MPICH has the other one"
    forker = program(tmp_path / "mpiexec.gforker", "")
    assert mpi.command(2, alone=True)[-2:] == [forker, "2"]
    assert usual in mpi.command(2, usual)
    assert mpi.command(2, words=["-l"])[-1] == "-l"


def test_the_gforker_itself_keeps_what_it_and_python_run_by() -> None:
    """It takes a part of a large environment: our marks first, then what programs are loaded by, then the rest."""
    rest = {f"A{i}": "" for i in range(200)}
    first = dict.fromkeys(["WORKBENCH_JOB", "LD_LIBRARY_PATH", "DYLD_X", "PATH", "PYTHONHOME", "HOME", "TMPDIR"], "")
    kept = gforker._few(rest | first)
    assert set(first) < set(kept)
    assert len(kept) == 100


def test_mpich_does_not_leave_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a batch job MPICH's mpiexec would start ranks on all of its nodes: it is told not to."""
    usual = program(tmp_path / "mpiexec", "HYDRA build details:")
    monkeypatch.setattr(mpi, "library_vendor", lambda: "MPICH")
    for alone in (False, True):
        words = mpi.command(3, usual, alone)
        assert words[words.index("-launcher") + 1] == "fork"
        assert words[words.index("-hosts") + 1] == "localhost:3"


def test_mismatch_names_both_vendors_and_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When no mpiexec fits, the error is one line with each path, its vendor, mpi4py's vendor and what to do."""
    fake = program(tmp_path / "mpiexec", "mpiexec (OpenRTE) 4.1.4")
    monkeypatch.setattr(mpi, "library_vendor", lambda: "MPICH")
    with pytest.raises(LaunchError) as caught:
        mpi.find_mpiexec(fake)
    text = str(caught.value)
    assert f"{fake} is Open MPI" in text
    assert "mpi4py uses MPICH" in text
    assert "up(n, mpiexec=...)" in text
    assert "\n" not in text


def test_no_mpiexec_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any mpiexec the error names the ways to one."""
    monkeypatch.setattr(mpi, "candidates", list)
    with pytest.raises(LaunchError, match="pip install mpich"):
        mpi.find_mpiexec()


def test_broken_mpiexec_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An mpiexec that does not exist, or fails, is an error with its path."""
    with pytest.raises(LaunchError, match="no program /no/such/mpiexec"):
        mpi.find_mpiexec("/no/such/mpiexec")
    fake = program(tmp_path / "broken", "libhwloc.so.15: cannot open shared object file'\nexit 127 #")
    with pytest.raises(LaunchError, match="exit code 127: libhwloc"):
        mpi.find_mpiexec(fake)


def test_library_vendor_does_not_initialize_mpi_here() -> None:
    """mpi4py's vendor is found, and this process has not even imported mpi4py.MPI for it."""
    code = (
        "import sys; from workbench.launch.start import mpi; print(mpi.library_vendor(), 'mpi4py.MPI' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=mpi.environment(1), capture_output=True, text=True)
    vendor, _, imported = done.stdout.strip().rpartition(" ")
    assert vendor in set(mpi.VENDORS.values()), done.stderr
    assert imported == "False"


def test_flags_are_chosen_by_vendor() -> None:
    """Hydra gets no flags, for it rejects Open MPI's; Open MPI gets root's only as root."""
    assert mpi.flags("MPICH", root=True) == mpi.flags("Intel MPI", root=True) == []
    assert "--allow-run-as-root" in mpi.flags("Open MPI", root=True)
    assert "--allow-run-as-root" not in mpi.flags("Open MPI", root=False)
    assert "--oversubscribe" in mpi.flags("Open MPI", root=False)


def test_threads_fill_the_cores_and_no_more() -> None:
    """Threads per rank times ranks never exceeds the cores, unless there are more ranks than cores."""
    cores = mpi.usable_cores()
    assert mpi.threads_per_rank(1) == cores
    assert mpi.threads_per_rank(10 * cores) == 1
    assert all(n * mpi.threads_per_rank(n) <= cores for n in range(1, cores + 1))


def test_ranks_of_one_machine_keep_to_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that would listen for other ranks do so on loopback, unless somebody has chosen for them."""
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    env = mpi.environment(1)
    assert env["UCX_NET_DEVICES"] == ("lo0" if sys.platform == "darwin" else "lo")
    assert env["NCCL_SOCKET_IFNAME"] == "ib0"


def test_environment_of_a_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A rank inherits the environment, less other clusters' ties, and finds ``workbench`` from any folder."""
    monkeypatch.setenv("IPP_CLUSTER_ID", "another")
    monkeypatch.setenv("KEEP_ME", "yes")
    env = mpi.environment(3)
    assert "IPP_CLUSTER_ID" not in env
    assert env["KEEP_ME"] == "yes"
    assert {env[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {"3"}
    code = "import workbench.errors as e; print(e.__file__)"
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert os.path.samefile(done.stdout.strip(), mpi.workbench.errors.__file__)
