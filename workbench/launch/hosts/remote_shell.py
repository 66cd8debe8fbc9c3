"""How an agent is started on a host, and what it means when that fails.

With ssh, with srun within a Slurm job, or in an executor of Spark or Ray.

ssh never asks: with ``BatchMode`` a missing key or an unknown host is an error, and no prompt that nobody sees.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, field

from workbench.common.messages import Message, encode
from workbench.launch.hosts.facts import HOME
from workbench.launch.slurm.allocation import JobGpus

COMING = "coming"
"""The kind of the message by which the shell says that it starts Python, which may take long: a cold file system."""
_AGENT = "from workbench.launch.hosts.agent import main; main()"
_CLIENT = "from workbench.executors.client import start; start()"
_NO_FOLDER, _NO_PYTHON, _NO_PACKAGE = 96, 97, 98
_SSH_FAILED = 255
# What srun would take over from the job: for one agent that is another number of GPUs than for all tasks of a host.
GPU_REQUESTS = (
    *("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU"),
    *("SLURM_TRES_PER_TASK", "SLURM_GRES", "SLURM_STEP_GRES", "SLURM_GPU_BIND"),
)
_SAME = "Install the same environment at the same place on all hosts."


@dataclass(frozen=True)
class Ssh:
    """ssh's options.

    Args:
        port: 0: as ssh's own configuration says, 22 by default.
        identity: the private key's file; "": as the configuration says.
        connect_timeout_s: deadline of the connection.
    """

    port: int = 0
    identity: str = ""
    connect_timeout_s: int = 5

    def options(self) -> list[str]:
        """Words for ssh, before the host.

        Example:
            >>> Ssh(port=2222).options()[-2:]
            ['-p', '2222']
        """
        settings = {
            "BatchMode": "yes",
            "ConnectTimeout": str(self.connect_timeout_s),
            "ServerAliveInterval": "2",  # a cut link ends it after 3 of these
            "ServerAliveCountMax": "3",
            "LogLevel": "ERROR",
        }
        words = [word for name, text in settings.items() for word in ("-o", f"{name}={text}")]
        words += ["-i", self.identity] if self.identity else []
        return words + (["-p", str(self.port)] if self.port else [])

    def command(self, host: str, script: str) -> list[str]:
        """Run a shell's script on a host."""
        return ["ssh", "-T", "-x", *self.options(), "--", host, script]

    def trial(self, host: str) -> list[str]:
        """What a user may try by hand."""
        mine = ["-i", self.identity] if self.identity else []
        mine += ["-p", str(self.port)] if self.port else []
        return ["ssh", "-o", "BatchMode=yes", *mine, host, sys.executable, "--version"]


@dataclass(frozen=True)
class Srun:
    """One step of a Slurm job for each host; it shares the cores with the others.

    Args:
        job: its number; 0 for the job around this process.
        gpus: of the job. The agent has all those of its host, and deals them out to its ranks.
        component: of a heterogeneous job, the number of the part that has the host; None for any other job.
    """

    job: int = 0
    gpus: JobGpus = field(default_factory=JobGpus)
    component: int | None = None

    def command(self, host: str, script: str) -> list[str]:
        unset = [word for name in GPU_REQUESTS for word in ("-u", name)] if self.gpus.hosts else []
        alone = [*self._step(host), "--mpi=none", "--unbuffered"]
        alone += [f"--jobid={self.job}"] if self.job else []
        if self.gpus.hosts:
            mine = self.gpus.hosts.get(host, 0)
            alone += [f"--gpus={mine}" if mine else "--gres=none"]
        return [
            *(["env", *unset] if unset else []),
            "srun",
            *alone,
            "--cpu-bind=none",
            "--quiet",
            "--",
            "sh",
            "-c",
            script,
        ]

    def trial(self, host: str) -> list[str]:
        """What a user may try by hand, in the same job."""
        return ["srun", *self._step(host), sys.executable, "--version"]

    def _step(self, host: str) -> list[str]:
        group = [] if self.component is None else [f"--het-group={self.component}"]
        return [*group, "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--overlap"]


@dataclass(frozen=True)
class LocalShell:
    """No shell at all: the host is this machine."""

    def command(self, host: str, script: str) -> list[str]:
        return ["sh", "-c", script]

    def trial(self, host: str) -> list[str]:
        return [sys.executable, "--version"]


@dataclass(frozen=True)
class Relay:
    """By way of an executor registry, to a process that another engine has started, see :mod:`workbench.executors`.

    Args:
        path: the executor registry's socket.
    """

    path: str

    def command(self, host: str, script: str) -> list[str]:
        there = f"import sys; sys.path.insert(0, {str(HOME)!r}); {_CLIENT}"
        return [sys.executable, "-I", "-c", there, self.path, host, script]

    def trial(self, host: str) -> list[str]:
        """What a user may try there, in a task of the engine."""
        return [sys.executable, "--version"]


Shell = Ssh | Srun | LocalShell | Relay


def agent_script(folder: str) -> str:
    """What a shell is to do on a host: start the agent in the folder where the launcher is.

    What is missing is told by the exit code, see :func:`explain`.
    """
    python, home = shlex.quote(sys.executable), shlex.quote(str(HOME))
    there = f"import sys; sys.path.insert(0, {str(HOME)!r}); {_AGENT}"
    return (
        f"cd {shlex.quote(folder)} 2>/dev/null || exit {_NO_FOLDER}; "
        f"test -x {python} || exit {_NO_PYTHON}; "
        f"test -r {home}/workbench/launch/hosts/agent.py || exit {_NO_PACKAGE}; "
        f"printf '%s\\n' {shlex.quote(encode(Message(COMING, {})).decode().rstrip())}; "
        f"exec {python} -I -c {shlex.quote(there)}"
    )


# What ssh says → (what it means, what to do).
_SSH_SAYS = (
    (
        "IDENTIFICATION HAS CHANGED",
        "its host key has changed: it was installed again, or another machine answers",
        "Ask its administrator; if it was installed again, remove the old key: ssh-keygen -R {known}",
    ),
    (
        "Host key verification failed",
        "its host key is not known here",
        "Connect once by hand and compare: ssh {port}{host}",
    ),
    ("Permission denied", "it accepts no key of this user", "Copy yours there: ssh-copy-id {port}{host}"),
    ("Too many authentication failures", "it accepts no key of this user", "Name the right one: --ssh-identity-file"),
    ("Could not resolve hostname", "there is no host of this name", "Is it spelled as in DNS or /etc/hosts?"),
    ("Connection refused", "no sshd listens there", "Start it, or name its port: --ssh-port"),
    (
        "timed out",
        "it does not answer",
        "Is it up, and on this network? Does a firewall block ssh, or is an MTU wrong?",
    ),
    ("No route to host", "there is no route to it", "Is it up, and on this network?"),
    ("Network is unreachable", "there is no route to it", "Is it on this network?"),
    ("No such file or directory", "ssh is not here", "Install it: apt-get install openssh-client"),
)
# What srun says, likewise.
_SRUN_SAYS = (
    ("DUE TO TIME LIMIT", "Slurm's time limit of the job is over", "Ask for more: --time"),
    ("CANCELLED", "Slurm has ended the job", "This shows why: sacct -o JobID,State,ExitCode"),
    ("Invalid job id", "Slurm knows no such job", "Is it over? squeue --me"),
    ("Unable to confirm allocation", "Slurm knows no such job", "Is it over? squeue --me"),
    ("Node failure", "Slurm says that it has failed", "Check it: sinfo -N -l"),
    ("Unable to contact slurm controller", "Slurm does not answer", "Does it run? scontrol ping"),
    ("No such file or directory", "srun is not here", "Load Slurm's module, or start where srun is"),
)
# And what the executor registry says.
_RELAY_SAYS = (
    ("no executor of", "no executor is left there", "The engine's own log says why it ended"),
    ("the executor registry does not answer", "the job is over", "Start it again"),
)


def explain(
    host: str, code: int, text: str, folder: str, shell: Shell | None = None, who: str = "the agent"
) -> tuple[str, str]:
    """What it means that an agent has ended with this exit code before it said a word, and what to do.

    Args:
        host: its name.
        code: of ssh or srun, which is the script's where that ran.
        text: what ssh or the agent wrote on stderr.
        folder: where the agent was to start.
        shell: how it was to be started there; ssh by default.
        who: was started.

    Example:
        >>> explain("b", 255, "ssh: connect to host b port 22: Connection refused", "/home/ada")
        ('no sshd listens there', 'Start it, or name its port: --ssh-port')
    """
    shell = shell or Ssh()
    copy = ", or copy it there: --sync (in Python: sync=True)" if isinstance(shell, Ssh) else ""
    missing = {
        _NO_FOLDER: (
            f"it has no folder {folder}, where the ranks are to start",
            f"Share it between the hosts (NFS){copy}",
        ),
        _NO_PYTHON: (f"it has no Python at {sys.executable}", _SAME),
        _NO_PACKAGE: (f"it has no workbench at {HOME}", _SAME),
    }
    if code in missing:
        return missing[code]
    port = shell.port if isinstance(shell, Ssh) else 0
    words = {"host": host, "port": f"-p {port} " if port else "", "known": f"'[{host}]:{port}'" if port else host}
    says = {Ssh: _SSH_SAYS, Srun: _SRUN_SAYS, Relay: _RELAY_SAYS}.get(type(shell), ())
    for sign, meaning, cure in says:
        if sign in text:
            return meaning, cure.format(**words)
    if code == _SSH_FAILED and not text.strip():
        if isinstance(shell, Relay):
            return "its executor is lost", "Was the task killed, or out of memory? The engine's own log says why"
        return (
            "the connection to it is lost, or large packets are",
            f"Is it up, and on this network? Is an MTU on the way too small? This shows it: ping -M do -s 1472 {host}",
        )
    said = " ".join(re.sub(r"\s+", " ", line) for line in text.strip().splitlines()[-3:]) or "it said nothing"
    return f"{who} ended with exit code {code}: {said}", f"Does this work? {shlex.join(shell.trial(host))}"
