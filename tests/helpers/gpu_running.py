"""What all tests on GPUs share: is there one, which ways can ranks take, and how several ranks are started."""

from __future__ import annotations

import json
import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from workbench.transport.gpu.select import SHARING, dotted, has_driver

if TYPE_CHECKING:
    from running import Job, Runner  # tests/running.py

HERE = Path(__file__).resolve().parents[1] / "gpu"
COLLECT = "WORKBENCH_TEST_GPU_COLLECT"  # in the environment: collect all files anyway, to see that this can be done
WAYS = ("nccl", "staged")
# All ranks are on this machine. Without a network of its own it may have no other interface.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}


def missing() -> str:
    """Why nothing can be tested here, or "". Neither torch nor cupy is imported where there is no driver."""
    if not has_driver():
        return "no NVIDIA driver on this machine"
    for name in ("torch", "cupy"):
        if find_spec(name) is None:
            return f"{name} is not installed"
    import torch

    return "" if torch.cuda.is_available() else "torch sees no GPU: a build for the CPU, or CUDA_VISIBLE_DEVICES"


WHY = missing()


def marks() -> list[pytest.MarkDecorator]:
    """Of every file here. What CUDA's libraries warn of is not ours to prevent."""
    return [pytest.mark.gpu, pytest.mark.parallel, pytest.mark.filterwarnings("default")]


def need(way: str, ranks: int) -> None:
    """Skip where so many ranks cannot take this way."""
    if way != "nccl":
        return
    import torch
    from cupy.cuda import nccl

    if not nccl.available:
        pytest.skip("cupy finds no NCCL here")
    if torch.cuda.device_count() < ranks and nccl.get_version() < SHARING:
        pytest.skip(
            f"{ranks} ranks would share a GPU, and NCCL {dotted(nccl.get_version())} cannot: {dotted(SHARING)} can"
        )


def start(jobs: Runner, ranks: int, way: str, program: str, *words: str, deadline_s: float = 100.0) -> Job:
    """Run a program that stands beside this file on so many ranks, which meet by torchrun's variables."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sizes = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    each = [{**meet, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    words, env = (str(HERE / f"{program}.py"), *words), {"WORKBENCH_GPU_OPERATIONS": way, **LOOPBACK}
    return jobs.together(ranks, *words, deadline_s=deadline_s, each=each, **env)


def results(jobs: Runner, ranks: int, way: str, program: str, *words: str, deadline_s: float = 100.0) -> list[Any]:
    """What each rank printed last, as :func:`start`; all must have come to their end."""
    need(way, ranks)
    job = start(jobs, ranks, way, program, *words, deadline_s=deadline_s)
    assert job.code == 0, job.report()
    assert not job.left, job.report()
    return [json.loads(job.out(rank).strip().splitlines()[-1]) for rank in range(ranks)]


def collected() -> bool:
    """Are all files of this folder to be collected?"""
    return not WHY or COLLECT in os.environ
