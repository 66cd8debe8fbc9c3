"""Lightning 2: a strategy for its Trainer and one for Fabric, both by the name ``"workbench"`` once this is imported.

::

    import lightning.pytorch as pl
    from workbench.torch.lightning import WorkbenchFabricStrategy, WorkbenchStrategy

    pl.Trainer(strategy=WorkbenchStrategy(), devices=1, max_epochs=3).fit(model)
    fabric = lightning.fabric.Fabric(strategy=WorkbenchFabricStrategy(), devices=1)

    workbench run -np 4 python train.py        # or %%px, mpirun, srun: the ranks are there before the Trainer

Each rank has one device, so ``devices=1`` on each. The Trainer shards the loaders, starts all ranks from rank 0's
weights, averages gradients while backward runs, and lets rank 0 alone write checkpoints, as with its own strategies.
``pytorch_lightning`` is served as ``lightning.pytorch`` is, whichever the script has imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from weakref import ref

import torch

import workbench.torch as hvd
from workbench.training.progress import compare_learning_rates

_OLD = "pytorch_lightning"
_IS_OLD = (_OLD in sys.modules and "lightning.pytorch" not in sys.modules) or find_spec("lightning") is None
_PYTORCH, _FABRIC = (_OLD, "lightning_fabric") if _IS_OLD else ("lightning.pytorch", "lightning.fabric")
_LEAST = (2, 1)

pl = import_module(_PYTORCH)
if tuple(int(number) for number in pl.__version__.split(".")[:2]) < _LEAST:
    raise ImportError(
        f"workbench.torch.lightning serves Lightning {'.'.join(map(str, _LEAST))} or later, and this is "
        f"{pl.__version__}: pip install -U lightning"
    )
_parallel = import_module(f"{_PYTORCH}.strategies.parallel")
_registry = import_module(f"{_PYTORCH}.strategies").StrategyRegistry
_fabric_parallel = import_module(f"{_FABRIC}.strategies.parallel")
_fabric_registry = import_module(f"{_FABRIC}.strategies").STRATEGY_REGISTRY
_environments = import_module(f"{_FABRIC}.plugins.environments")
_rank_zero = import_module(f"{_FABRIC}.utilities.rank_zero").rank_zero_only


class WorkbenchEnvironment(_environments.ClusterEnvironment):  # type: ignore[misc, name-defined]
    """Who a rank is, as ``init()`` says; the launcher has started all ranks."""

    def __init__(self) -> None:
        if not hvd.is_initialized():
            hvd.init()

    creates_processes_externally = True
    main_address, main_port = "", 0

    @staticmethod
    def detect() -> bool:
        """Lightning asks whether it is in such a job; the strategy says so itself."""
        return False

    def world_size(self) -> int:
        return hvd.size()

    def set_world_size(self, size: int) -> None:
        """Nothing: the launcher has decided."""

    def global_rank(self) -> int:
        return hvd.rank()

    def set_global_rank(self, rank: int) -> None:
        """Nothing: the launcher has decided."""

    def local_rank(self) -> int:
        return hvd.local_rank()

    def node_rank(self) -> int:
        return hvd.cross_rank()


class _OnRanks:
    """What both strategies share: who is where, and what goes between ranks."""

    parallel_devices: Any  # of the base class
    cluster_environment: Any

    def __init__(self, **options: Any) -> None:
        theirs = {key: options.pop(key) for key in _STRATEGYS if key in options}
        if decided := {"named_parameters", "backward_passes_per_step", "sharded"} & options.keys():
            raise ValueError(
                f"{type(self).__name__}: {', '.join(sorted(decided))} cannot be given here. Lightning names parameters "
                "and accumulates (the Trainer's accumulate_grad_batches=…, fabric.no_backward_sync); sharded "
                "optimizers have a checkpoint of their own."
            )
        super().__init__(cluster_environment=WorkbenchEnvironment(), **theirs)  # type: ignore[call-arg]
        self._options = options
        _rank_zero.rank = hvd.rank()

    @property
    def root_device(self) -> torch.device:
        """This rank's device: its own of several that it sees, else the one that there is."""
        devices = self.parallel_devices or [torch.device("cpu")]
        if len(devices) > 1:
            return devices[hvd.local_rank()]  # type: ignore[no-any-return]
        if devices[0].type == "cuda" and torch.cuda.device_count() > hvd.local_rank():
            return torch.device("cuda", hvd.local_rank())
        return devices[0]  # type: ignore[no-any-return]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": hvd.size(), "rank": hvd.rank()}

    @property
    def num_nodes(self) -> int:
        return hvd.cross_size()

    @num_nodes.setter
    def num_nodes(self, count: int) -> None:
        """The launcher has decided."""

    def _configure_launcher(self) -> None:
        self._launcher = None

    def _distributed(self, optimizer: Any, names: dict[Any, str]) -> Any:
        mine = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        named = [(names.get(parameter, f"parameter {i}"), parameter) for i, parameter in enumerate(mine)]
        return hvd.DistributedOptimizer(optimizer, named_parameters=named, **self._options)

    def barrier(self, name: str | None = None) -> None:
        hvd.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return hvd.broadcast_object(obj, root_rank=src)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The ranks' mean or sum of a tensor; what is no tensor stays."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        asked = getattr(reduce_op, "name", str(reduce_op)).lower()
        if asked not in ("mean", "avg", "sum"):
            raise ValueError(f"reduce_op {reduce_op!r}: the ranks' mean or sum can be asked for.")
        exact = tensor if tensor.is_floating_point() or asked == "sum" else tensor.double()
        return hvd.allreduce(exact, op=hvd.Sum if asked == "sum" else hvd.Average)

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """All ranks' tensors of one shape, along a new first dimension."""
        gathered = hvd.allgather(tensor.unsqueeze(0).contiguous())
        return gathered if sync_grads else gathered.detach()


class WorkbenchStrategy(_OnRanks, _parallel.ParallelStrategy):  # type: ignore[misc, name-defined]
    """Lightning's Trainer on the workbench's ranks.

    Args:
        options: of :class:`workbench.torch.DistributedOptimizer`, such as ``compression=hvd.Compression.fp16``;
            not those for accumulation, which is the Trainer's ``accumulate_grad_batches``.

    Raises:
        ValueError: an option that the Trainer decides.

    Example::

        trainer = pl.Trainer(strategy=WorkbenchStrategy(), devices=1, max_epochs=3)
        trainer.fit(model, loader)  # the loader gets a DistributedSampler
    """

    strategy_name = "workbench"
    optimizers: Any  # of the base class
    is_distributed = True  # so the Trainer shards the loaders

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._is_blocked = False

    # --- a training begins --------------------------------------------------------------------------

    def setup(self, trainer: Any) -> None:
        """Put the model on its device, start from rank 0's weights, and make the optimizers distributed."""
        if self._layer_sync is not None:
            raise ValueError(
                "Trainer(sync_batchnorm=True) needs torch.distributed. Use workbench.torch.SyncBatchNorm in the model."
            )
        _gather_metrics(self.model)
        super().setup(trainer)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)

    def setup_optimizers(self, trainer: Any) -> None:
        """Make the model's optimizers, each of which averages the gradients of its own parameters."""
        super().setup_optimizers(trainer)
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        self.optimizers = [self._distributed(optimizer, names) for optimizer in self.optimizers]

    def model_to_device(self) -> None:
        self.model.to(self.root_device)

    # --- a step -------------------------------------------------------------------------------------

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Before an epoch, compare the ranks' learning rates."""
        super().on_train_batch_start(batch, batch_idx)
        if batch_idx == 0:
            compare_learning_rates(
                [float(group["lr"]) for one in self.optimizers for group in one.param_groups if "lr" in group],
                "before an epoch",
                "If ReduceLROnPlateau decides by a metric, log it with sync_dist=True.",
            )

    def backward(self, closure_loss: Any, optimizer: Any, *args: Any, **options: Any) -> Any:
        """Backward; then gradients are averaged, so that whatever comes next, such as clipping, sees the averages."""
        loss = super().backward(closure_loss, optimizer, *args, **options)
        if not self._is_blocked:
            for one in self.optimizers:
                if one.in_flight:
                    one.synchronize()
        return loss

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **options: Any) -> Any:
        """A step with the gradients as backward has left them: averaged."""
        one = getattr(optimizer, "optimizer", optimizer)
        with one.skip_synchronize():
            return super().optimizer_step(optimizer, closure, model, **options)

    def teardown(self) -> None:
        super().teardown()
        self.cluster_environment.teardown()

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Within it gradients add up on each rank: all but the last of ``accumulate_grad_batches``."""
        with ExitStack() as stack:
            for one in self.optimizers:
                stack.enter_context(one.no_sync())
            before, self._is_blocked = self._is_blocked, True
            try:
                yield
            finally:
                self._is_blocked = before


class WorkbenchFabricStrategy(_OnRanks, _fabric_parallel.ParallelStrategy):  # type: ignore[misc, name-defined]
    """Lightning's Fabric on the workbench's ranks.

    Args:
        options: of :class:`workbench.torch.DistributedOptimizer`, as for :class:`WorkbenchStrategy`.

    Example::

        fabric = Fabric(strategy=WorkbenchFabricStrategy(), devices=1)
        fabric.launch()
        model, optimizer = fabric.setup(model, optimizer)  # rank 0's weights; gradients are averaged in backward
    """

    all_reduce = _OnRanks.reduce

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._backward_sync_control = self
        self._modules = list[tuple[str, ref[Any]]]()  # Fabric holds them, and lets go of those of an earlier fold
        self._optimizers = list[ref[Any]]()
        self._blocked: Any = None

    def module_to_device(self, module: Any) -> None:
        module.to(self.root_device)

    def setup_module(self, module: Any) -> Any:
        """Start from rank 0's weights."""
        _gather_metrics(module)
        hvd.broadcast_parameters(module.state_dict(), root_rank=0)
        self._modules.append((f"{len(self._modules)}." if self._modules else "", ref(module)))
        return module

    def setup_optimizer(self, optimizer: Any) -> Any:
        """Let it average the gradients of its parameters."""
        names = {
            each: f"{prefix}{name}" for prefix, module in self._alive() for name, each in module.named_parameters()
        }
        made = self._distributed(optimizer, names)
        self._optimizers.append(ref(made))
        return made

    def backward(self, tensor: Any, module: Any, *args: Any, **options: Any) -> None:
        """Backward; then gradients are averaged, so that whatever comes next, such as clipping, sees the averages."""
        super().backward(tensor, module, *args, **options)
        for one in self._made():
            if one.in_flight:
                one.synchronize()
        for prefix, each in self._alive():
            if each is not self._blocked and not self._made_for(each):  # an optimizer that Fabric has not set up
                named = [(name, p.grad) for name, p in each.named_parameters() if p.grad is not None]
                if named:
                    hvd.grouped_allreduce_([grad for _, grad in named], name=f"{prefix}{named[0][0]}")

    def optimizer_step(self, optimizer: Any, **options: Any) -> Any:
        """A step with the gradients as backward has left them: averaged."""
        with optimizer.skip_synchronize():
            return super().optimizer_step(optimizer, **options)

    @contextmanager
    def no_backward_sync(self, module: Any, enabled: bool = True) -> Iterator[None]:
        """Within it the gradients of this model add up on each rank."""
        with ExitStack() as stack:
            before = self._blocked
            if enabled:
                self._blocked = module
                for one in self._made_for(module):
                    stack.enter_context(one.no_sync())
            try:
                yield
            finally:
                self._blocked = before

    def _alive(self) -> list[tuple[str, Any]]:
        return [(prefix, module) for prefix, each in self._modules if (module := each()) is not None]

    def _made(self) -> list[Any]:
        return [one for each in self._optimizers if (one := each()) is not None]

    def _made_for(self, module: Any) -> list[Any]:
        its = {*module.parameters()}
        return [one for one in self._made() if any(p in its for group in one.param_groups for p in group["params"])]


_STRATEGYS = ("accelerator", "parallel_devices", "checkpoint_io", "precision_plugin", "precision")


def _gather_metrics(model: Any) -> None:
    """Let torchmetrics' metrics of a model be computed over all ranks; they know torch.distributed only."""
    for each in model.modules():
        if hasattr(each, "dist_sync_fn") and hasattr(each, "distributed_available_fn"):
            each.distributed_available_fn = lambda: hvd.size() > 1
            each.dist_sync_fn = _all_of_a_metric


def _all_of_a_metric(value: Any, group: Any = None) -> list[Any]:
    """By rank; the ranks' may differ in their first dimension."""
    rows = value.reshape(1) if not value.ndim else value
    counts = hvd.allgather(torch.tensor([len(rows)])).tolist()
    parts = list(torch.split(hvd.allgather(rows.contiguous()), counts))
    return [part[0] for part in parts] if not value.ndim else parts


for _strategies, _strategy in ((_registry, WorkbenchStrategy), (_fabric_registry, WorkbenchFabricStrategy)):
    _strategies.register("workbench", _strategy, description="on the workbench's ranks", override=True)
