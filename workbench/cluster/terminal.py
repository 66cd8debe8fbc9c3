"""``workbench watch``: the ranks of a notebook's cluster, in a terminal on the notebook's machine."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from workbench.cluster.panel.feed import Feed
from workbench.cluster.panel.show import print_tables
from workbench.errors import LaunchError
from workbench.launch.ranks.job_folder import BEGINS

_CONNECTION = Path("profile", "security", "ipcontroller-client.json")
_TIMEOUT_S = 10.0


def clusters(parent: Path | None = None) -> dict[str, Path]:
    """This user's clusters on this machine: by the end of their folder's name, where their hub is written down."""
    found = {}
    for folder in sorted((parent or Path(tempfile.gettempdir())).glob(f"{BEGINS}*")):
        connection = folder / _CONNECTION
        if folder.lstat().st_uid == os.getuid() and connection.is_file():
            found[folder.name.removeprefix(BEGINS)] = connection
    return found


def chosen(name: str, there: dict[str, Path]) -> Path:
    """The cluster of that name, or the only one.

    Raises:
        LaunchError: there is none, or there are several and none is named.

    Example:
        >>> chosen("", {"a1": Path("a"), "b2": Path("b")})
        Traceback (most recent call last):
        workbench.errors.LaunchError: 2 clusters of yours run here. Name one: workbench watch a1, b2
    """
    if not there:
        raise LaunchError("No cluster of a notebook of yours runs on this machine: cluster.up() starts one.")
    if name and name not in there:
        raise LaunchError(f"There is no cluster {name!r}; there are: {', '.join(there)}")
    if not name and len(there) > 1:
        raise LaunchError(f"{len(there)} clusters of yours run here. Name one: workbench watch {', '.join(there)}")
    return there[name or next(iter(there))]


def main(words: Sequence[str] | None = None) -> int:
    """Print tables until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="workbench watch")
    parser.add_argument("cluster", nargs="?", default="")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--stacks", action="store_true")
    args = parser.parse_args(words)
    from ipyparallel.error import TimeoutError as NoAnswerError

    from workbench.cluster.ipyparallel_internals import Client

    connection = chosen(args.cluster, clusters())
    try:
        client = Client(str(connection), timeout=_TIMEOUT_S)
    except NoAnswerError:
        raise LaunchError("The cluster does not answer: its notebook may have ended.") from None
    feed = Feed(client, client.ids)
    print_tables(feed, rounds=1 if args.once or args.stacks else 0)
    for lines in feed.stack_lines() if args.stacks else ():
        print(lines)
    client.close()
    return 0
