"""The environment of a rank on the agent's own host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from workbench.launch.slurm.allocation import JobGpus, by_slurm
from workbench.launch.start import mpi
from workbench.launch.start.gpus import pin
from workbench.launch.start.starters import THREADS

# What belongs to a host or a login, and is no other host's.
_OWN = ("HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "TMPDIR", "PWD", "OLDPWD", "DISPLAY")
_OWN_BEGIN = ("SSH_", "XDG_", "DBUS_")
# What a batch system gives to this host. Where there is none, the launcher's holds for all hosts.
_GIVEN = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURMD_NODENAME")


def environment_here(about: Mapping[str, Any], n: int) -> dict[str, str]:
    """The launcher's environment, with what is this host's own.

    Args:
        about: ``env``, ``threads``, ``gpus`` and ``slurm``, see :class:`~workbench.launch.hosts.agent.Agent`.
        n: how many ranks share the cores.
    """
    env = {name: text for name, text in about["env"].items() if not _is_own(name)}
    env |= {name: text for name, text in os.environ.items() if _is_own(name) or name in _GIVEN}
    if not about["threads"]:
        env |= dict.fromkeys(THREADS, str(mpi.threads_per_rank(n)))
    return env | (dict(pin(n, about["gpus"]).env) if about["gpus"] else by_slurm(n, JobGpus(**about.get("slurm", {}))))


def _is_own(name: str) -> bool:
    return name in _OWN or name.startswith(_OWN_BEGIN)
