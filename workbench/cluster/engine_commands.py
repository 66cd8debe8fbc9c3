"""The commands behind ``cluster.up``: the controller's, the engines', and the shell that stands in for an engine."""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from workbench.common.ports import listen
from workbench.errors import LaunchError
from workbench.launch.ranks import supervisor
from workbench.launch.ranks.files import FOLDER
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

Forked = Callable[[Sequence[str]], list[str]]
READY = "ready.json"
"""The engines' connection file on their hosts."""
# Engines of a host share a profile, which is in the job's folder there, as everything of IPython's.
_ON_HOST = (
    'here=$(dirname "$0"); export IPYTHONDIR="$here/ipython"; mkdir -p "$here/profile"; '
    f'exec "$@" --profile-dir="$here/profile" --IPEngine.url_file="$0/{READY}"'
)
_RANK_NAMES = "import os; mpi_rank, mpi_size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE']); del os"
_PORTS = 32  # as many as the controller takes, and some more
_SCHEDULERS = ("control", "mux", "task", "iopub")  # as the file names their ports
_MODULES_S = 30.0
_LOCAL_S = 1.0  # the controller is on this machine


def controller(profile: Path, address: str = "", ports: Sequence[int] = ()) -> list[str]:
    """Starts the hub, its schedulers and the heartbeat; what they send is encrypted where ZeroMQ can.

    Args:
        profile: its folder.
        address: the one at which it listens for engines; "" for loopback, where it listens for the kernel in any case.
        ports: on which; any where there are none.
    """
    words = [f"--IPController.engine_ip={address}", f"--location={address}"] if address else []
    words += [f"--ports={','.join(map(str, ports))}"] if ports else []
    curve = [_CURVE] if encrypted() else []
    python = [sys.executable, "-m", "ipyparallel.controller"]
    return [*python, f"--profile-dir={profile}", *_CONTROLLER, *words, *curve]


def free_ports(address: str, ports: tuple[int, int]) -> list[int]:
    """The ports of a range that are free, the last ones first: ranks take the first ones.

    Args:
        address: of this machine.
        ports: the first and the last; (0, 0) for any: then none is named.

    Raises:
        LaunchError: there are too few.
    """
    if ":" in address:
        raise LaunchError(f"ipyparallel needs IPv4 between the hosts, and {address} is all that they share.")
    low, high = ports
    found: list[int] = []
    for port in range(high, low - 1, -1) if high else ():
        with contextlib.suppress(OSError):
            listen(address, (port, port)).close()
            found.append(port)
        if len(found) == _PORTS:
            break
    if high and len(found) < _PORTS:
        raise LaunchError(
            f"The controller needs {_PORTS} ports, and of WORKBENCH_PORTS={low}-{high} {len(found)} are free."
        )
    return found


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


def engines(mpiexec: Sequence[str], profile: Path, log: Path, bound: bool = False, forked: Forked = list) -> list[str]:
    """Starts the engines, each in a stand-in that gives it its GPU.

    Args:
        mpiexec: with its flags, see :func:`workbench.launch.start.mpi.command`.
        profile: the controller's.
        log: takes what they print.
        bound: each takes its cores as well.
        forked: makes a command of Python's that forks it, see :meth:`workbench.launch.forks.find.Forks.command`.
    """
    engine = [sys.executable, "-m", *_ENGINE, f"--profile-dir={profile}", f"--IPEngine.url_file={ready_file(profile)}"]
    bind = [sys.executable, "-I", "-S", supervisor.__file__, supervisor.BECOME] if bound else []
    return [*mpiexec, "sh", "-c", STAND_IN, str(log), *bind, *forked(engine)]


def engine_on_host(of_mpi: bool) -> list[str]:
    """An engine's command as a rank on hosts: it finds the connection file in the folder of the task's files.

    Args:
        of_mpi: is it a rank of an MPI job? Else its number is the launcher's, and a cell knows it by the same names.
    """
    number = ["--mpi"] if of_mpi else [f"--IPEngine.startup_command={_RANK_NAMES}"]
    words = [sys.executable, "-m", _ENGINE[0], "--timeout=60", *number]
    return ["sh", "-c", _ON_HOST if of_mpi else f'{_ON_HOST} --IPEngine.id="$RANK"', FOLDER, *words]


def loaded(modules: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """An environment after ``module load`` in a login shell; as it is where there are no modules.

    Raises:
        LaunchError: they cannot be loaded.
    """
    if not modules:
        return dict(env)
    script = f"module load {shlex.join(modules)} >&2 && exec env -0"
    try:
        done = subprocess.run(
            ["bash", "-lc", script], env=env, capture_output=True, timeout=_MODULES_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"The modules {', '.join(modules)} cannot be loaded: {error}.") from None
    said = " ".join(done.stderr.decode(errors="replace").split())
    if done.returncode:
        raise LaunchError(
            f"The modules {', '.join(modules)} of the site file cannot be loaded: {said}. Does this work in a terminal?"
            f" bash -lc 'module load {shlex.join(modules)}'"
        )
    found = (line.partition("=") for line in done.stdout.decode(errors="surrogateescape").split("\0") if line)
    return {name: text for name, _, text in found}


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


def listens(connection_file: Path) -> bool:
    """Has the controller written the whole file, and do its schedulers listen?

    It writes the file first and starts them one by one. An engine that finds the hub and not yet a scheduler is
    registered all the same, and what that scheduler is to hand to it meanwhile is dropped without an error.
    """
    try:
        hub = json.loads(connection_file.read_text())
        address = urlsplit(hub["interface"]).hostname
        for port in [hub[name] for name in _SCHEDULERS] + hub["broadcast"]:
            socket.create_connection((address, port), timeout=_LOCAL_S).close()
    except (OSError, ValueError):
        return False
    return True
