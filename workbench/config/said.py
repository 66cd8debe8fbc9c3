"""Variables that say one thing each, to this process or to one that it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Variable(Generic[T]):
    """A variable, to be called for what it says: in this process's environment, or in another one.

    Args:
        name: of the variable.
        means: what its text stands for, without blanks around it; "" where it is not set.

    Example:
        >>> site_file({"WORKBENCH_SITE": "site.toml"}), omp_threads({"OMP_NUM_THREADS": "4,2"}), omp_threads({})
        ('site.toml', 4, 0)
        >>> stream({"WORKBENCH_STREAM": "0"}), stream({"WORKBENCH_STREAM": "1"}), stream({})
        (False, True, None)
        >>> forks({"WORKBENCH_FORK": "0"}), forks({}), legacy_keras({"TF_USE_LEGACY_KERAS": "1"}), legacy_keras({})
        (False, True, True, False)
        >>> fork_of({"WORKBENCH_FORK_OF": "31 30"}), fork_of({}), rank_here({})
        ((31, 30), (0, 0), None)
        >>> log_server({"WORKBENCH_RAY_LOG": "10.0.0.1 4000 736563726574"}), log_server({})
        (('10.0.0.1', 4000, b'secret'), None)
    """

    name: str
    means: Callable[[str], T]

    def __call__(self, env: Mapping[str, str] | None = None) -> T:
        return self.means((os.environ if env is None else env).get(self.name, "").strip())


def _is_on(text: str) -> bool:
    return text.lower() not in ("0", "false", "no", "off")


def _numbers(text: str) -> tuple[int, int] | None:
    """Two numbers."""
    one, _, other = text.partition(" ")
    return (int(one), int(other)) if one.isdecimal() and other.isdecimal() else None


def _threads(text: str) -> int:
    first = text.partition(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def _log_server(text: str) -> tuple[str, int, bytes] | None:
    if not text:
        return None
    address, port, secret = text.split(" ")
    return address, int(port), bytes.fromhex(secret)


# --- what the user says -------------------------------------------------------------------------------

site_file = Variable("WORKBENCH_SITE", str)
"""The site file; "" if none is named."""
omp_threads = Variable("OMP_NUM_THREADS", _threads)
"""How many threads libraries are told to use; 0 if nobody has said so."""
legacy_keras = Variable("TF_USE_LEGACY_KERAS", lambda text: text in ("true", "True", "1"))  # as TensorFlow reads it
"""Does TensorFlow take ``tf_keras``, which is Keras 2, for ``tf.keras``?"""
stream = Variable("WORKBENCH_STREAM", lambda text: _is_on(text) if text else None)
"""Does the output of a ``%%px`` cell come while the cell runs? None if it says nothing."""
forks = Variable("WORKBENCH_FORK", _is_on)
"""May engines be forked from a fork server?"""
each_bar = Variable("WORKBENCH_BARS", lambda text: text.lower() == "each")
"""Has each rank's progress bar a line or a widget of its own in a notebook?"""
runtime_dir = Variable("XDG_RUNTIME_DIR", lambda text: text if os.path.isdir(text) else "")
"""The folder for this user's sockets on this host; "" if there is none."""
java_home = Variable("JAVA_HOME", str)
"""Where Java is, if the user says so; "" otherwise."""
python_path = Variable("PYTHONPATH", str)
"""Where this process and those that it starts look for modules first."""

# --- what a launcher says to a rank -------------------------------------------------------------------

batch_job = Variable("SLURM_JOB_ID", str)
"""The number of the Slurm job around this process; "" outside of one."""
member_file = Variable("WORKBENCH_MEMBER", str)
"""The file in which the process of this rank that calls ``init()`` says so, for the launcher; "" for none."""
check_folder = Variable("WORKBENCH_CHECK", str)
"""The folder where a rank writes down its first steps, for ``workbench run --check``; "" for none."""
watch_folder = Variable("WORKBENCH_WATCH", str)
"""Where ranks write the calls of torch's groups, which are watched then; "" where nobody has asked for it."""
takes_torch_groups = Variable("WORKBENCH_C10D", lambda text: text not in ("", "0"))
"""Are groups of torch that ask for another backend to get the workbench's? ``workbench run --as-ddp`` says so."""
unbound = Variable("WORKBENCH_UNBOUND", str)
"""Why the launcher has not bound this rank to cores; "" where it has, or is none of ours."""
host_address = Variable("WORKBENCH_HOST_ADDRESS", str)
"""This host's address by which the others of the job reach it; "" if the launcher says none."""
fork_of = Variable("WORKBENCH_FORK_OF", lambda text: _numbers(text) or (0, 0))
"""The fork of a fork server that this process is, or that has started it, and the process that stands for it."""
rank_here = Variable("WORKBENCH_RANK_HERE", _numbers)
"""The process and the rank of ``set_rank_here``, in this process or in one that has started it."""
log_server = Variable("WORKBENCH_RAY_LOG", _log_server)
"""Address, port and secret, as ``log_server_variables`` has said them; None if nobody has."""
