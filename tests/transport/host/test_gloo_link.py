"""Gloo's Link: what is left of a message that nobody waits for any more."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import numpy as np
import pytest

from workbench.errors import PeerLostError

torch = pytest.importorskip("torch")
dist = torch.distributed


def test_a_late_message_is_not_written_into_the_callers_array() -> None:
    """The wait was broken off, for the job had ended; Gloo itself goes on waiting, and takes what comes."""
    from workbench.transport.host.gloo import GlooLink

    store, links = dist.HashStore(), {}

    def join(rank: int) -> None:
        group = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=20))
        links[rank] = GlooLink(group, rank, 2, timeout_s=20.0)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)

    def ended() -> None:
        raise PeerLostError("Rank 2 was lost.")

    array = np.zeros(1000)
    links[0].tick = ended
    with pytest.raises(PeerLostError):
        links[0].sendrecv(None, 1, array, 1)
    array[:] = 7.0
    links[1].sendrecv(np.full(1000, 2.0), 0, None, 0)
    time.sleep(0.5)
    assert (array == 7.0).all()
    for link in links.values():
        link.close(clean=False)
