"""Writes checkpoints until it is killed: ``python checkpoint_writer.py FOLDER RANKS MIB``.

Says ``from STEP`` where it begins, and ``whole NUMBER`` for each checkpoint that is announced as whole. Each array
holds its step in every place, so a mixture of two steps is seen.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from workbench import elastic
from workbench.elastic import ObjectState
from workbench.job import api
from workbench.job.objects import broadcast_object


def main() -> None:
    """Train for ever."""
    folder, ranks, numbers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) << 17
    api.run_threads(ranks, lambda: rank(folder, numbers), timeout_s=300.0)


def rank(folder: str, numbers: int) -> None:
    """One rank's training."""
    api.init()
    state: Any = ObjectState(
        broadcast_object, api.rank, step=0, large=np.zeros(numbers), small=np.zeros(3, np.float32), words=["0"]
    )
    checkpoints = state.checkpoint(folder)

    @elastic.run
    def train(state: Any) -> None:
        if api.rank() == 0:
            print("from", state.step, flush=True)
        said = checkpoints.newest
        while True:
            state.step += 1
            state.large[:] = state.step
            state.small[:] = state.step
            state.words = [str(state.step)]
            state.commit()
            if api.rank() == 0 and checkpoints.newest != said:
                said = checkpoints.newest
                print("whole", said, flush=True)
            time.sleep(0.001)

    train(state)


if __name__ == "__main__":
    main()
