"""Pinning: who gets which GPU, and how the name of his own reaches each rank."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from workbench import config
from workbench.cluster.engine_commands import STAND_IN
from workbench.errors import LaunchError
from workbench.launch.ranks import supervisor
from workbench.launch.start import gpus, mpi
from workbench.launch.start.gpus import Gpu, Pins, assign, pin, visible

FOUR: list[Gpu] = [(f"{start}-0000", "H200") for start in ("5a1c", "77b2", "77c0", "9e3d")]
A, B, C, D = (uuid for uuid, _ in FOUR)
CLI = [sys.executable, "-m", "workbench.cli.main", "run", "-np", "2"]


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, found: Sequence[Gpu]) -> None:
    """A driver that shows these GPUs, first on PATH, and no CUDA_VISIBLE_DEVICES."""
    lines = "; ".join(f"echo GPU-{uuid}, {name}" for uuid, name in found)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{lines or 'exit 9'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_driver_that_does_not_answer_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The ranks have no GPU then, and nobody would know why."""
    nvidia_smi(tmp_path, monkeypatch, [])
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(gpus, "_ASK_TIMEOUT_S", 0.1)
    assert gpus.gpus() == []
    assert "nvidia-smi has not answered for 0.1 s" in caplog.text


# --- who gets which -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "found", "asked", "right"),
    [
        (2, FOUR, "auto", [A, B]),
        (4, FOUR, "auto", [A, B, C, D]),
        (3, FOUR[:2], "auto", [A, B, A]),
        (2, [], None, ["", ""]),
        (2, FOUR, None, ["", ""]),
        (2, [], "auto", ["", ""]),
        (2, FOUR, 0, ["", ""]),
        (2, FOUR, False, ["", ""]),
        (2, FOUR, "none", ["", ""]),
        (2, FOUR, "0", ["", ""]),
        (2, [], 0, ["", ""]),
        (2, FOUR, "all", ["", ""]),
        (3, FOUR, 2, [A, B, A]),
        (3, FOUR, "2", [A, B, A]),
        (2, FOUR, [3, 1], [D, B]),
        (2, FOUR, (2,), [C, C]),
        (2, FOUR, [0, 1, 2], [A, B]),
        (2, FOUR, "2,0", [C, A]),
        (2, FOUR, ["GPU-77c", "5A1C"], [C, A]),
        (1, FOUR, [f"GPU-{D}"], [D]),
        (1, FOUR, "GPU-9", [D]),
        (2, FOUR, ["MIG-1f", 0], ["MIG-1f", A]),
    ],
)
def test_each_rank_gets_what_was_asked_for(n: int, found: list[Gpu], asked: Any, right: list[str]) -> None:
    """By default all; one each, in turn where there are too few; numbers, uuids and their beginnings; none; all."""
    assert assign(n, found, asked) == right


@pytest.mark.parametrize(
    ("found", "asked", "said"),
    [
        (FOUR, 5, ["gpus=5: there are 4 GPUs", f"2 = H200 (GPU-{C})", "Ask for 1 to 4"]),
        (FOUR[:1], -1, ["there is 1 GPU, 0 = H200", "Ask for 1 to 1"]),
        (FOUR, True, ["gpus=True", "Ask for 1 to 4"]),
        (FOUR, [4], ["gpus=[4]", "4 is none of them"]),
        (FOUR, [-1], ["-1 is none of them"]),
        (FOUR, [True], ["True is none of them"]),
        (FOUR, ["77"], ["'77' is none of them"]),
        (FOUR, ["GPU-77"], ["'GPU-77' is more than one of them"]),
        (FOUR, "GPU-", ["'GPU-' is none of them"]),
        (FOUR, "every", ["gpus='every'", "'every' is none of them"]),
        (FOUR, [], ["gpus=[]", "Name at least one"]),
        (FOUR, 1.5, ["gpus=1.5", "Name at least one"]),
        ([], 1, ["gpus=1: there is no GPU", "nvidia-smi", "CUDA_VISIBLE_DEVICES", "Leave gpus out"]),
        ([], ["MIG-1f"], ["there is no GPU"]),
        ([], [0], ["there is no GPU"]),
    ],
)
def test_what_cannot_be_had_is_an_error_that_helps(found: list[Gpu], asked: Any, said: list[str]) -> None:
    """It says what was asked for, what there is, and what to do."""
    with pytest.raises(LaunchError) as caught:
        assign(2, found, asked)
    assert all(words in str(caught.value) for words in said), caught.value


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (None, [A, B, C, D]),
        ("2,0", [C, A]),
        ("GPU-77b, GPU-5a1c-0000", [B, A]),
        ("1,7,0", [B]),
        ("0,-1,1", [A]),
        ("", []),
        ("NoDevFiles", []),
        ("MIG-1f,MIG-2e", ["MIG-1f", "MIG-2e"]),
    ],
)
def test_an_outer_restriction_holds(text: str | None, left: list[str]) -> None:
    """As for CUDA itself: numbers and beginnings of uuids, in this order, up to the first that is no GPU."""
    assert [uuid for uuid, _ in visible(FOUR, text)] == left
    assert visible([], text) == []


# --- what is there ------------------------------------------------------------------------------------


def test_a_batch_jobs_gpus_are_dealt_out_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CUDA_VISIBLE_DEVICES is set these are all there are, counted from 0."""
    nvidia_smi(tmp_path, monkeypatch, FOUR)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    pins = pin(3, "auto")
    assert pins.gpus == ((D, "H200"), (B, "H200"), (D, "H200"))
    assert pins.env == {"WORKBENCH_GPUS": f"GPU-{D};GPU-{B};GPU-{D}"}
    assert pins.line().endswith("; ranks 0, 2 share one")
    assert pin(1, [1]).gpus == ((B, "H200"),)
    with pytest.raises(LaunchError, match=r"there are 2 GPUs, 0 = H200 \(GPU-9e3d"):
        pin(2, 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1f,MIG-2e")
    assert pin(2, "auto") == Pins((("MIG-1f", "MIG"), ("MIG-2e", "MIG")), {"WORKBENCH_GPUS": "MIG-1f;MIG-2e"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert pin(2, "auto") == Pins(("", ""), {})


def test_without_a_gpu_nothing_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asked: no variable. Somebody wants none: it is so. Somebody wants one: an error."""
    nvidia_smi(tmp_path, monkeypatch, [])
    for nothing in (None, "auto", "all"):
        assert pin(2, nothing) == Pins(("", ""), {})
        assert pin(2, nothing).line() == ""
    assert pin(2, 0).env == {"CUDA_VISIBLE_DEVICES": ""}
    with pytest.raises(LaunchError, match="there is no GPU"):
        pin(2, [0])


def test_none_and_all_where_there_are_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None: the empty list, which hides them. All: nothing is set, as without pinning."""
    nvidia_smi(tmp_path, monkeypatch, FOUR)
    assert pin(2, "none") == Pins(("", ""), {"CUDA_VISIBLE_DEVICES": ""})
    assert pin(2, "all") == Pins(("", ""), {})


# --- how it gets there --------------------------------------------------------------------------------

LISTED = {supervisor.GPUS: "GPU-a;MIG-b;GPU-c"}


@pytest.mark.parametrize(
    ("env", "mine"),
    [
        ({"MPI_LOCALRANKID": "2", "PMI_RANK": "5"}, "GPU-c"),
        ({"MPI_LOCALRANKID": "0", "SLURM_LOCALID": "1"}, "GPU-a"),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, "MIG-b"),
        ({"LOCAL_RANK": "2", "SLURM_LOCALID": "0"}, "GPU-c"),
        ({"SLURM_LOCALID": "1", "PMI_RANK": "4"}, "MIG-b"),
        ({"PMI_RANK": "2"}, "GPU-c"),
        ({"MPI_LOCALRANKID": "", "PMI_RANK": "1"}, "MIG-b"),
        ({}, "GPU-a"),
        ({"MPI_LOCALRANKID": "1", "CUDA_VISIBLE_DEVICES": "0,1"}, "MIG-b"),
    ],
)
def test_each_rank_takes_its_own_by_its_local_rank(env: dict[str, str], mine: str) -> None:
    """By any launcher's variable; the shell's words and the supervisor agree, and ranks do not see the list."""
    assert supervisor.pinned(LISTED | env).get("CUDA_VISIBLE_DEVICES") == mine
    assert supervisor.GPUS not in supervisor.pinned(LISTED | env)
    shell = ["sh", "-c", gpus.TAKE_MINE + 'echo "$CUDA_VISIBLE_DEVICES ${WORKBENCH_GPUS-gone}"']
    done = subprocess.run(shell, capture_output=True, text=True, env={"PATH": os.environ["PATH"], **LISTED, **env})
    assert (done.stdout, done.stderr) == (f"{mine} gone\n", "")


@pytest.mark.parametrize("env", [{}, {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "0,1"}])
def test_without_a_list_nothing_changes(env: dict[str, str], tmp_path: Path) -> None:
    """Neither the supervisor nor an engine's stand-in sets CUDA_VISIBLE_DEVICES, or takes it away."""
    env = {"PATH": os.environ["PATH"], "MPI_LOCALRANKID": "1", **env}
    assert supervisor.pinned(env) == env
    engine = ["sh", "-c", 'echo "${CUDA_VISIBLE_DEVICES-not set}"']
    subprocess.run(["sh", "-c", STAND_IN, str(tmp_path / "log"), *engine], env=env, check=True)
    assert (tmp_path / "log").read_text() == env.get("CUDA_VISIBLE_DEVICES", "not set") + "\n"


@pytest.mark.parallel
@pytest.mark.parametrize("way", ["--mpi", "--gloo"])
def test_ranks_of_a_run_see_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """``workbench run --gpus 1,0``: rank 0 sees GPU 1 alone. Without it nobody is pinned: Horovod's scripts do that."""
    nvidia_smi(tmp_path, monkeypatch, FOUR)
    seen = ["sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES."']
    for words, right in (["--gpus", "1,0"], [f"GPU-{B}", f"GPU-{A}"]), ([], ["", ""]):
        done = subprocess.run(
            [*CLI, way, *words, "--", *seen], capture_output=True, text=True, timeout=50, env=mpi.environment(1)
        )
        assert sorted(done.stdout.splitlines()) == [f"[{i}]<stdout>:{mine}." for i, mine in enumerate(right)], done


def test_a_run_without_such_gpus_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends with 1 and one line that says why."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = subprocess.run(
        [*CLI, "--gpus", "2", "--", "true"], capture_output=True, text=True, timeout=50, env=mpi.environment(1)
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("workbench: gpus='2': there is no GPU")


def test_a_slow_or_missing_driver_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no nvidia-smi, the environment decides nothing: nobody is pinned to what is not there."""
    monkeypatch.setattr(gpus, "gpus", list)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert config.visible_gpus() == "0,1"
    assert pin(2, "auto") == Pins(("", ""), {})


def test_gpus_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each GPU by uuid and name; a driver that does not answer has none."""
    nvidia_smi(tmp_path, monkeypatch, FOUR[:2])
    assert gpus.gpus() == FOUR[:2]
    nvidia_smi(tmp_path, monkeypatch, [])
    assert gpus.gpus() == []
