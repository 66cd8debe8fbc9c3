"""``workbench.timeline()`` in the kernel: the engines' records through the client, with a deadline."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import eventually

import workbench
from workbench import cluster
from workbench.errors import DeadlineError, NotInitializedError, PeerLostError

pytestmark = [pytest.mark.usefixtures("forked_engines"), pytest.mark.integration, pytest.mark.parallel]

STEP = """
import time
import numpy as np
import workbench as hvd

hvd.init()
if hvd.rank() == 1:
    time.sleep(1.0)
hvd.allreduce(np.ones(1000), name="x")
"""


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster.Cluster]:
    """Two engines for all tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        with cluster.up(2, quiet=True) as running:
            yield running


def test_before_init_the_engines_are_named(engines: cluster.Cluster) -> None:
    """Where init() was not called there is nothing to draw, and who has not called it is said."""
    with pytest.raises(NotInitializedError, match="ranks 0, 1 did not"):
        workbench.timeline()


def test_the_kernel_draws_what_the_engines_did(engines: cluster.Cluster) -> None:
    """The picture of the last cell, and the same in a cell of the engines themselves."""
    engines.view.execute(STEP).get(30)
    picture = workbench.timeline(last=1)
    assert [bar.names for track in picture.tracks for bar in track.bars] == [("allreduce.x",)] * 2
    assert 0.2 < picture.waited_s[1] < 30
    engines.view.execute("drawn = hvd.timeline(last=1).svg").get(30)
    assert engines.view["drawn"] == [picture.svg] * 2


def test_a_busy_engine_is_a_deadline(engines: cluster.Cluster, tmp_path: Path) -> None:
    """An engine whose cell still runs is named after the deadline; afterwards it answers again."""
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)"
    busy = engines.client[1].execute(wait, block=False)
    with pytest.raises(DeadlineError, match=r"rank 1 did not answer within 0\.5 s"):
        workbench.timeline(timeout_s=0.5)
    (tmp_path / "go").touch()
    busy.get(45)
    workbench.timeline()


def test_a_rank_that_died_is_named(engines: cluster.Cluster) -> None:
    """An engine that is gone is an error at once, with its rank and the cure."""
    os.kill(engines.pids()[1], signal.SIGKILL)
    eventually(lambda: 1 not in engines.client.ids)
    with pytest.raises(PeerLostError, match=r"ranks? (0, )?1\..*rescue"):
        workbench.timeline()


def test_after_down_there_is_none(engines: cluster.Cluster) -> None:
    """Without the cluster the kernel has nothing to ask."""
    engines.down()
    with pytest.raises(NotInitializedError):
        workbench.timeline()
