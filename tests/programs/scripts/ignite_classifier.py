"""Ignite's distributed module with its Horovod backend, which makes loader, model and optimizer distributed."""

import ignite.distributed as idist
import torch
from ignite.engine import create_supervised_trainer


def training(local_rank):
    """What each rank runs."""
    torch.manual_seed(1 + idist.get_rank())
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 8, generator=draw), torch.randint(3, (64,), generator=draw)
    loader = idist.auto_dataloader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=False)
    model = torch.nn.Linear(8, 3)
    if idist.get_rank() == 0:  # the other ranks get these
        torch.nn.init.constant_(model.weight, 0.01)
        torch.nn.init.zeros_(model.bias)
    model = idist.auto_model(model)
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    trainer = create_supervised_trainer(model, optimizer, torch.nn.CrossEntropyLoss())
    trainer.run(loader, max_epochs=3)
    weight = float(model.weight.detach().square().sum())
    assert idist.backend() == "horovod"
    print("RESULT", idist.get_world_size(), weight, flush=True)


with idist.Parallel(backend="horovod") as parallel:
    parallel.run(training)
