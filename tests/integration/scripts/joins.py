"""Ranks with different numbers of batches, which call join() when they have no more."""

import numpy as np

import workbench as hvd

hvd.init()
rank, n = hvd.rank(), hvd.size()
for step in range(3 + 2 * rank):
    still_there = [r for r in range(n) if step < 3 + 2 * r]
    total = hvd.allreduce(np.full(2, rank + 1.0), op=hvd.Sum)
    assert total.tolist() == [sum(r + 1.0 for r in still_there)] * 2, (step, total)
    mean = hvd.allreduce(np.full(2, rank + 1.0), name="mean")
    assert mean.tolist() == [sum(r + 1.0 for r in still_there) / n] * 2, (step, mean)
last = hvd.join()
assert last == n - 1, last
assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [n] * 2
hvd.shutdown()
print("came to the end")
