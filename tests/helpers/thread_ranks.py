"""Ranks that are threads of the test's process: each test in a job of its own, in the same functions as under mpiexec.

``tests/parallel/conftest.py`` uses it where ``WORKBENCH_TEST_THREADS`` says how many ranks there are. They share memory
as ranks of one machine do. What could tell runs in each of :data:`WORLDS`, two machines of two ranks among them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import workbench as hvd
from workbench import config
from workbench.config import Settings
from workbench.core.backend.base import Backend
from workbench.core.messages import Raised
from workbench.job.context import HOLDER
from workbench.job.start import start
from workbench.runtime.trace.timeline import begin_timeline
from workbench.transport.host.threads import Mailboxes, ThreadBootstrap, ThreadLink, spawn
from workbench.transport.links import link_backend
from workbench.transport.select import with_shared_memory

SIZE = int(os.environ.get("WORKBENCH_TEST_THREADS", "0"))
IN_MEMORY = "in memory"
WORLDS: dict[str, tuple[int, int, dict[str, str]]] = {
    IN_MEMORY: (SIZE, 1, {}),
    "two hosts": (4, 2, {}),
    "over links": (SIZE, 1, {"WORKBENCH_BACKEND": "mpi"}),
}
"""How many ranks, on how many machines, with which settings."""
ELSEWHERE = {
    "test_scaling.test_prescale": ("two hosts", "over links"),
    "test_scaling.test_postscale": ("two hosts",),
    "test_sharded_ranks.test_clipping": ("over links",),
}
"""Files, or tests of a file, that run in these worlds, too."""
TIMEOUT_S = 50.0  # less than a test's, so that a rank that hangs is named

DRAWS = [
    *((torch, name) for name in ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial")),
    *((torch.Tensor, f"{name}_") for name in ("uniform", "normal", "random", "bernoulli", "exponential", "geometric")),
    *((torch.Tensor, f"{name}_") for name in ("log_normal", "cauchy")),
]
"""What draws; torch.nn.init calls these."""


def own(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a rank draws without a generator comes from its own: torch's is the whole process's."""

    def drawn(*args: Any, **kwargs: Any) -> Any:
        if MINE.draws is not None and kwargs.get("generator") is None:
            kwargs["generator"] = MINE.draws
        return function(*args, **kwargs)

    return drawn


class _Mine(threading.local):
    """A rank's own: its random numbers, and the world that it is in."""

    draws: torch.Generator | None = None
    world: World | None = None


MINE = _Mine()


class World:
    """The job of n threads, and those that follow it in the same test."""

    def __init__(self, n: int, hosts: int, mailboxes: Mailboxes) -> None:
        self.n, self.hosts, self.mailboxes = n, hosts, mailboxes
        self.failures: list[int] = []
        self._meet = threading.Barrier(n)

    def begin(self, rank: int) -> None:
        """Join the job, with the settings that the environment has."""
        bootstrap = ThreadBootstrap(self.mailboxes, rank)
        bootstrap.node = f"threads{rank * self.hosts // self.n}"
        HOLDER.set(start(bootstrap, config.settings(), begin_timeline), thread_only=True)

    def again(self, rank: int, settings: Mapping[str, str]) -> None:
        """Leave the job together, and begin another with these settings."""
        self.leave()
        if self._meet.wait(TIMEOUT_S) == 0:
            self.mailboxes = Mailboxes(self.n, TIMEOUT_S)
            os.environ.update(settings)
        self._meet.wait(TIMEOUT_S)
        self.begin(rank)

    def leave(self) -> None:
        """Leave it."""
        context = HOLDER.get()
        context.finish_all()
        HOLDER.set(None, thread_only=True)
        context.leave(context.settings.shutdown_timeout_s)

    def wait_for_all(self) -> None:
        """Until all ranks have come here, and each knows of the failures of which another has been told."""
        engine = HOLDER.get().engine
        self._meet.wait(TIMEOUT_S)
        self.failures.append(engine.failures)
        self._meet.wait(TIMEOUT_S)
        until = time.monotonic() + TIMEOUT_S
        while engine.failures < max(self.failures):
            assert time.monotonic() < until, f"this rank knows of {engine.failures} failures of {self.failures}"
            time.sleep(0.005)

    def give_up(self) -> None:
        """Nobody waits any longer for this rank, whose test has failed."""
        self._meet.abort()


def _connect(bootstrap: ThreadBootstrap, settings: Settings) -> Backend:
    flat = link_backend(bootstrap.mailboxes.link(bootstrap.rank))
    if bootstrap.size == 1 or settings.backend not in ("auto", "shm"):
        return flat
    nodes = bootstrap.exchange(bootstrap.node)
    here = SimpleNamespace(rank=bootstrap.rank, size=bootstrap.size, node=bootstrap.node, exchange=bootstrap.exchange)
    return with_shared_memory(flat, here, nodes, settings)


def run(n: int, function: Callable[[int], object], hosts: int = 1) -> None:
    """Call ``function(rank)`` on each of n ranks; the first that raises ends the others' waits, and is raised here."""
    first: list[BaseException] = []
    made: list[World] = []
    lock = threading.Lock()

    def rank(link: ThreadLink) -> None:
        with lock:
            if not made:
                made.append(World(n, hosts, link.mailboxes))
        MINE.world = made[0]
        MINE.draws = torch.Generator().manual_seed(link.rank)
        made[0].begin(link.rank)
        try:
            function(link.rank)
        except BaseException as error:
            first.append(error)
            made[0].give_up()
            if context := HOLDER.own():
                context.engine.report(Raised(link.rank, repr(error)))
            raise
        finally:
            if HOLDER.own():
                made[0].leave()

    with ExitStack() as patches:
        patches.enter_context(mock.patch("workbench.transport.host.threads.connect", _connect))
        patches.enter_context(mock.patch("torch.manual_seed", lambda seed: MINE.draws.manual_seed(seed)))
        for owner, name in DRAWS:
            patches.enter_context(mock.patch.object(owner, name, own(getattr(owner, name))))
        try:
            spawn(n, rank, TIMEOUT_S)
        except BaseException:
            if first:
                raise first[0] from None
            raise


class Ranks:
    """A plug-in of pytest: each test runs on as many threads as it needs, and on those of its world at least."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Once in memory, and in other worlds where its file is to run there."""
        file = metafunc.module.__name__.rpartition(".")[2]
        worlds = [IN_MEMORY, *ELSEWHERE.get(file, ELSEWHERE.get(f"{file}.{metafunc.function.__name__}", ()))]
        metafunc.parametrize("ranks_world", worlds, indirect=True, ids=[pytest.HIDDEN_PARAM, *worlds[1:]])

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what is marked for processes."""
        others = [item for item in items if item.get_closest_marker("processes")]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if not item.get_closest_marker("processes")]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool:
        """On each rank, with its own ``rank`` and ``tmp_path``."""
        given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        chosen = pyfuncitem.callspec.params if hasattr(pyfuncitem, "callspec") else {}  # a test's own, of this name

        def one(rank: int) -> None:
            mine = dict(given)
            if "rank" in mine and "rank" not in chosen:
                mine["rank"] = rank
            if "tmp_path" in mine:
                mine["tmp_path"] = Path(mine["tmp_path"], f"rank{rank}")
                mine["tmp_path"].mkdir()
            hvd.barrier()
            pyfuncitem.obj(**mine)

        run(size(pyfuncitem), one, WORLDS[world(pyfuncitem)][1])
        return True


def size(item: pytest.Item) -> int:
    """How many ranks a test runs on."""
    mark, least = item.get_closest_marker("ranks"), WORLDS[world(item)][0]
    return max(least, 4 if mark is not None and mark.args[0] > least and mark.args[0] > 2 else 0)


def world(item: pytest.Item) -> str:
    """In which world a test runs."""
    return str(item.callspec.params["ranks_world"])  # type: ignore[attr-defined]


def begin(settings: Mapping[str, str]) -> None:
    """On a rank: another job. Beside the ranks, in a fixture: the one that the test begins with."""
    if HOLDER.own() is None:
        os.environ.update(settings)
        return
    MINE.world.again(hvd.rank(), settings)


def wait_for_all() -> bool:
    """As :func:`all_ranks.wait_for_all` among threads; False on a rank that is a process."""
    if MINE.world is None:
        return False
    MINE.world.wait_for_all()
    return True


__all__ = ["IN_MEMORY", "SIZE", "WORLDS", "Ranks", "begin", "run", "size", "wait_for_all"]
