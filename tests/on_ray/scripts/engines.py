"""A driver that does as a notebook does: engines in Ray's places. It says what it finds, one line of JSON each."""

from __future__ import annotations

import json
import sys
from typing import Any

import ray

from workbench import cluster
from workbench.errors import LaunchError


def whole() -> Any:
    """What an engine knows of the job."""
    import socket

    import numpy as np

    import workbench as hvd

    hvd.init()
    total = hvd.allreduce(np.array([float(hvd.rank())]), op=hvd.Sum, name="ranks")[0]
    return hvd.rank(), hvd.size(), hvd.local_rank(), socket.gethostname(), float(total)


def say(name: str, found: Any) -> None:
    """One line."""
    print(json.dumps({name: found}), flush=True)


def main() -> None:
    """Start, use, lose and rescue engines."""
    try:
        cluster.up(4, ray={}, quiet=True)
    except LaunchError as error:
        say("early", str(error))
    ray.init(address="auto", log_to_driver=False)
    c = cluster.up(4, ray={}, quiet=True)
    say("engines", c.view.apply_sync(whole))
    say("same", cluster.up(4, ray={}, quiet=True) is c)
    cluster.down()
    say("after down", [held.line() for held in cluster.places.held()])
    c = cluster.up(4, ray={}, quiet=True)
    say("again", c.view.apply_sync(whole))
    sys.stdin.readline()  # a node is killed meanwhile
    try:
        c.view.apply_sync(whole)
    except Exception as error:  # noqa: BLE001 - ipyparallel's
        say("lost", f"{type(error).__name__}: {error}")
    cluster.rescue()
    say("rescued", c.view.apply_sync(whole))
    cluster.release()
    say("released", len(cluster.places.held()))


if __name__ == "__main__":
    main()
