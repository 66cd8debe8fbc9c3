"""Exact mode of a TorchState: ``hvd.elastic.run(exact=True)``. What it promises is in :mod:`workbench.elastic.exact`.

::

    samples = hvd.elastic.ShardBatches(data, shards=4, batch_size=16)

    @hvd.elastic.run(exact=True, shards=4)
    def train(state):
        while state.exact.step < steps:
            step = state.exact.step
            for shard in state.shards():
                x, y = data[samples(step, shard)]
                loss_of(model(x), y).backward()
            optimizer.step()
            state.commit()

Limits. What is drawn at random outside of ``state.shards()`` is not covered; it follows from (seed, step) only until
the first reset. The same bits need the same kind of CPU, torch version and number of threads on all ranks. On GPUs,
switch ``torch.use_deterministic_algorithms`` on; gradients are then reduced in the host's memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from workbench import config
from workbench.elastic.exact import newest, owners, seed_for
from workbench.job import api
from workbench.job.objects import broadcast_object
from workbench.torch.elastic.kept import is_sharded
from workbench.torch.elastic.shard_gradients import ShardGradients, distributed
from workbench.torch.optimizer import DistributedOptimizer
from workbench.torch.sync_batch_norm import SyncBatchNorm
from workbench.torch.tensors import view


class Trained(Protocol):
    """What exact mode needs of a :class:`~workbench.torch.elastic.state.TorchState`."""

    def _handled(self) -> Iterable[Any]: ...
    def restore(self) -> None: ...
    def _broadcast_from(self, root: int) -> None: ...
    def _save_here(self) -> None: ...


class Exact:
    """The logical shards of a training.

    Args:
        state: what is trained.
        shards: how many; None: the job's most ranks (``--max-np``), or else the ranks that there are now.
        seed: of the random state of all shards.

    Attributes:
        step: how many steps have begun, the present one included after its shards; 0 before the first.
        version: the number of this rank's last commit; -1 before the first sync.

    Raises:
        ValueError: the state has no DistributedOptimizer, or one that exact mode cannot order, SyncBatchNorm, or
            parameters that are DTensors.
    """

    def __init__(self, state: Trained, shards: int | None = None, seed: int = 0) -> None:
        self._state = state
        self.shards = shards or config.most_ranks() or api.size()
        self.seed = seed
        self.step = 0
        self.version = -1
        owners(self.shards, api.size())  # raises
        values = list(state._handled())
        optimizers = distributed(values)
        self._over: list[DistributedOptimizer] = []  # plain ones, as DDP has
        if not optimizers:
            self._over = [_reducing(each) for each in values if isinstance(each, torch.optim.Optimizer)]
            optimizers = self._over
        if not optimizers:
            raise ValueError("Exact mode: the state has no optimizer. Give it to TorchState(model, optimizer).")
        self._modules = [value for value in values if isinstance(value, torch.nn.Module)]
        for module in self._modules:
            if any(isinstance(one, (SyncBatchNorm, torch.nn.SyncBatchNorm)) for one in module.modules()):
                raise ValueError(
                    "Exact mode: SyncBatchNorm uses statistics of all ranks, and the number of ranks may change. Use "
                    "torch.nn.BatchNorm: its statistics belong to a shard."
                )
            if any(is_sharded(param) for param in module.parameters()):
                raise ValueError(
                    "Exact mode: a model's parameters are DTensors, as after fully_shard(), and a logical shard needs "
                    "them whole. Train with DDP, or without exact=True."
                )
        self._grads = [ShardGradients(each, self.shards, str(number)) for number, each in enumerate(optimizers)]
        for one, grads in zip(optimizers, self._grads, strict=True):
            one._distributed.exact = grads
            one._distributed.choose_source()
        self._store = ShardStore(self._buffers(), self.shards)
        self._saved: tuple[int, torch.Tensor] = (0, self._store.bytes.clone())
        self._loaded = False
        self._resident: int | None = None  # the shard whose buffers are in the modules

    @property
    def owned(self) -> range:
        return owners(self.shards, api.size())[api.rank()]

    def each(self) -> Iterator[int]:
        """See :meth:`TorchState.shards`."""
        own = self.owned
        for grads in self._grads:
            grads.begin(len(own))
        with _without_ddp():
            for shard in own:
                self._bring(shard)
                _seed(seed_for(self.seed, self.step, shard))
                for grads in self._grads:
                    grads.enter()
                yield shard
                for grads in self._grads:
                    grads.leave()
        for grads in self._grads:
            grads.end()
        _seed(seed_for(self.seed, self.step, self.shards))  # alike on all ranks from here on
        self.step += 1

    # --- commits --------------------------------------------------------------------------------------

    def exchange(self) -> None:
        """Tell each other the buffers of all shards; a commit's first part, and the only one that can fail."""
        self._put_back()
        if self._store.bytes.numel() and api.size() > 1:
            own = self.owned
            mine = self._store.bytes[own.start : own.stop]
            everything = api.allgather(view(mine), "elastic.exact.buffers")
            self._store.bytes.copy_(torch.from_numpy(everything))

    def keep(self) -> None:
        self._saved = (self.step, self._store.bytes.clone())

    def restore(self) -> None:
        self._abandon_step()
        self.step = self._saved[0]
        self._store.bytes.copy_(self._saved[1])
        self._resident = None

    def settle(self) -> None:
        """The buffers of shard 0 in the modules, on every rank. All ranks call it."""
        self.exchange()
        self._resident = None
        if self._store.bytes.numel():
            self._store.load(0, self._buffers())

    def sync(self) -> None:
        """Every rank gets the newest commit that a rank has; before the first one, rank 0's values."""
        self._abandon_step()
        state = self._state
        versions = api.allgather(np.array([self.version]), "elastic.exact.versions").tolist()
        root, all_have_it = newest(versions)
        if max(versions) >= 0 and self.version == max(versions):
            state.restore()
        if api.size() > self.shards and api.rank() == 0:
            logging.getLogger("workbench").warning(
                "exact: %d ranks share %d logical shards, so %d of them only help with the sum. Give run(shards=) a "
                "larger number.",
                *(api.size(), self.shards, api.size() - self.shards),
            )
        if all_have_it:
            return
        state._broadcast_from(root)
        words = (self.shards, self.seed, self.step, max(versions), len(self._store.bytes[0]))
        shards, seed, self.step, version, nbytes = broadcast_object(words, root, "elastic.exact.words")
        mine = (self.shards, self.seed, len(self._store.bytes[0]))
        if mine != (shards, seed, nbytes):
            raise ValueError(
                f"Exact mode: rank {api.rank()} has (shards, seed, bytes of buffers) {mine}, and rank {root} has "
                f"{(shards, seed, nbytes)}. Give run(exact=True, shards=, seed=) the same numbers on all ranks."
            )
        if version < 0 and not self._loaded:  # all shards begin with the buffers that rank 0 has
            self._store.fill(self._buffers())
        if nbytes:
            self._store.bytes.copy_(torch.from_numpy(api.broadcast(view(self._store.bytes), root, "elastic.exact.all")))
        self._resident = None
        self.version = max(version, 0)
        state._save_here()

    def state_dict(self) -> dict[str, Any]:
        """The last commit's part that belongs to the shards, for a checkpoint: the same on every rank."""
        step, buffers = self._saved
        return {"shards": self.shards, "seed": self.seed, "step": step, "buffers": buffers.clone()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there, on any number of ranks. Before the first sync rank 0's counts, as for all of the state.

        Raises:
            ValueError: it has another number of shards, another seed or other buffers.
        """
        mine = (self.shards, self.seed, tuple(self._store.bytes.shape))
        its = (state_dict["shards"], state_dict["seed"], tuple(state_dict["buffers"].shape))
        if mine != its:
            raise ValueError(
                f"Exact mode: this training has (shards, seed, shape of buffers) {mine}, the checkpoint has {its}. "
                "Give run(exact=True, shards=, seed=) the checkpoint's numbers."
            )
        self.step = state_dict["step"]
        self._loaded = True
        self._store.bytes.copy_(state_dict["buffers"])
        self._resident = None

    def _abandon_step(self) -> None:
        for optimizer in self._over:
            optimizer.abandon_step()

    # --- buffers --------------------------------------------------------------------------------------

    def _buffers(self) -> list[torch.Tensor]:
        return list({id(each): each for module in self._modules for each in module.buffers()}.values())

    def _bring(self, shard: int) -> None:
        """The shard's buffers into the modules; nothing to do where a rank has one shard."""
        if self._resident == shard or not self._store.bytes.numel():
            return
        self._put_back()
        self._store.load(shard, self._buffers())
        self._resident = shard

    def _put_back(self) -> None:
        if self._resident is not None:
            self._store.put(self._resident, self._buffers())


def _reducing(optimizer: torch.optim.Optimizer) -> DistributedOptimizer:
    """A DistributedOptimizer that reduces the gradients of a plain one before each of its steps."""
    over = DistributedOptimizer(optimizer)
    optimizer.register_step_pre_hook(lambda *_: None if over._distributed.replaced else over.synchronize())
    return over


@contextmanager
def _without_ddp() -> Iterator[None]:
    """Within it, DDP leaves gradients and buffers to the shards: it would mix those of several."""
    ddp = torch.nn.parallel.DistributedDataParallel

    def leave_out(module: torch.nn.Module, args: Any) -> None:
        if isinstance(module, ddp):
            module.require_backward_grad_sync = module.require_forward_param_sync = False

    if not torch.distributed.is_initialized():
        yield
        return
    with torch.nn.modules.module.register_module_forward_pre_hook(leave_out):
        yield


def _seed(number: int) -> None:
    """As torch.manual_seed, which also keeps a stack trace for each kind of device that is not in use yet."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


class ShardStore:
    """The buffers of all shards as rows of bytes; those of other ranks' shards as of the last exchange.

    Args:
        buffers: of the modules.
        shards: how many.
    """

    def __init__(self, buffers: list[torch.Tensor], shards: int) -> None:
        ends, end = [], 0
        for buffer in buffers:
            ends.append(end)
            end += -(-buffer.numel() * buffer.element_size() // 8) * 8  # so that each begins where its dtype may
        self.bytes = torch.zeros(shards, end, dtype=torch.uint8)
        self._views = [
            [
                row[start : start + buffer.numel() * buffer.element_size()].view(buffer.dtype).view(buffer.shape)
                for start, buffer in zip(ends, buffers, strict=True)
            ]
            for row in self.bytes
        ]
        self.fill(buffers)

    def fill(self, buffers: list[torch.Tensor]) -> None:
        for shard in range(len(self._views)):
            self.put(shard, buffers)

    def put(self, shard: int, buffers: list[torch.Tensor]) -> None:
        if buffers:
            with torch.no_grad():
                torch._foreach_copy_(self._views[shard], buffers)

    def load(self, shard: int, buffers: list[torch.Tensor]) -> None:
        if buffers:
            with torch.no_grad():
                torch._foreach_copy_(buffers, self._views[shard])
