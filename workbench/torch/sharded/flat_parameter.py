"""Parameters one behind the other in one array, of which each rank owns a part.

One such array is what a reduce-scatter and an allgather move at once: in stage 2 a bucket of parameters, in stage 3
those of a layer. :class:`FlatParameter` moves it; ``backward.py`` and ``stage3.py`` say when.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workbench.collectives.ring import chunk_lengths
from workbench.core.handle import Handle
from workbench.core.messages import Kind
from workbench.errors import CollectiveError, MissingRanksError, WaitTimeoutError
from workbench.job import api
from workbench.job.process_sets import ProcessSet, is_alone
from workbench.torch.sharded.resharded import ReshardedParameter, get_grad, mark_grad_sharded, set_grad
from workbench.torch.sharded.shards import Shard
from workbench.torch.tensors import Array, dtype_name

SKIPPED = "A rank must not leave out a step by a test of its own: decide by hvd.allreduce(...) of what is tested."
MOVED = (
    "The memory of parameter {!r} has been replaced (by model.to(), say) since this DistributedOptimizer(sharded={!r}) "
    "was made, and what it updates is no longer the model's. Make a new one."
)
GRADIENTS = "gradients"
PARAMETERS = "parameters"
_SPARSE = (
    "The gradient of {!r} is sparse, and sharded={!r} takes dense ones only. Make its layer without sparse=True, or "
    "leave sharded out."
)
_TOGETHER = (
    "With sharded='parameters' a layer's parameters come from all ranks: all run the same layers, in one order and "
    "equally often, also to evaluate or to print something. If only one rank shall do that, give it a copy: build the "
    "model again there, and load hvd.full_state_dict(model), which all ranks call."
)
_LOST = (
    "The {} belong to a job that has ended (by shutdown(), or a rank that was lost), and the other ranks' parts with "
    "it. Build the model again on all ranks, call hvd.shard_parameters(model), and load a checkpoint: "
    "hvd.load_full_state_dict(model, ...)."
)


@contextmanager
def uneven(hint: str) -> Iterator[None]:
    """Within it, the error of ranks that wait for each other ends with what is likely to be the cause."""
    try:
        yield
    except MissingRanksError as error:
        raise type(error)(f"{error}\n{hint}") from None


@dataclass(frozen=True)
class Members:
    """Who shares. A rank outside of the process set is alone.

    Args:
        rank: this rank's number among them.
        size: how many they are.
        process_set: of them.
    """

    rank: int
    size: int
    process_set: ProcessSet

    @staticmethod
    def of(process_set: ProcessSet) -> Members:
        if is_alone(process_set):
            return Members(0, 1, process_set)
        return Members(int(process_set.rank() or 0), int(process_set.size() or 1), process_set)


@dataclass(frozen=True)
class ParameterSpan:
    """Where a parameter is in the array: ``start`` to ``stop``; ``like`` has its shape and strides, and no memory."""

    start: int
    stop: int
    like: torch.Tensor

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The parameter's part of the array, in its shape."""
        offset = flat.storage_offset() + self.start
        # .data: to torch it is no view then, and counts its changes by itself.
        return flat.as_strided(self.like.shape, self.like.stride(), offset).data


class FlatParameter:
    """Some parameters of one dtype, as FSDP has them: one array, of which each rank owns a shard.

    Args:
        params: by name; from now on their memory is the array's. The first rank's values are taken by all.
        members: who shares.
        kept: stage 2, each rank keeps the whole array. Else it keeps its shard, and has the whole when unsharded.
        stage: the user's word for it, for errors.
        number: of the model, the same on all ranks.

    Attributes:
        name: equal on two ranks only if the parameters are, and the model's number.
        full: the array; without memory while it is resharded.
        spans: by parameter's name.
        shard: this rank's part of the parameters.
        grad: this rank's part of their averaged gradients; None before there are any.
        sent: how often gradients were sent that are in :attr:`grad`, or will be.
        with_gradient: names of parameters of which this rank has had a gradient since the last step.
        unsharded: is the whole array there?
        model: the one whose parameters they are, in stage 3.
    """

    model: Any = None

    def __init__(
        self, params: Mapping[str, torch.nn.Parameter], members: Members, kept: bool, stage: str, number: int
    ) -> None:
        self.params = dict(params)
        self.members = members
        self._stage = stage
        self._job = api.world()
        self.spans: dict[str, ParameterSpan] = {}
        start = 0
        for name, param in self.params.items():
            like = torch.empty_like(param, device="meta", requires_grad=False)
            self.spans[name] = ParameterSpan(start, start + param.numel(), like)
            start += param.numel()
        self.name = _name(self.spans, number)
        self.sent = 0
        self.with_gradient: set[str] = set()
        lengths = chunk_lengths(start, members.size)
        self._start = sum(lengths[: members.rank])
        self._length = start
        self._stop = self._start + lengths[members.rank]
        self.grad: torch.Tensor | None = None
        self._buffer: torch.Tensor | None = None
        self._sent: tuple[torch.Tensor, Handle | None] | None = None
        self._take_over(kept)

    def _take_over(self, kept: bool) -> None:
        """Copy the first rank's values into the array, and let the parameters be there, or nowhere."""
        first = next(iter(self.params.values()))
        self.full = torch.empty(self._length, dtype=first.dtype)
        for name, span in self.spans.items():
            span.of(self.full).copy_(self.params[name].detach())
        if self.members.size > 1:
            array, root = bare(self.full), (self.members.process_set.ranks or [0])[0]
            entry = self._entry(Kind.BROADCAST, array, "first parameters", target=array, root=root)
            api.submit([entry], at_once=True)[0].wait()
        part = self.full[self._start : self._stop]
        self.shard = part if kept else part.clone()
        self._views = {name: span.of(self.full) for name, span in self.spans.items()}
        self.unsharded = True
        self._show()
        if not kept:
            self.reshard()

    def shards(self) -> dict[str, Shard]:
        """What the optimizer is to update, by name."""
        found = {}
        for name, span in self.spans.items():
            low, high = max(span.start, self._start), min(span.stop, self._stop)
            if low < high:
                part = torch.nn.Parameter(self.shard[low - self._start : high - self._start])
                found[name] = Shard(low - span.start, high - span.start, part)
        return found

    @property
    def trained(self) -> list[str]:
        return [name for name, param in self.params.items() if param.requires_grad]

    @property
    def nbytes(self) -> int:
        return self._length * self.shard.element_size()

    # --- gradients ------------------------------------------------------------------------------------

    def take(self, name: str) -> None:
        """Move a gradient from ``.grad`` into the array that is sent next; its own memory is free then."""
        param = self.params[name]
        grad = get_grad(param)
        if grad is None:
            return
        if grad.layout is not torch.strided:
            raise ValueError(_SPARSE.format(name, self._stage))
        if self._buffer is None:
            self._buffer = torch.zeros(self._length, dtype=self.shard.dtype)
        with torch.no_grad():
            self.spans[name].of(self._buffer).add_(grad)
        set_grad(param, None)
        self.with_gradient.add(name)
        mark_grad_sharded(param, True)

    def send(self) -> None:
        """Begin to reduce-scatter what was taken; zeros of what was not."""
        self.finish()
        sent = self._buffer if self._buffer is not None else torch.zeros(self._length, dtype=self.shard.dtype)
        self._buffer, handle = None, None
        if self.members.size > 1:
            array = bare(sent)
            entry = self._entry(Kind.REDUCESCATTER, array, "gradients", target=array, op=api.Average)
            handle = api.submit([entry], at_once=True)[0]
        self._sent = (sent, handle)
        self.sent += 1

    def finish(self, timeout_s: float | None = None) -> bool:
        """Wait for what was sent, add this rank's part to :attr:`grad`, and let go of the rest.

        Returns:
            False if it is still on its way after ``timeout_s``.
        """
        if self._sent is None:
            return True
        sent, handle = self._sent
        try:
            if handle is not None:
                handle.wait(timeout_s)
        except WaitTimeoutError:
            return False
        except CollectiveError:
            self._sent = None
            raise
        self._sent = None
        mine = sent[self._start : self._stop]
        self.grad = mine.clone() if self.grad is None else self.grad.add_(mine)
        return True

    def forget(self) -> None:
        """Drop the gradients, wherever they are. What is in flight must be finished before."""
        self._buffer = None
        self._sent = None
        self.grad = None
        self.sent = 0
        self.with_gradient.clear()
        for param in self.params.values():
            set_grad(param, None)
            mark_grad_sharded(param, False)

    def part_of_grad(self, name: str) -> torch.Tensor | None:
        """Of a parameter of which this rank owns a part, that part's gradient."""
        if self.grad is None:
            return None
        span = self.spans[name]
        return self.grad[max(span.start, self._start) - self._start : min(span.stop, self._stop) - self._start]

    # --- parameters -----------------------------------------------------------------------------------

    def all_gather(self) -> None:
        """Stage 2, after the update: every rank gets the others' parts."""
        if self.members.size > 1:
            self._gather()

    def unshard(self) -> None:
        """Stage 3: bring the whole array here, and let the parameters be in it. All ranks call it."""
        if self.unsharded:
            return
        if self._job is not api.world() and self.members.size > 1:
            raise RuntimeError(_LOST.format(self.name))
        self.full.untyped_storage().resize_(self.nbytes)
        if self.members.size > 1:
            with uneven(_TOGETHER):
                self._gather()
        else:
            self.full.copy_(self.shard)
        self.unsharded = True
        self._show()

    def reshard(self) -> None:
        """Stage 3: free the whole array. What autograd has saved of it is there again when it is gathered."""
        if not self.unsharded:
            return
        self.unsharded = False
        for param in self.params.values():
            # Whoever goes past the class's guard computes with NaN, and not with memory that is gone.
            param.data = torch.full((), float("nan"), dtype=param.dtype).expand(param.shape)
            param.__class__, param.owner = ReshardedParameter, self  # type: ignore[attr-defined]
        self.full.untyped_storage().resize_(0)

    def keep_changes(self) -> None:
        """Stage 3: this rank's part of the gathered parameters is what they are from now on."""
        self.shard.copy_(self.full[self._start : self._stop])

    def moved(self) -> str:
        """The name of a parameter whose memory is no longer the array's, or nothing."""
        for name, view in self._views.items():
            if self.unsharded and self.params[name].data_ptr() != view.data_ptr():
                return name
        return ""

    def _show(self) -> None:
        for name, param in self.params.items():
            param.__class__ = torch.nn.Parameter
            param.data = self._views[name]
            mark_grad_sharded(param, name in self.with_gradient)

    def _gather(self) -> None:
        entry = self._entry(Kind.ALLGATHER, bare(self.shard), "parameters", target=bare(self.full))
        api.submit([entry], at_once=True)[0].wait()

    def _entry(self, kind: Kind, source: Array, what: str, **about: Any) -> Any:
        name, dtype = f"{what} of {self.name}", dtype_name(self.shard if hasattr(self, "shard") else self.full)
        return api.entry(kind, source, name, dtype=dtype, process_set=self.members.process_set, **about)


def sharded_model_of(params: Iterable[torch.nn.Parameter]) -> Any:
    """The :class:`~workbench.torch.sharded.stage3.ShardedModel` that they belong to, or None."""
    flat = next((param.owner for param in params if hasattr(param, "owner")), None)
    return None if flat is None else flat.model


def bare(tensor: torch.Tensor) -> Array:
    """An array over a one-dimensional tensor's memory.

    It keeps the tensor: a notebook's cell may drop model and optimizer amid a collective.

    Not ``tensor.numpy()``: torch resizes no memory of which numpy knows.
    """
    nbytes = tensor.numel() * tensor.element_size()
    kind = "uint16" if tensor.dtype is torch.bfloat16 else dtype_name(tensor)
    if not nbytes:
        return np.empty(0, kind)
    raw: Any = (ctypes.c_char * nbytes).from_address(tensor.data_ptr())
    raw.tensor = tensor
    return np.frombuffer(raw, kind)


def _name(spans: Mapping[str, ParameterSpan], number: int) -> str:
    """Equal on two ranks only if names, shapes, strides and dtypes are, and the model's number."""
    names = list(spans)
    described = [(name, tuple(p.like.shape), p.like.stride(), str(p.like.dtype)) for name, p in spans.items()]
    digest = f"{zlib.crc32(repr(described).encode()):08x}"
    return f"{len(names)} parameters, {names[0]} to {names[-1]} (model {number}, {digest})"
