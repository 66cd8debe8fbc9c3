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

from workbench.elastic import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from workbench.elastic import run as run
from workbench.elastic.exact import ShardBatches as ShardBatches
from workbench.torch.elastic.handlers import ModelStateHandler as ModelStateHandler
from workbench.torch.elastic.handlers import OptimizerStateHandler as OptimizerStateHandler
from workbench.torch.elastic.handlers import SamplerStateHandler as SamplerStateHandler
from workbench.torch.elastic.handlers import StateDictHandler as StateDictHandler
from workbench.torch.elastic.handlers import StateHandler as StateHandler
from workbench.torch.elastic.handlers import get_handler_registry as get_handler_registry
from workbench.torch.elastic.handlers import set_handler_registry as set_handler_registry
from workbench.torch.elastic.sampler import ElasticSampler as ElasticSampler
from workbench.torch.elastic.state import TorchState as TorchState
from workbench.torch.elastic.stored import read_checkpoint as read_checkpoint
