"""Starts ranks with ``mpiexec.gforker``, MPICH's launcher for one machine.

MPICH's usual mpiexec, hydra, listens on all interfaces, and whoever connects to it can end the job. This one forks the
ranks itself and listens nowhere. But

1. it takes at most 193 variables and 256 words: so they are stored in an unnamed file, whose descriptor the ranks
   inherit, and each rank unpacks them before it becomes the program;
2. it sets no local rank: on one machine that is the rank;
3. its exit code is 0 where a rank was killed by a signal: where the code matters, each rank has a supervisor
   (``ranks/supervisor.py``), which makes an exit code of the signal.

This file is run by its path, not with ``-m``, and imports next to nothing: it starts in 10 ms (20 with ``json``).
"""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # this runs twice at the start of each rank
    from collections.abc import Mapping

NAME = "mpiexec.gforker"
_UNPACK = "--unpack"
_MOST_VARIABLES = 100
_FIRST = ("WORKBENCH_", "LD_", "DYLD_", "PATH", "PYTHON", "HOME", "TMPDIR")


def command(path: str, n: int) -> list[str]:
    """The command that starts ``n`` ranks with the gforker at ``path``; the program's words follow."""
    return [*_python(), path, str(n)]


def start(path: str, n: str, program: list[str]) -> None:
    """Replace this process by the gforker; the program and the environment are in a file for its ranks."""
    file = _aside(marshal.dumps([program, dict(os.environ)]))
    os.execve(path, [path, "-n", n, *_python(), _UNPACK, str(file)], _few(dict(os.environ)))


def unpack(file: int) -> None:
    """Become the program of one rank."""
    data = os.pread(file, os.fstat(file).st_size, 0)  # all ranks share one position in the file
    os.close(file)
    program, env = marshal.loads(data)
    env |= dict(os.environ)  # what the gforker says about the rank
    env |= {"MPI_LOCALRANKID": env["PMI_RANK"], "MPI_LOCALNRANKS": env["PMI_SIZE"]}
    if program[:3] == _python()[:3]:  # a script for such a Python as this one, the supervisor: no need to start another
        become(program[3:], env)  # it has a main(words, env)
        return
    try:
        os.execvpe(program[0], program, env)
    except OSError as error:
        sys.exit(f"{program[0]} cannot be run: {error.strerror}")


def become(words: list[str], env: Mapping[str, str]) -> None:
    """Run the ``main`` of a script in this process."""
    folder, name = os.path.split(words[0])
    sys.path.insert(0, folder)
    __import__(name.removesuffix(".py")).main(words[1:], env)


def _python() -> list[str]:
    return [sys.executable, "-I", "-S", os.path.realpath(__file__)]


def _aside(data: bytes) -> int:
    """A descriptor of a file with this data, which has no name and can be inherited."""
    try:
        file = os.memfd_create("workbench", 0)
    except (AttributeError, OSError):  # not Linux, or a sandbox forbids it
        import tempfile

        with tempfile.TemporaryFile() as nameless:
            file = os.dup(nameless.fileno())
    while data:
        data = data[os.write(file, data) :]
    os.set_inheritable(file, True)
    return file


def _few(env: Mapping[str, str]) -> dict[str, str]:
    """For the gforker itself: the job's tag, the variables that it and Python need, and as many others as it takes."""
    return dict(sorted(env.items(), key=lambda each: not each[0].startswith(_FIRST))[:_MOST_VARIABLES])


def main(words: list[str]) -> None:
    """``gforker.py <path of mpiexec.gforker> <n> <program>…``."""
    if words[0] == _UNPACK:
        unpack(int(words[1]))
    else:
        start(words[0], words[1], words[2:])


if __name__ == "__main__":
    main(sys.argv[1:])
