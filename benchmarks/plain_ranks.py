"""Start ranks with nothing but Python: they meet by torchrun's variables; at a deadline all of them are ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.config import without_launcher

ROOT = Path(__file__).resolve().parent.parent
CANCELLED = threading.Event()  # ends all ranks that are being waited for
_TAIL = 2000  # characters of what a failing rank wrote
# All ranks are on this machine. Without a network of its own it may have no other interface.
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}


class RanksError(Exception):
    """The ranks failed, or were not done at the deadline."""


def run(ranks: int, script: Path, words: Sequence[str], deadline_s: float, **env: str) -> list[Any]:
    """Run a script on so many ranks.

    Returns:
        By rank, what was printed last, a line of JSON.

    Raises:
        RanksError: they failed, or the deadline has passed; all of them are gone then.
    """
    with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank, own in enumerate(variables(ranks)):
                with open(f"{folder}/{rank}", "wb") as file:
                    processes.append(
                        subprocess.Popen(
                            [sys.executable, str(script), *words],
                            env={**_LOOPBACK, **environment(), **own, **env},
                            stdin=subprocess.DEVNULL,
                            stdout=file,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,  # Ctrl-C is for this process, which ends the ranks itself
                        )
                    )
            codes = wait(processes, time.monotonic() + deadline_s)
        finally:
            for process in processes:
                end(process)
        texts = [Path(f"{folder}/{rank}").read_text(errors="replace") for rank in range(ranks)]
    failed = [rank for rank, code in enumerate(codes) if code != 0]
    if failed:
        first = next((rank for rank in failed if codes[rank] is not None), failed[0])
        how = f"ended with exit code {codes[first]}" if codes[first] is not None else f"not done after {deadline_s:g} s"
        raise RanksError(f"{script.name}, rank {first} of {ranks}: {how}:\n{texts[first].strip()[-_TAIL:]}")
    try:
        return [json.loads(text.strip().splitlines()[-1]) for text in texts]
    except (IndexError, ValueError):
        raise RanksError(f"{script.name} ended without a result:\n{texts[0].strip()[-_TAIL:]}") from None


def variables(ranks: int) -> list[dict[str, str]]:
    """What torchrun would tell each rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    size = str(ranks)
    common = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def environment() -> Mapping[str, str]:
    """This process's own, without what a launcher said to it; the package is found in this checkout."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return {"OMP_NUM_THREADS": "1", **without_launcher(os.environ), "PYTHONPATH": path}


def wait(processes: Sequence[subprocess.Popen[bytes]], until: float) -> list[int | None]:
    """Exit codes; None for who was not done in time. When one has failed the others get a few seconds more."""
    while any(process.poll() is None for process in processes) and time.monotonic() < until and not CANCELLED.is_set():
        if any(process.returncode for process in processes):
            until = min(until, time.monotonic() + 20.0)
        time.sleep(0.05)
    return [process.poll() for process in processes]


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a rank and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
