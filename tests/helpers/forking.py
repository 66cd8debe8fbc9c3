"""Engines as forks of a server that serves all workers of a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from workbench.launch.forks import find
from workbench.launch.forks.find import Forks
from workbench.launch.start import mpi


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Engines are forked, as users have them: a process costs a tenth of a second, also where it needs torch.

    The product's server ends with the last worker. This one has also imported torch's compiler, which the first
    optimizer of each engine would do, in four seconds of a core.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_FORK", "1")
        env, until = mpi.environment(1), time.monotonic() + 60
        while find.possible() and not Forks(env).found and time.monotonic() < until:
            find.start(find.path(env, find.ENGINES), env, (*find.ENGINES, "torch._dynamo"))
            time.sleep(0.1)
        yield
