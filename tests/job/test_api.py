"""What joins and leaves a job, beside threads and forks."""

from __future__ import annotations

import os
import signal
import threading

import pytest

import workbench as hvd
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
