"""Executors as another engine would start them: processes that have only their invitation."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.executors.executor import Invitation
from workbench.executors.registry import ExecutorRegistry

_CODE = """
import json, sys
from workbench.executors.executor import About, Invitation, serve
address, port, secret, label, gpus = json.loads(sys.stdin.readline())
print(serve(Invitation(address, port, bytes.fromhex(secret)), About(label, tuple(gpus))))
"""


def start(invitation: Invitation, label: str, gpus: Sequence[str] = (), host: str = "") -> subprocess.Popen[str]:
    """One executor; in a UTS namespace of its own, if it is to have another host name."""
    words = [sys.executable, "-c", _CODE]
    if host:
        words = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host, *words]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
    assert process.stdin
    secret = invitation.secret.hex()
    process.stdin.write(json.dumps([invitation.address, invitation.port, secret, label, list(gpus)]) + "\n")
    process.stdin.close()
    return process


@contextlib.contextmanager
def executors(board: ExecutorRegistry, n: int) -> Iterator[list[subprocess.Popen[str]]]:
    """``n`` of them, checked in."""
    found = [start(board.invitation, f"task {i}") for i in range(n)]
    try:
        board.wait_for(n, timeout_s=30.0)
        yield found
    finally:
        board.close()
        for process in found:
            end(process)


def end(process: subprocess.Popen[str]) -> int:
    """Give an executor time to end by itself; its exit code."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20.0)
    process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()
    return process.returncode


def with_variable(name: str, text: str) -> list[int]:
    """The processes of this machine whose environment has a variable of this value."""
    wanted, found = f"{name}={text}".encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if wanted in file.read().split(b"\0"):
                found.append(int(pid))
    return found


def counting(folder: str, steps: int) -> tuple[int, int, float]:
    """Sums, commits, and waits in step 5 for whoever is to come or to die; a file ends it before the last step."""
    import numpy as np

    import workbench as hvd
    from workbench import elastic
    from workbench.job.objects import broadcast_object

    hvd.init()
    state = elastic.ObjectState(broadcast_object, hvd.rank, step=0, sum=0.0)

    @elastic.run
    def train(state: Any) -> None:
        while state.step < steps and not hvd.allreduce(np.array([Path(folder, "enough").exists()]), op=hvd.Max)[0]:
            state.sum += float(hvd.allreduce(np.ones(1), name="x", op=hvd.Average)[0])
            state.step += 1
            Path(folder, f"step.{state.step}.size.{hvd.size()}").touch()
            while state.step == 5 and not Path(folder, "go").exists():
                time.sleep(0.05)
            state.commit()
            time.sleep(0.02)

    train(state)
    return hvd.rank(), hvd.size(), state.sum
