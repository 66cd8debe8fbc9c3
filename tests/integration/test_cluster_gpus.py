"""Engines are pinned, each to its GPU: with the real mpiexec, and a driver that only says that it has two GPUs."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import eventually
from thorough import once_more

from workbench import cluster
from workbench.errors import LaunchError
from workbench.launch.start import gpus

pytestmark = [pytest.mark.integration, pytest.mark.parallel]

TWO = [("5a1c-07", "NVIDIA H200"), ("77b2-08", "NVIDIA H200")]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An IPython directory of its own, no outer restriction, and no cluster left."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield
    cluster.down()


def seen(c: cluster.Cluster) -> list[str | None]:
    """By rank its CUDA_VISIBLE_DEVICES."""
    found: list[str | None] = c.view.apply(os.getenv, "CUDA_VISIBLE_DEVICES")
    return found


@pytest.mark.parametrize("rescued", [False, once_more(True)])
def test_each_engine_sees_its_own_gpu(
    rescued: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One each, by uuid; ``up`` again and ``rescue`` keep it; a wrong wish changes nothing."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + "\n".join(f"echo GPU-{uuid}, {name}" for uuid, name in TWO) + "\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    c = cluster.up(2, gpus="auto")
    assert seen(c) == ["GPU-5a1c-07", "GPU-77b2-08"]
    assert c.gpus == TWO
    assert c.view.apply(os.getenv, "WORKBENCH_GPUS") == [None, None]
    assert capsys.readouterr().out.splitlines()[1].startswith("each rank sees one GPU, its cuda:0")
    with pytest.raises(LaunchError, match="there are 2 GPUs"):
        cluster.up(2, gpus=3)
    assert cluster.up(2, gpus=[0, "GPU-77"]) is c
    if not rescued:
        return
    os.kill(c.pids()[0], signal.SIGKILL)
    eventually(lambda: not c.healthy())
    c.rescue(quiet=True)
    assert seen(c) == ["GPU-5a1c-07", "GPU-77b2-08"]


def test_without_a_driver_nothing_is_set(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No nvidia-smi: no variable, not a word, and asking for a GPU is an error that leaves the cluster as it is."""
    which = shutil.which

    def without(name: str, *arguments: Any, **options: Any) -> str | None:
        return None if name == "nvidia-smi" else which(name, *arguments, **options)

    monkeypatch.setattr(shutil, "which", without)
    assert gpus.pin(2) == gpus.Pins(("", ""), {})
    c = cluster.up(1)
    assert (seen(c), c.gpus) == ([None], [""])
    assert len(capsys.readouterr().out.splitlines()) == 1
    with pytest.raises(LaunchError, match="there is no GPU"):
        cluster.up(1, gpus=1)
    assert c.healthy()


def test_other_gpus_start_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster with other GPUs than are asked for is replaced; without a wish the one that runs is good."""
    monkeypatch.setattr(cluster.Cluster, "_start_or_stop", lambda self, timeout_s: None)
    monkeypatch.setattr(cluster.Cluster, "healthy", lambda self: True)
    one = cluster.up(1, quiet=True)
    other = cluster.up(1, gpus=0, quiet=True)
    assert other is not one
    assert repr(one) == "<Cluster: stopped>"
    assert other._job.env["CUDA_VISIBLE_DEVICES"] == ""
    assert cluster.up(1, gpus="none", quiet=True) is other
    assert cluster.up(1, quiet=True) is other
