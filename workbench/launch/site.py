"""``workbench.toml``: the settings of a site, such as a course or a cluster, written once by its administrator.

It is looked for where ``WORKBENCH_SITE`` says, else in the working folder and in the folders above it. Without one,
everything has its default.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from workbench import config
from workbench.errors import LaunchError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "workbench.toml"
ENGINES = 2


@dataclass(frozen=True)
class Site:
    """A site file's contents.

    Args:
        engines: how many ranks ``cluster.up()`` starts by itself.
        most_engines: it starts no more than these, whatever a notebook asks for; 0: no limit.
        hosts: where ``cluster.up()`` starts engines when a notebook names neither hosts nor Slurm: ``a:4``.
        interface: the network's, by which hosts reach each other; "": it is found.
        partition, account, reservation: in which ``cluster.up(slurm=…)`` and ``workbench slurm`` ask Slurm for hosts.
        modules: to load before a job on hosts.
        path: of the file; "" if there is none.
    """

    engines: int = ENGINES
    most_engines: int = 0
    hosts: tuple[str, ...] = ()
    interface: str = ""
    partition: str = ""
    account: str = ""
    reservation: str = ""
    modules: tuple[str, ...] = ()
    path: str = ""


_KEYS = tuple(field.name for field in fields(Site) if field.name != "path")


def read(folder: Path | None = None, env: Mapping[str, str] | None = None) -> Site:
    """The site that a process in ``folder`` is at; the defaults where there is no file.

    Args:
        folder: default: the working folder.
        env: default: the process environment.

    Raises:
        LaunchError: the file that ``WORKBENCH_SITE`` names is not there, or a file is not as it should be.
    """
    path = find(folder or Path.cwd(), config.site_file(env))
    if path is None:
        return Site()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"The site file {path} cannot be read: {error}.") from error
    return parse(text, str(path))


def find(folder: Path, named: str = "") -> Path | None:
    """Where the site file is: the one that is named, else the nearest in ``folder`` and above it.

    Raises:
        LaunchError: the one that is named does not exist.
    """
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise LaunchError(f"WORKBENCH_SITE={named!r} is not a file. Set it to a {NAME}, or unset it.")
        return path
    folder = folder.resolve()
    return next((one / NAME for one in (folder, *folder.parents) if (one / NAME).is_file()), None)


def parse(text: str, path: str = NAME) -> Site:
    r"""A site from the text of its file.

    Raises:
        LaunchError: it is not TOML, a key is unknown, or a value is of another type than it should be.

    Example:
        >>> parse('engines = 4\nmodules = ["gcc", "openmpi"]').modules
        ('gcc', 'openmpi')
        >>> parse('partion = "gpu"')
        Traceback (most recent call last):
        workbench.errors.LaunchError: workbench.toml: partion is not a known key. The keys are: engines, ...
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LaunchError(f"{path} is not TOML: {error}.") from None
    if unknown := sorted(found.keys() - set(_KEYS)):
        raise LaunchError(f"{path}: {unknown[0]} is not a known key. The keys are: {', '.join(_KEYS)}.")
    return Site(**{key: _checked(path, key, value) for key, value in found.items()}, path=path)


def _checked(path: str, key: str, value: Any) -> Any:
    if key in ("engines", "most_engines"):
        least = 1 if key == "engines" else 0
        if type(value) is int and value >= least:  # True is an int as well
            return value
        wanted = f"a whole number, {least} or more"
    elif key in ("modules", "hosts"):
        if isinstance(value, list) and all(isinstance(one, str) and one for one in value):
            return tuple(value)
        wanted = "a list of names: " + ('["gcc", "openmpi"]' if key == "modules" else '["node1:4", "node2:4"]')
    else:
        if isinstance(value, str):
            return value
        wanted = "a text in quotes"
    raise LaunchError(f"{path}: {key} = {value!r}, but it must be {wanted}.")
