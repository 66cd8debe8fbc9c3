"""The commands behind ``cluster.up``: the controller's, the engines', and the shell that stands in for an engine."""

from __future__ import annotations

import json
import secrets
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from workbench.launch.ranks import supervisor
from workbench.launch.start.gpus import TAKE_MINE

# 1. An engine is registered at the second heartbeat after it came, so a short period starts faster (250 ms
#    cost 1 % of one core). 2. A rank that is stopped or swapped out may miss beats: it counts as lost after
#    100 s only, for a dead one is reported at once by its nanny. 3. One machine needs one broadcast scheduler.
_CONTROLLER = [
    "--HeartMonitor.period=250",
    "--HeartMonitor.max_heartmonitor_misses=400",
    "--IPController.broadcast_scheduler_depth=0",
]
# Without it every user of this machine could read what the engines print: the keys guard only what is sent to them.
_CURVE = "--IPController.enable_curve=True"
# Engines start while the controller does, and wait for its file as long as `up` does; 60 s for the hub's answer.
_ENGINE = ["workbench.launch.ranks.engine", "--mpi", "--timeout=60", "--IPEngine.wait_for_url_file=86400"]
# Where an engine dies the others shall live on, to say who it was. MPICH's mpiexec, though told to let them, often ends
# them all when it sees a process end; so it sees a shell, which stays in the engine's place once the cluster is up.
STAND_IN = TAKE_MINE + '"$@" </dev/null >>"$0" 2>&1; code=$?; [ -e "$0.up" ] && exec sleep 2147483647; exit $code'


def controller(profile: Path) -> list[str]:
    """Starts the hub, its schedulers and the heartbeat; what they send is encrypted where ZeroMQ can."""
    curve = [_CURVE] if encrypted() else []
    return [sys.executable, "-m", "ipyparallel.controller", f"--profile-dir={profile}", *_CONTROLLER, *curve]


def encrypted() -> bool:
    """Can ZeroMQ encrypt what engines and kernel send each other? Wheels of pyzmq can."""
    import zmq

    return bool(zmq.has("curve"))


def signing() -> dict[str, str]:
    """The variable that has the controller sign messages besides, as it does where it does not encrypt them."""
    return {"IPP_SESSION_KEY": secrets.token_hex(32)}


def warn_if_readable() -> None:
    """Say so where what the engines print is not encrypted."""
    if not encrypted():
        text = "This pyzmq cannot encrypt (it was built without CURVE): every user of this machine can read what the "
        warnings.warn(text + "engines print. Install its wheel: pip install --force-reinstall pyzmq", stacklevel=2)


def engines(mpiexec: Sequence[str], profile: Path, log: Path, bound: bool = False) -> list[str]:
    """Starts the engines, each in a stand-in that gives it its GPU.

    Args:
        mpiexec: with its flags, see :func:`workbench.launch.start.mpi.command`.
        profile: the controller's.
        log: takes what they print.
        bound: each takes its cores as well.
    """
    engine = [sys.executable, "-m", *_ENGINE, f"--profile-dir={profile}", f"--IPEngine.url_file={ready_file(profile)}"]
    bind = [sys.executable, "-I", "-S", supervisor.__file__, supervisor.BECOME] if bound else []
    return [*mpiexec, "sh", "-c", STAND_IN, str(log), *bind, *engine]


def are_up(log: Path) -> None:
    """From now on a stand-in stays in the place of an engine that dies."""
    Path(f"{log}.up").touch()


def ready_file(profile: Path) -> Path:
    """The engines' connection file. The controller writes its own line by line: an engine would read half of it."""
    return profile / "ready.json"


def let_in(profile: Path, connection_file: Path) -> None:
    """Give the engines their connection file, all of it at once."""
    part = profile / "ready.part"
    part.touch(0o600)  # the keys are in it
    part.write_bytes(connection_file.read_bytes())
    part.replace(ready_file(profile))


def complete(connection_file: Path) -> bool:
    """Has the controller written the whole file?"""
    try:
        return bool(json.loads(connection_file.read_text()))
    except (OSError, ValueError):
        return False


__all__ = [
    "STAND_IN",
    "are_up",
    "complete",
    "controller",
    "encrypted",
    "engines",
    "let_in",
    "ready_file",
    "signing",
    "warn_if_readable",
]
