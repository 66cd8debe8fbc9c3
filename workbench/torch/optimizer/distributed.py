"""DistributedOptimizer: any torch optimizer, with gradients averaged over all ranks before its step.

A hook on every parameter tells when backward has finished its gradient (``gradient_hooks.py``). ``step()`` waits
for all of them and lets the wrapped optimizer do the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, update_wrapper
from typing import Any

import torch

from workbench.job.api import Average, ReduceOp, Sum
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.simulate.measured.plan import Plan
from workbench.torch.compiled import not_traced
from workbench.torch.compression import Compression
from workbench.torch.gradients.grads import Grads
from workbench.torch.optimizer.deferred import check_deferrable
from workbench.torch.optimizer.gradient_hooks import GradientHooks
from workbench.torch.sharded.optimizer import ShardedOptimizer
from workbench.torch.sharded.resharded import refuse_sharded
from workbench.torch.sharded.stage1 import check_shardable
from workbench.torch.wrapping import SHARDED_SCALER, Named, Wrapping, by_name, check_passes, loss_of_all
from workbench.training.compression import Compressor
from workbench.training.planned import PlanSource, agree

Groups = Sequence[Sequence[torch.nn.Parameter]]

_ZERO_GRAD = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition."
)
_STEP_TWICE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
    "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context if you use "
    "optimizer.synchronize() in your code."
)
_SCALER = (
    "GradScaler reads gradients that are still being sent to the other ranks. Call optimizer.synchronize() after "
    "backward(), then scaler.unscale_(optimizer) if you clip, and scaler.step(optimizer) within "
    "optimizer.skip_synchronize()."
)


class DistributedOptimizer(Wrapping):
    """Wrap an optimizer so that every rank steps with the gradients of all ranks.

    It shares the wrapped optimizer's ``param_groups`` and ``state``, so learning-rate schedulers,
    checkpoints and ``isinstance`` see the optimizer they know. A second one for the same
    parameters replaces the first, whose ``step()`` then raises.

    Args:
        optimizer: any ``torch.optim`` optimizer; it is used from now on through this object only.
        named_parameters: ``model.named_parameters()``: names for errors and timeline. All or none of the
            optimizer's parameters have a name. Two models may have the same names: step them in the same order on all
            ranks.
        compression: ``Compression.none``, ``.fp16``, ``.bf16``, ``.topk(ratio)`` or ``.powersgd(rank)``.
        backward_passes_per_step: gradients are accumulated locally over this number of passes, then summed over ranks;
            they are not divided by it.
        op: Average (default), Sum, Min, Max, Product, or Adasum, which combines the changes of the weights instead
            of the gradients and takes no account of ``backward_passes_per_step`` and groups.
        gradient_predivide_factor: divide by it before the sum and multiply after; keeps fp16 in range.
        num_groups: split the parameters into this number of groups; each is reduced when it is complete.
        groups: the groups themselves, lists of parameters; the others are sent one by one. A number means num_groups.
        sparse_as_dense: turn sparse gradients into dense ones before the reduction, and back for SparseAdam, which
            takes no others; otherwise they are reduced as they are, in ``step()``.
        process_set: the ranks to average over; a rank outside of it trains on its own.
        sharded: True or "optimizer": each rank updates its part of the parameters and keeps the optimizer's state for
            that part only (``sharded/stage1.py``): less memory, less to compute, the same result. It begins with the
            second step. For SGD, Adam and others that treat each element by itself, with op=Average, without
            compression and groups. ``step()`` uses gradients up: ``.grad`` is None afterwards, and the next backward
            begins anew. ``state_dict()`` is whole, and therefore a collective: all ranks call it.
            "gradients", "parameters": each rank also keeps its part only of the gradients, and of the parameters; see
            :class:`~workbench.torch.sharded.optimizer.ShardedOptimizer`, which is made then.
        overlap_forward: ``step()`` waits for nothing, from the second on: a parameter is updated when it is looked at
            (see ``deferred.py``), and gradients that the next forward pass needs first overtake the rest on their way.
            Clear gradients with this object's ``zero_grad()``: the model's looks at all. A reduction that fails raises
            where the parameter is looked at. Under torch.compile the model then runs as it is written.
        plan: ``"auto"``: choose ``overlap_forward`` or not, by what ``workbench.measure(model, batch)``
            has found in this job; sums stay the same but for the order of their terms. ``"auto, fp16"`` and
            ``"auto, bf16"`` may choose that compression, too, which rounds; they need a measurement with ``wire=`` as
            well. Also a measurement, the path of a saved one, or a
            :class:`~workbench.simulate.measured.plan.Plan`. Rank 0 chooses for all. What other arguments say stays.
            :attr:`plan` says what was chosen, and why.

    Raises:
        ValueError: names missing, twice, or not strings; num_groups negative; a group of unknown parameters; sharded
            or overlap_forward with what does not go with it.
        WorkbenchError: with ``plan``, there is no measurement, or it is of other ranks, machines or of another model.

    Example:
        >>> import workbench.torch as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> hvd.shutdown()
    """

    _distributed: GradientHooks

    def __new__(cls, *args: Any, sharded: bool | str = False, **options: Any) -> DistributedOptimizer:
        """Of the class for this stage of sharding."""
        if sharded in (False, True, "optimizer"):
            return super().__new__(cls)
        return ShardedOptimizer(*args, sharded=sharded, **options)  # type: ignore[return-value]  # has the same methods

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Named | None = None,
        compression: Compressor = Compression.none,
        backward_passes_per_step: int = 1,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Groups | int | None = None,
        sparse_as_dense: bool = False,
        process_set: ProcessSet = global_process_set,
        *,
        sharded: bool | str = False,
        overlap_forward: bool | None = None,
        plan: PlanSource | None = None,
    ) -> None:
        sharded = bool(sharded)  # any other stage than the optimizer's has made another object
        if gradient_predivide_factor != 1.0 and op is not Average:
            raise ValueError("gradient_predivide_factor works only with op=Average.")
        if isinstance(optimizer, Wrapping):  # wrapped again, by a notebook's cell that is run again
            if optimizer._distributed.shards:
                raise ValueError("This optimizer is sharded already: make a new torch optimizer, and wrap that one.")
            optimizer = optimizer._distributed.optimizer
        params = by_name(optimizer, named_parameters)
        refuse_sharded(params, sharded)
        if sharded:
            check_shardable(optimizer, params.values())
            if op is not Average or compression is not Compression.none or num_groups or groups is not None:
                raise ValueError("sharded=True works only with op=Average, without compression and without groups.")
        chosen = _groups(params, num_groups, groups)
        check_passes(backward_passes_per_step)
        planned: Plan | None = None
        if plan is not None:
            ruling = {
                "sharded": sharded, "groups": bool(chosen), "compression": compression is not Compression.none,
                "overlap_forward=True": bool(overlap_forward), f"op={op.value}": op not in (Average, Sum),
                "process_set": process_set is not global_process_set,
            }  # fmt: skip
            given = [name for name, rules in ruling.items() if rules]
            planned = _agree(plan, given, optimizer, params.values(), op, overlap_forward is False)
            if not given:
                compression = getattr(Compression, planned.way.compression)
                overlap_forward = planned.way.overlap_forward
        grads = Grads(
            params,
            compression,
            op,
            gradient_predivide_factor,
            sparse_as_dense,
            process_set,
            chosen,
            backward_passes_per_step,
        )
        if overlap_forward:
            others = bool(sharded or chosen) or not grads.may_have_buckets
            check_deferrable(optimizer, params.values(), op, others)
        if isinstance(optimizer, torch.optim.SparseAdam):  # the one optimizer that takes no dense gradients
            grads.sparse.keep_forms()
        self._distributed = GradientHooks(optimizer, grads, sharded, bool(overlap_forward))
        self._distributed.plan = planned

    @property
    def plan(self) -> Plan | None:
        """What was chosen with ``plan=``, with each way's step as tried or predicted; None without it."""
        return self._distributed.plan

    def __getattr__(self, name: str) -> Any:
        if name == "state":
            self._distributed.deferral.finish()
        return super().__getattr__(name)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for all gradients, then step.

        Args:
            closure: evaluates the model again and returns the loss; gradients are reduced after each call. Within
                :meth:`skip_synchronize` it has to do that itself.

        Raises:
            CollectiveError: a reduction failed; no parameter has changed.
            RuntimeError: another DistributedOptimizer has taken the parameters over, or within :meth:`skip_synchronize`
                backward has run since the last :meth:`synchronize`.
        """
        mine = self._distributed
        if closure is not None and mine.exact is not None:
            raise ValueError(
                "Exact mode: step() takes no closure. A second evaluation of the model would ignore the shards."
            )
        if mine.adasum:  # each rank steps by its own gradients, and so by its own losses
            return mine.source.step(partial(mine.optimizer.step, closure), self._begin())
        if closure is not None:
            self._drop_zeros()
            mine.synchronized = False
            return mine.source.step(partial(mine.optimizer.step, lambda: self._reduced(closure())), None)
        if mine.should_synchronize and mine.synchronized:
            warnings.warn(_STEP_TWICE, stacklevel=2)
        self._drop_zeros()
        if not mine.should_synchronize:
            mine.check_reduced()
        names = self._begin() if mine.should_synchronize else None
        mine.synchronized = False
        mine.source.step(mine.optimizer.step, names)
        mine.computed = False
        return None

    @not_traced
    def _reduced(self, loss: Any) -> Any:
        """After a closure: reduce its gradients, and its loss."""
        mine = self._distributed
        if not mine.should_synchronize:
            mine.check_reduced()
            return loss
        self._reduce()
        return loss if mine.alone else loss_of_all(loss, "closure", mine.grads.process_set, mine.grads.op)

    @not_traced
    def _begin(self) -> list[str]:
        return self._distributed.begin()

    @not_traced
    def _drop_zeros(self) -> None:
        self._distributed.zeros.drop()

    def _reduce(self, unsharded: bool = False) -> None:
        self._distributed.source.reduce(self._begin(), unsharded)
        self._distributed.computed = False

    def synchronize(self) -> None:
        """Wait for all gradients, to look at them or clip them before ``step()``; see :meth:`skip_synchronize`."""
        self._reduce(unsharded=True)
        self._distributed.synchronized = True

    @property
    def in_flight(self) -> bool:
        """Whether backward has computed gradients that are not reduced yet."""
        return self._distributed.unreduced

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, ``step()`` takes the gradients as :meth:`synchronize` has left them, or a change of them.

        Example::

            optimizer.synchronize()
            scaler.unscale_(optimizer)  # with a GradScaler
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()  # or scaler.step(optimizer)
        """
        self._distributed.should_synchronize = False
        try:
            yield
        finally:
            self._distributed.should_synchronize = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, backward adds up gradients on this rank, and nothing is sent, as in DistributedDataParallel's.

        The next backward after it sends the sums. If there is none, ``step()`` sends them; it never steps with the
        gradients of one rank alone.

        Example::

            with optimizer.no_sync():
                for x, y in batches[:-1]:
                    (loss(model(x), y) / len(batches)).backward()
            x, y = batches[-1]
            (loss(model(x), y) / len(batches)).backward()  # gradients are sent while this runs
            optimizer.step()
        """
        mine = self._distributed
        before, mine.keeping = mine.keeping, True
        try:
            yield
        finally:
            mine.keeping = before

    def abandon_step(self) -> None:
        """End a step that was interrupted by an error: wait for its tensors in flight, and drop them.

        Parameters and gradients stay as they are; ``zero_grad()`` is allowed afterwards.
        """
        self._distributed.abandon()

    def leave_lost_shards(self) -> bool:
        """If it is sharded, and the job has begun anew since: be as before the first step, with the weights of now.

        Returns:
            True if it was; the state has to be loaded then, for a part of it was other ranks'.
        """
        return self._distributed.leave_lost_shards()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accumulate over this number of passes from the next step on."""
        check_passes(passes)
        self._distributed.grads.passes = passes

    @not_traced
    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer's. A parameter that is frozen and had a gradient has zeros afterwards, and not None.

        Raises:
            AssertionError: gradients are in flight.
        """
        mine = self._distributed
        mine.forget_failed_cell()
        if mine.source.in_flight:
            raise AssertionError(_ZERO_GRAD)
        if mine.computed:  # some passes of a step, which begins anew
            mine.source.abandon()
        mine.computed = False
        frozen = mine.zeros.frozen()
        mine.deferral.zero_grad(set_to_none)
        if mine.shards:
            mine.shards.zero_grad(set_to_none)
        else:
            mine.zeros.give_to(frozen)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # GradScaler.step() asks for it before it touches the gradients. The ranks must find the same infinities.
        if self._distributed.unreduced:
            raise RuntimeError(_SCALER)
        if self._distributed.sharded:
            raise RuntimeError(SHARDED_SCALER.format("sharded=True"))
        return getattr(self._distributed.optimizer, "_step_supports_amp_scaling", False)

    @property
    def _parameter_names(self) -> dict[torch.nn.Parameter, str]:
        # Horovod's name for it; scripts and Lightning read it.
        return {param: name for name, param in self._distributed.grads.params.items()}

    def state_dict(self) -> Any:
        """As the wrapped optimizer's, so that it can be loaded without this wrapper. If sharded, all ranks call it."""
        self._distributed.deferral.finish()
        shards = self._distributed.shards
        return shards.state.state_dict() if shards else self._distributed.optimizer.state_dict()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the wrapped optimizer's; the new parameters are reduced from the next step on."""
        self._distributed.deferral.finish()
        self._distributed.optimizer.add_param_group(param_group)

    def load_state_dict(self, state_dict: Any) -> None:
        """As the wrapped optimizer's, whose class knows how."""
        self._distributed.steps.begin_anew()
        self._distributed.deferral.finish()
        shards = self._distributed.shards
        (shards.state if shards else self._distributed.optimizer).load_state_dict(state_dict)


def _agree(
    plan: PlanSource, given: Sequence[str], optimizer: torch.optim.Optimizer, params: Collection[torch.nn.Parameter],
    op: ReduceOp, refused: bool,
) -> Plan:  # fmt: skip
    """What all ranks do; ``given`` are arguments that leave nothing to choose."""
    if any(param.device.type != "cpu" for param in params):
        raise ValueError("plan= is for parameters in the CPU's memory: what it predicts is not known for GPUs yet.")
    cannot_defer = "overlap_forward=False was given." if refused else ""
    try:
        check_deferrable(optimizer, params, op, others=False)
    except ValueError as error:
        cannot_defer = str(error)
    return agree(plan, given, cannot_defer, sum(param.numel() for param in params if param.requires_grad))


def _groups(
    params: dict[str, torch.nn.Parameter], num_groups: int, groups: Groups | int | None
) -> Sequence[Sequence[str]]:
    """The groups asked for, as names and checked; frozen parameters left out."""
    if isinstance(groups, int):
        if groups < 1:
            raise ValueError(f"groups={groups}: give at least 1, or a list of lists of parameters.")
        num_groups, groups = groups, None
    if num_groups < 0:
        raise ValueError(f"num_groups={num_groups}: give 0 (no groups) or more.")
    trained = [name for name, param in params.items() if param.requires_grad]
    if groups is not None:
        names = {param: name for name, param in params.items()}
        flat = [param for group in groups for param in group]
        if any(param not in names for param in flat) or len(set(flat)) < len(flat):
            raise ValueError("groups must be lists of the optimizer's parameters, each in one group at most.")
        return [[names[param] for param in group if param.requires_grad] for group in groups]
    size = -(-len(trained) // max(1, min(num_groups, len(trained))))
    return [trained[i : i + size] for i in range(0, len(trained), size)] if num_groups else []


# inspect and editors show the arguments of __init__.
update_wrapper(DistributedOptimizer.__new__, DistributedOptimizer.__init__, assigned=(), updated=())
