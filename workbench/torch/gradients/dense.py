"""Gradients that are submitted while the rest of backward still runs: communication overlaps computation.

A gradient is submitted as soon as all of its group (its bucket) are ready, and the rest at ``step()``. Every rank
submits every gradient in every step, so a parameter that one rank did not use cannot make the others wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from workbench.core.handle import Handle
from workbench.core.pending import Entry
from workbench.errors import CollectiveError
from workbench.job.context import HOLDER
from workbench.torch.compiled import not_traced
from workbench.torch.gradients.bucket import GradBucket
from workbench.torch.gradients.grads import Grads
from workbench.torch.tensors import fits_a_bucket
from workbench.training.memory import BucketLimit

TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally, or call all but the last backward() within "
    "optimizer.no_sync(). If one backward() did it: checkpoint(use_reentrant=True) computes the gradient of a "
    "parameter that several parts share more than once; use_reentrant=False does not."
)


class Submit(Protocol):
    """Hands entries to the engine: :func:`workbench.job.entries.submit`."""

    def __call__(self, entries: list[Entry], at_once: bool = False) -> list[Handle]: ...


class DenseGradients:
    """A :class:`~workbench.torch.gradients.source.GradientSource`: each gradient is submitted when it is ready.

    Args:
        grads: in their buckets, or each by its name.
        submit: hands entries to the engine.

    Attributes:
        grads: as given.
    """

    def __init__(self, grads: Grads, submit: Submit) -> None:
        self.grads = grads
        self._submit = submit
        self._left: dict[str, int] = {}  # backward passes that are still to come, by name
        self._ready: set[str] = set()
        self._handles: dict[str, Handle] = {}
        self._ended: dict[str, Handle] = {}  # of the step that has just ended, until buckets are planned
        self._limit = BucketLimit()

    @property
    def begun(self) -> bool:
        """True between the first gradient of a step and its end."""
        return bool(self._left)

    @property
    def in_flight(self) -> bool:
        return bool(self._handles)

    # --- amid backward --------------------------------------------------------------------------------

    def ready(self, name: str, keep: bool) -> None:
        """Backward has finished a gradient. The last one of a group submits the group.

        Raises:
            AssertionError: it has been submitted in this step already, and backward has added to it since.
        """
        if name in self._handles:
            raise AssertionError(TOO_MANY_PASSES)
        if keep:
            return
        if not self.in_flight:  # else groups are fixed: ranks must not differ in what travels together
            self.grads.prepare(name)
        if not self.grads.take(name):  # it is sparse, and waits for the step
            return
        self._left[name] = self._left.get(name, self.grads.passes) - 1
        if self._left[name] > 0:
            return
        self._ready.add(name)
        group = self.grads.group_of(name)
        if all(each in self._ready for each in reversed(group)):  # the last of a group is the last to come
            self._send(group)

    def _send(self, group: Sequence[str]) -> None:
        if not self._handles:
            self._limit.begin()
        made = self.grads.entries(group)
        if isinstance(made, Entry):  # a bucket: nothing is to be packed with it, so nothing is waited for
            (handle,) = self._submit([made], at_once=True)
            self._handles |= dict.fromkeys(group, handle)
        else:
            self._handles |= zip(group, self._submit(made), strict=True)

    # --- at the step ----------------------------------------------------------------------------------

    @not_traced
    def reduce(self, names: Sequence[str], unsharded: bool = False) -> None:
        with self.grads.steps.comparing(self.grads.order):
            results = self.finish(names)
        self.store(results, self.grads.buckets)

    def finish(self, names: Sequence[str]) -> dict[str, Any]:
        """Submit what was not ready of these, wait for all results, by name, and begin a new step.

        Raises:
            CollectiveError: a reduction failed. The step is over for all gradients, and none is in flight.
        """
        handles = self.hand_over(names)
        results = wait_for_all(dict.fromkeys(handles.values()))  # a bucket has one
        return {name: results[handle] for name, handle in handles.items()}

    def hand_over(self, names: Sequence[str]) -> dict[str, Handle]:
        """As :meth:`finish`, without waiting; the handles by name."""
        try:
            rest = [name for name in names if name not in self._handles]
            if rest and not self.in_flight:
                self.grads.prepare(None)
            for name in rest:
                if name not in self._handles:  # its group may have been submitted for another one
                    self._send(self.grads.group_of(name))
            return self._handles
        finally:
            self._forget()

    def store(self, results: dict[str, Any], buckets: Mapping[str, GradBucket]) -> None:
        """Put results into ``.grad``; where no rank has a dense gradient, gather the sparse ones.

        Args:
            results: by name.
            buckets: in which some of them were reduced.
        """
        # Before the results are stored, which may fail on one rank: all ranks are to plan alike.
        self._plan_buckets([name for name, result in results.items() if name not in buckets and result is not None])
        self.grads.store(results, buckets)
        sparse = self.grads.sparse
        if sparse.dims is not None:
            sparse.give_form_back([name for name, result in results.items() if result is not None])
        if absent := [name for name, result in results.items() if result is None]:
            sparse.reduce(absent)

    def _plan_buckets(self, new: Sequence[str]) -> None:
        """From the next step on these gradients live in buckets; all do in other ones if the size has changed.

        The first time a gradient is reduced under its own name, so that ranks which disagree about it hear its name.
        What is decided here follows from the results alone, which are the same on every rank.
        """
        handles, self._ended = self._ended.values(), {}
        self._learn(handles)
        limit, grads = self._limit_bytes(), self.grads
        new = [name for name in new if fits_a_bucket(grads.params[name])]
        changed = bool(grads.buckets) and self._limit.current and limit != grads.planned_bytes
        if limit and (new or changed) and grads.may_have_buckets:
            grads.plan([name for name in grads.params if name in grads.buckets or name in new], limit)

    def _limit_bytes(self) -> int:
        """How large a bucket may be; 0: there are none."""
        return self._limit()

    def _learn(self, handles: Iterable[Handle]) -> None:
        """A step has ended well on all ranks: the size of buckets may have been tuned since the last one."""
        if self.grads.may_have_buckets:
            self._limit.update_from(handles)

    def step(self, update: Callable[[], Any], names: Sequence[str] | None) -> Any:
        if names is not None:
            self.reduce(names)
        with self.grads.steps.step(self.grads.order):
            return update()

    # --- errors ---------------------------------------------------------------------------------------

    def abandon(self) -> None:
        with suppress(CollectiveError):
            if self.finish(()) and HOLDER.find():  # other ranks may have made this step, and then plan alike
                self._plan_buckets(())

    def restart(self) -> bool:
        begun = self.begun
        if begun:
            self.abandon()
        self.grads.restart()
        return begun

    def _forget(self) -> None:
        self._left = {}
        self._ready = set()
        self._ended, self._handles = self._handles, {}


def wait_for_all(handles: Iterable[Handle]) -> dict[Handle, Any]:
    """The result of each.

    Raises:
        CollectiveError: the first one's that failed. The others are done by then: the memory of each is free.
    """
    results, failed = dict[Handle, Any](), list[CollectiveError]()
    for handle in handles:
        try:
            results[handle] = handle.wait()
        except CollectiveError as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return results
