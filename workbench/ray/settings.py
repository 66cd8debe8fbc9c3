"""What an executor is told besides who runs where. The names are Horovod's; nothing here uses ssh."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Func = Callable[..., Any]
Args = Sequence[Any] | None
Kwargs = Mapping[str, Any] | None
Executable = tuple[Func | None, Args, Kwargs]  # what ranks keep, and its arguments
Callbacks = Sequence[Callable[[Any], Any]] | None


@dataclass
class MiniSettings:
    """Of a :class:`workbench.ray.RayExecutor`.

    Args:
        nics: names of interfaces, of which the first that a node has is used; by default the one that Ray uses.
        verbose: 1 or more: say what is started.
        timeout_s: deadline until all ranks have started, and again until they have met in ``init()``.
        placement_group_timeout_s: deadline until Ray has placed them.
        ssh_port, ssh_identity_file, key: Horovod's; not used.
        elastic: set by the executor.
    """

    nics: Iterable[str] | str | None = None
    verbose: int = 1
    key: bytes | None = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    timeout_s: float = 300
    placement_group_timeout_s: float = 100
    elastic: bool = False

    def interfaces(self) -> list[str]:
        """The names in ``nics``.

        Example:
            >>> MiniSettings(nics="eth0,eth1").interfaces(), MiniSettings().interfaces()
            (['eth0', 'eth1'], [])
        """
        if isinstance(self.nics, str):
            return [name.strip() for name in self.nics.split(",") if name.strip()]
        return sorted(self.nics or ())


@dataclass
class ElasticSettings(MiniSettings):
    """Of a :class:`workbench.ray.ElasticRayExecutor`.

    Args:
        discovery: has ``find_available_hosts_and_slots()``, which says how many slots each node has, by its address.
        min_num_proc, max_num_proc: with so many ranks the job goes on; None: as many as there are slots.
        num_proc: with so many it begins; None: ``min_num_proc``.
        reset_limit: so many epochs after the first; None: any number.
        elastic_timeout: so long it waits for ``min_num_proc`` ranks, in seconds.
        cooldown_range: the shortest and the longest rest of a host after a failure, in seconds.
        output_filename, prefix_output_with_timestamp: see :func:`workbench.run`.
    """

    discovery: Any = None
    min_num_proc: int = 1
    max_num_proc: int | None = None
    num_proc: int | None = None
    reset_limit: int | None = None
    elastic_timeout: float = 600
    cooldown_range: tuple[float, float] | None = None
    output_filename: str = ""
    prefix_output_with_timestamp: bool = False
    elastic: bool = True


def elastic_settings(
    min_num_proc: int = 1,
    max_num_proc: int | None = None,
    reset_limit: int | None = None,
    elastic_timeout: float = 600,
    timeout_s: float = 30,
    ssh_identity_file: str | None = None,
    nics: Iterable[str] | str | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    **kwargs: Any,
) -> ElasticSettings:
    """Settings of an elastic job, see :class:`ElasticSettings`; ``min_np`` and ``max_np`` are older names.

    Example:
        >>> elastic_settings(2, 4, verbose=2).max_num_proc
        4
    """
    for old, new in ((min_np, "min_num_proc"), (max_np, "max_num_proc")):
        if old is not None:
            warnings.warn(f"{new[:3]}_np is deprecated: use {new}.", DeprecationWarning, stacklevel=3)
    found = {
        "min_num_proc": min_num_proc if min_np is None else min_np,
        "max_num_proc": max_num_proc if max_np is None else max_np,
        "reset_limit": reset_limit,
        "elastic_timeout": elastic_timeout,
        "timeout_s": timeout_s,
        "ssh_identity_file": ssh_identity_file,
        "nics": nics,
    }
    return ElasticSettings(**{**found, **kwargs})


def check_gpus(use_gpu: bool, gpus: float | None, name: str) -> None:
    """See to it that both say the same.

    Raises:
        ValueError: they do not.
    """
    if gpus and not use_gpu:
        raise ValueError(f"{name}={gpus} is set, but use_gpu is False: set it to True.")
    if use_gpu and gpus is not None and gpus <= 0:
        raise ValueError(f"{name}={gpus} must be more than 0 with use_gpu.")


def renamed(old: str, found: T | None, new: str, value: T) -> T:
    """The value of an argument that had another name once, and may still be given by it."""
    if found is None:
        return value
    warnings.warn(f"{old} is {new} now.", DeprecationWarning, stacklevel=3)
    return found


def own_discovery(settings: Any) -> Any:
    """The discovery that the user has given.

    Raises:
        ValueError: there is none.
    """
    if (found := getattr(settings, "discovery", None)) is None:
        raise ValueError("override_discovery=False needs settings.discovery, which finds the hosts.")
    return found
