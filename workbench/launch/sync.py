"""``--sync``: copy the working directory to the other hosts, into the same path, before the ranks are started there.

By rsync, over ssh with the options of the agents. Left out are ``.git``, ``__pycache__`` and what a ``.gitignore``
names; of its lines, rsync does not know those with ``!``, which take something in again. Files of the same name are
overwritten; nothing is deleted on the other hosts.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.common.backoff import Backoff
from workbench.common.text import count, size
from workbench.errors import LaunchError
from workbench.launch.hosts.agent_connections import Target
from workbench.launch.hosts.remote_shell import Relay, Srun, Ssh, explain
from workbench.launch.ranks.process_tree import ProcessTree

_LIMIT_S = 600.0
_SILENCE_S = 30
_NOT_WRITTEN = 11  # rsync's exit code: an error in file I/O
_SHOWN = 5  # names of files
_FILE = re.compile(r"^sent [<>c][fL]\S* (\d+) (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Copied:
    """What was copied to a host.

    Args:
        names: of the files.
        nbytes: their size.
    """

    names: Sequence[str]
    nbytes: int

    def lines(self, host: str, everything: bool = False) -> list[str]:
        """As it is told.

        Args:
            host: its name.
            everything: name every file; else the first ones.

        Example:
            >>> Copied(["train.py"], 1200).lines("b")
            ['b: --sync copied 1 file, 1.2 kB; nothing is deleted there', '  train.py']
        """
        if not self.names:
            return [f"{host}: --sync found no difference"]
        head = f"{host}: --sync copied {count(len(self.names), 'file')}, {size(self.nbytes)}; nothing is deleted there"
        shown = self.names if everything else self.names[:_SHOWN]
        lines = [head, *(f"  {name}" for name in shown)]
        left = len(self.names) - len(shown)
        return [*lines, f"  … and {left} more; --verbose names them"] if left else lines


def sync(targets: Sequence[Target], folder: str, log: Callable[[str], None], verbose: bool = False) -> None:
    """Copy a folder to all hosts at once.

    Args:
        targets: the hosts; those that are this machine are left out.
        folder: its path, which is the same there.
        log: gets what was copied to each host.
        verbose: name each file.

    Raises:
        LaunchError: it cannot be copied to a host; the text names each, and what to do.
    """
    if any(isinstance(target.shell, Srun) for target in targets):
        raise LaunchError(
            "--sync copies by ssh, and the hosts of a Slurm job are reached by srun: leave it out. They usually share "
            "their folders; otherwise sbcast copies a file to all of them."
        )
    if any(isinstance(target.shell, Relay) for target in targets):
        raise LaunchError(
            "--sync copies by ssh, and the hosts of Spark or Ray are reached by their executors: leave it out. These "
            'engines copy files themselves: ray.init(runtime_env={"working_dir": "."}), or spark.addPyFile().'
        )
    others = {target.name: target.shell for target in targets if isinstance(target.shell, Ssh)}
    if not others:
        log("--sync has nothing to do: all ranks are on this machine.")
        return
    _check(folder)
    if _takes_in_again(Path(folder, ".gitignore")):
        log("--sync: rsync does not know .gitignore's lines that begin with !, so files that they name are not copied.")
    for name, copied in _copy(others, folder).items():
        for line in copied.lines(name, verbose):
            log(line)


def _takes_in_again(ignore: Path) -> bool:
    try:
        return any(line.startswith("!") for line in ignore.read_text(errors="replace").splitlines())
    except OSError:
        return False


def _check(folder: str) -> None:
    if Path(folder).resolve() in (Path("/"), Path.home().resolve()):
        raise LaunchError(f"--sync would copy all of {folder}. Start in the folder of your project: cd PROJECT")
    if not shutil.which("rsync"):
        raise LaunchError("--sync needs rsync, here and on the other hosts: apt-get install rsync")


def _copy(others: Mapping[str, Ssh], folder: str) -> dict[str, Copied]:
    processes = ProcessTree(os.environ)
    try:
        for name, ssh in others.items():
            processes.start(f"sync to {name}", command(name, ssh, folder))
        pause = Backoff(_LIMIT_S, longest_s=0.02)
        while len(codes := processes.codes()) < len(others) and pause.pause():
            pass
        said = {name: processes.log(f"sync to {name}").read_text(errors="replace") for name in others}
    finally:
        processes.stop()
    ended = {name: codes.get(f"sync to {name}") for name in others}
    if wrong := [name for name, code in ended.items() if code != 0]:
        lines = [f"{name}: {why(name, ended[name], said[name], folder, others[name])}" for name in wrong]
        raise LaunchError("\n  ".join(["--sync failed, and nothing was started:", *lines]))
    return {name: copied(text) for name, text in said.items()}


def command(host: str, ssh: Ssh, folder: str) -> list[str]:
    """Rsync's words.

    Example:
        >>> command("b", Ssh(), "/home/ada/my project")[-2:]
        ['/home/ada/my project/', 'b:/home/ada/my project/']
    """
    make = f"mkdir -p -- {shlex.quote(folder)} && rsync"
    options = ["--links", "--recursive", "--perms", "--times", "--protect-args", f"--timeout={_SILENCE_S}"]
    left_out = ["--exclude=.git", "--exclude=__pycache__", "--filter=:- .gitignore"]
    there = f"[{host}]" if ":" in host else host
    shell = shlex.join(["ssh", "-T", "-x", *ssh.options()])
    words = ["rsync", *options, *left_out, "--out-format=sent %i %l %n", f"--rsync-path={make}", "-e", shell]
    return [*words, "--", f"{folder}/", f"{there}:{folder}/"]


def copied(text: str) -> Copied:
    r"""What rsync says that it has copied.

    Example:
        >>> copied("sent .d..t...... 4096 ./\nsent <f+++++++++ 12 train.py\n")
        Copied(names=['train.py'], nbytes=12)
    """
    found = _FILE.findall(text)
    return Copied([name for _, name in found], sum(int(size) for size, _ in found))


# What rsync says → (what it means, what to do). The first that fits.
_SAYS = (
    (r"No space left on device|Disk quota exceeded", "its disk is full", "Make room there for {folder}"),
    (r"mkdir: .*(Permission denied|Read-only)", "this user may not make {folder} there", "Make it, or start elsewhere"),
    (r"mkdir: ", "{folder} cannot be made there", "Does a file with this name exist? Create the folder by hand"),
    (r"Permission denied \(13\)|Read-only file system", "this user may not write in {folder} there", "chown it there"),
    (r"rsync: (command )?not found", "there is no rsync", "Install it there: apt-get install rsync"),
    (r"timeout in data send/receive", f"it took nothing for {_SILENCE_S} s", "Is it up, or its file system slow?"),
)


def why(host: str, code: int | None, text: str, folder: str, ssh: Ssh) -> str:
    """Why rsync has failed and what to do, from its exit code (None: it had not ended) and from what it wrote."""
    if code is None:
        return f"the copy had not ended after {_LIMIT_S:g} s. Name large files that are not code in .gitignore."
    for sign, what, cure in _SAYS:
        if re.search(sign, text):
            return f"{what}. {cure}.".format(folder=folder)
    if code == _NOT_WRITTEN:  # its own words are lost where the connection ends before they have come
        return f"its disk is full, or it cannot be written. Make room there for {folder}: df -h."
    text = "\n".join(line for line in text.splitlines() if not line.startswith("sent "))
    return ". ".join(explain(host, code, text, folder, ssh, "rsync"))
