"""A DataLoader with two worker processes, started by fork after init(); a worker tries a collective, too."""

import torch
from torch.utils.data import DataLoader, Dataset

import workbench.torch as hvd
from workbench.errors import WorkbenchError


class Numbers(Dataset):
    """Its number 7 asks for a collective."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> int:
        if i == 7:
            try:
                hvd.allreduce(torch.ones(2))
            except WorkbenchError as error:
                print(f"worker: {type(error).__name__}: {error}", flush=True)
        return i


hvd.init()
loader = DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork")
for _epoch in range(2):
    seen = 0
    for batch in loader:
        seen += hvd.allreduce(batch.sum(), op=hvd.Sum).item()
    assert seen == hvd.size() * sum(range(40)), seen
hvd.shutdown()
print("came to the end")
