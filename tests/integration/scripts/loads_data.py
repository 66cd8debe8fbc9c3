"""Workers that begin by each start method after init(), of a pool or a DataLoader; one tries a collective and init().

The script is its own master in what a program may set: the default start method, and handlers of signals.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable
from types import FrameType

import numpy as np

import workbench as hvd
from workbench.errors import WorkbenchError

came = []


def note(number: int, frame: FrameType | None) -> None:
    """Its own handler of a signal."""
    came.append(number)


class Numbers:
    """Its number 7 asks for what only a rank may do."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> int:
        if i == 7:
            how = multiprocessing.get_start_method() if multiprocessing.parent_process() else "main"
            for call in (lambda: hvd.allreduce(np.ones(2)), hvd.init):
                try:
                    call()
                except WorkbenchError as error:
                    print(f"{how}: {type(error).__name__}: {error}", flush=True)
        return i


def loaded(method: str, workers: int) -> Iterable[int]:
    """The sums of batches."""
    if sys.argv[1] == "DataLoader":
        from torch.utils.data import DataLoader

        loader = DataLoader(Numbers(), batch_size=4, num_workers=workers, multiprocessing_context=method)
        return [int(batch.sum()) for batch in loader]
    pool = multiprocessing.get_context(method).Pool(workers)
    found = pool.map(Numbers().__getitem__, range(12))
    pool.close()  # its end by SIGTERM would only be noted by forked workers
    pool.join()
    return [sum(found[i : i + 4]) for i in (0, 4, 8)]


def main() -> None:
    """Load by each method."""
    multiprocessing.set_start_method("spawn")
    signals = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT
    for each in signals:
        signal.signal(each, note)
    hvd.init()
    for method, workers in {"fork": 2, "spawn": 1, "forkserver": 1}.items():
        seen = sum(hvd.allreduce(np.array(each), op=hvd.Sum).item() for each in loaded(method, workers))
        assert seen == hvd.size() * sum(range(12)), seen
    for each in signals:
        assert signal.getsignal(each) is note, each
        os.kill(os.getpid(), each)
        assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [hvd.size()] * 2
    assert came == list(signals), came
    assert multiprocessing.get_start_method() == "spawn"
    hvd.shutdown()
    print("came to the end")


if __name__ == "__mp_main__":  # what a script without the next line does when a worker imports it
    try:
        hvd.init()
    except WorkbenchError as error:
        print(f"import: {type(error).__name__}: {error}", flush=True)
if __name__ == "__main__":
    main()
