"""What joins and leaves a job, beside threads and forks."""

from __future__ import annotations

import os
import signal
import threading

import pytest

import workbench as hvd
from workbench import config
from workbench.errors import LaunchError
from workbench.job import api


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_forked_amid_a_shutdown_ends() -> None:
    """The thread that leaves the job, or joins it, is not in the child, and the child does not wait for it."""
    held, over = threading.Event(), threading.Event()

    def leave() -> None:
        with api._one_thread():
            held.set()
            over.wait()

    hvd.init()
    thread = threading.Thread(target=leave)
    thread.start()
    held.wait()
    try:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            hvd.shutdown()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        over.set()
        thread.join()
        hvd.shutdown()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("launched", [False, True])
def test_a_child_of_a_rank_cannot_join_unless_the_rank_is_alone(
    launched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher's environment is that of one rank. Without one, a child begins a job of its own, as any process."""
    for name, text in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        if launched:
            monkeypatch.setenv(name, text)
    hvd.init()
    try:
        assert (config.rank_here() == (os.getpid(), 0)) is launched
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            try:
                hvd.init()
                os._exit(1 if launched else hvd.rank())
            except LaunchError as error:
                os._exit(0 if launched and "forked from rank 0 and is not a rank" in str(error) else 2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        hvd.shutdown()
    assert config.rank_here() is None
