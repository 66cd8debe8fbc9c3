"""What a script does that nobody launched, and what it may not do before init()."""

import numpy as np

import workbench as hvd
from workbench.errors import NotInitializedError

before_init = []
for call in (hvd.rank, hvd.size, hvd.local_rank, hvd.barrier, lambda: hvd.allreduce(np.ones(2))):
    try:
        call()
    except NotInitializedError as error:
        before_init.append(isinstance(error, ValueError) and "init()" in str(error))
assert before_init == [True] * 5, before_init
assert not hvd.is_initialized()
hvd.shutdown()
hvd.init()
print("rank", hvd.rank(), "of", hvd.size(), hvd.allreduce(np.arange(3.0), op=hvd.Sum).tolist())
hvd.barrier()
