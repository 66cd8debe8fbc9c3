"""Elastic training with PyTorch: ``hvd.elastic.run``, ``TorchState`` and ``ElasticSampler``.

::

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0)

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, epochs):
            for x, y in loader:
                optimizer.zero_grad()
                loss_of(model(x), y).backward()
                optimizer.step()
                state.sampler.record_batch(0, len(x))
                state.commit()
            state.sampler.set_epoch(state.epoch + 1)

    train(state)

The loop itself, and which error leads where, is in :mod:`workbench.elastic`. With ``run(exact=True)`` the
weights do not depend on the number of ranks, nor on deaths: see :mod:`workbench.torch.elastic.exact`.
"""

from workbench.elastic import HostsUpdatedInterrupt, run
from workbench.elastic.exact import ShardBatches
from workbench.torch.elastic.sampler import ElasticSampler
from workbench.torch.elastic.state import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateDictHandler,
    StateHandler,
    TorchState,
    get_handler_registry,
    set_handler_registry,
)
from workbench.torch.elastic.stored import read_checkpoint

__all__ = [
    "ElasticSampler",
    "HostsUpdatedInterrupt",
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "ShardBatches",
    "StateDictHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "read_checkpoint",
    "run",
    "set_handler_registry",
]
