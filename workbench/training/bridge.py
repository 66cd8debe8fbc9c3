"""The gradients of a step, from a framework's tensors to reduced ones. Shared by TensorFlow, Keras and JAX.

What a framework must be able to do for it is a :class:`Bridge`. All gradients go in **one** call to the host, which
in a graph is one op: an op for each gradient would wait for its own, one after the other, and ranks whose graphs run
them in different orders would wait for each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

import numpy as np

from workbench.core.backend.base import Array
from workbench.core.messages import Progress
from workbench.job.api import Average, Sum
from workbench.job.calls import Shape
from workbench.job.process_sets import global_process_set
from workbench.job.requests import OrderOfUse
from workbench.training.compression import Compressor
from workbench.training.gradient_list import GradientList
from workbench.training.progress import comparing
from workbench.training.progress import weights as weights_of
from workbench.training.step_count import StepCount, note_step

Spec = tuple[str, Shape | None]
"""dtype's name and shape of a result; None in the shape, or for all of it, where only the run will tell."""


class Bridge(Protocol):
    """A framework's tensors, and its way to the host.

    Attributes:
        lends: arrays that on_host() gives to a function may be written to, if they are writeable, and must not be used
            when the function has returned.
    """

    lends: bool = False

    def eager(self, tensor: Any) -> bool:
        """Is it a value, and no graph's? Then what is done with it is done when the code has run."""

    def on_host(
        self, function: Callable[[list[Array]], list[Array]], tensors: Sequence[Any], results: Sequence[Spec]
    ) -> list[Any]:
        """Call ``function`` with the tensors' arrays, now or whenever the graph runs; its results as tensors."""

    def spec(self, tensor: Any) -> Spec: ...

    def sparse(self, gradient: Any) -> tuple[Any, Any] | None:
        """(values, rows) of a sparse gradient; None for a dense one, and where a framework has no others."""
        return None

    def rebuilt(self, gradient: Any, values: Any, rows: Any) -> Any:
        """A sparse gradient like this one."""
        raise TypeError(f"{type(self).__name__} has no sparse gradients.")

    def dense(self, gradient: Any) -> Any:
        """A sparse gradient as a dense one; a dense one as it is."""
        return gradient

    def scaled(self, gradient: Any, factor: float) -> Any:
        """``factor`` times the gradient, in its own dtype."""

    def sample(self, tensors: Sequence[Any]) -> Any:
        """Some elements of each tensor of floats, by :func:`~workbench.training.progress.stride`, as one of float32."""


class TensorReducer:
    """Reduces lists of gradients, dense, sparse or None, which stays None.

    Args:
        bridge: the framework's.
        compression: of dense gradients.
        sparse_as_dense: sparse gradients become dense before they are sent.
        scale_local: divide the gradients of local variables by the number of ranks, as if the others' were 0.
        order: tells it from other reducers of the same names; by default it is one of its own. See GradientList.
        options: of :class:`~workbench.training.gradient_list.GradientList`.

    Attributes:
        steps: how many there were, of those that :meth:`stepping` has seen.
        numbers: those of the optimizer, as they are now; they are compared with the other ranks'.

    Raises:
        ValueError: options that GradientList refuses.
    """

    def __init__(
        self,
        bridge: Bridge,
        compression: Compressor,
        sparse_as_dense: bool = False,
        scale_local: bool = True,
        order: OrderOfUse | Literal["own"] | None = "own",
        **options: Any,
    ) -> None:
        self._bridge, self._compression, self._options = bridge, compression, options
        self._sparse_as_dense, self._scale_local = sparse_as_dense, scale_local
        self._lists: dict[tuple[Any, ...], GradientList] = {}
        self.order = OrderOfUse() if order == "own" else order
        self.steps = StepCount()
        self._local: set[str] = set()
        self.numbers: Callable[[], Progress] = tuple
        self._changes: list[Array] = []  # a sample of the last step's, where the weights are not known
        self._steps_follow = order == "own"  # else it reduces for the user's own optimizer
        self.passes: int = options.get("passes", 1)
        self.sums: bool = options.get("op", Average) is Sum
        self._latest = GradientList([], **options)  # refuses now what it would refuse in the first step

    def keep_local(self, names: Iterable[str]) -> None:
        """The gradients of these variables stay on this rank."""
        self._local |= set(names)

    def __call__(
        self, gradients: Sequence[Any], names: Sequence[str], weights: Sequence[Any] | None = None
    ) -> tuple[list[Any], Any]:
        """Reduce.

        Args:
            gradients: one per variable.
            names: of the variables, all different; the same on every rank, in any order.
            weights: the variables' values, if they are known, for the ranks to compare.

        Returns:
            One gradient per variable, and None; or with several passes a bool tensor: False while more are to come, and
            what is returned must not be used.
        """
        result = list(gradients)
        there = [i for i, name in enumerate(names) if result[i] is not None and name not in self._local]
        kept = [i for i, name in enumerate(names) if result[i] is not None and name in self._local]
        ready = None
        if there or (kept and self.passes > 1):
            small = [self._small(gradients[i]) for i in there]
            own = [self._dense(gradients[i]) for i in kept] if self.passes > 1 else []
            lists = self._list([names[i] for i in there]), self._list([names[i] for i in kept[: len(own)]], alone=True)
            trained = [] if weights is None else [weights[i] for i in sorted(there, key=lambda i: names[i])]
            made, ready = self._reduce(*lists, [each for each, _ in small], own, trained)
            for i, each, (_, ctx) in zip(there, made, small, strict=False):
                result[i] = each if self._bridge.sparse(each) else self._compression.decompress(each, ctx)
            for i, each in zip(kept, made[len(there) :], strict=False):
                result[i] = each
        if self._scale_local:
            for i in kept:
                result[i] = self._bridge.scaled(result[i], 1.0 / self._members())
        return result, ready

    def note_changes(self, changes: Sequence[Any]) -> None:
        """What a step adds to the weights; it is compared with the next gradients, where the weights are not known."""

        def keep(arrays: list[Array]) -> list[Array]:
            self._changes = [array.copy() for array in arrays]
            return []

        if comparing() and changes:
            self._bridge.on_host(keep, [self._bridge.sample(changes)], [])

    def stepping(self, reduced: Sequence[Any], ready: Any = None) -> AbstractContextManager[None]:
        """Within the block the weights change. In a graph that is later, and the host does not see it.

        Args:
            reduced, ready: what was returned.
        """
        eager = [self._bridge.eager(each) for each in reduced if each is not None]
        steps = any(eager) and all(eager) and (ready is None or bool(ready))
        return self.steps.step() if steps else nullcontext()

    def _list(self, names: Sequence[str], alone: bool = False) -> GradientList:
        """Of gradients that are reduced, or of those that each rank keeps; the same in each step."""
        key = (alone, self.order and self.order.made, *names)
        if key not in self._lists:
            self._lists[key] = GradientList(
                names, lent=self._bridge.lends, alone=alone, order=self.order, steps=self.steps, **self._options
            )
        self._latest = self._lists[key] if names else self._latest
        return self._lists[key]

    @property
    def passed(self) -> int:
        """How many of ``passes`` have been added up since the last step; of those that the host has seen."""
        return self._latest.passed

    def _members(self) -> int:
        """How many ranks share what this one computes; a rank outside of the set computes for itself."""
        process_set = self._options.get("process_set", global_process_set)
        return process_set.size() if process_set.included() else 1

    def _small(self, gradient: Any) -> tuple[Any, Any]:
        gradient = self._dense(gradient)
        return (gradient, None) if self._bridge.sparse(gradient) else self._compression.compress(gradient)

    def _dense(self, gradient: Any) -> Any:
        return self._bridge.dense(gradient) if self._sparse_as_dense else gradient

    def _reduce(
        self,
        reduce: GradientList,
        keep: GradientList,
        gradients: Sequence[Any],
        own: Sequence[Any],
        trained: Sequence[Any],
    ) -> tuple[list[Any], Any]:
        """One call to the host; a sparse gradient is two tensors in it, and with several passes there is a flag."""
        parts = [self._bridge.sparse(each) or (each,) for each in (*gradients, *own)]
        tensors = [tensor for part in parts for tensor in part]
        results = [spec for part in parts for spec in self._specs(part)]
        flagged: list[Spec] = [("bool", ())] if self.passes > 1 else []
        count, order = len(gradients), self.order
        more = [self._bridge.sample(trained)] if trained and order and comparing() else []
        # stepping() sees an optimizer's steps outside of a graph; all others end for the host with this call.
        unseen = not self._steps_follow or not all(self._bridge.eager(each) for each in tensors)

        def run(arrays: list[Array]) -> list[Array]:
            sample = arrays[len(tensors) :] or self._changes
            given = iter(arrays[: len(tensors)])
            if order:
                order.read_progress = lambda: (*self.numbers(), *(each for part in sample for each in weights_of(part)))
            forms = [(next(given), next(given)) if len(part) > 1 else next(given) for part in parts]
            kept = keep(forms[count:]) if own else []
            reduced = reduce(forms[:count]) if count else []
            flag = [np.array(None not in (reduced, kept))] if flagged else []
            if reduced is None or kept is None:
                return [*flag, *(np.zeros(each.shape, each.dtype) for each in arrays[: len(tensors)])]
            if unseen:
                note_step()
            both = [*reduced, *kept]
            return [*flag, *(array for each in both for array in (each if isinstance(each, tuple) else (each,)))]

        made = iter(self._bridge.on_host(run, [*tensors, *more], [*flagged, *results]))
        ready = next(made) if flagged else None
        return [
            self._bridge.rebuilt(each, next(made), next(made)) if len(part) > 1 else next(made)
            for each, part in zip((*gradients, *own), parts, strict=True)
        ], ready

    def _specs(self, part: tuple[Any, ...]) -> list[Spec]:
        specs = [self._bridge.spec(tensor) for tensor in part]
        # Each rank has its own number of rows.
        return [(dtype, shape and (None, *shape[1:])) for dtype, shape in specs] if len(part) > 1 else specs


def names_of(variables: Sequence[Any]) -> list[str]:
    """A name for each variable: Keras' path or TensorFlow's name, numbered where several have the same.

    Example:
        >>> from types import SimpleNamespace as Variable
        >>> names_of([Variable(path="dense/kernel"), Variable(name="w"), Variable(name="w")])
        ['dense/kernel', 'w', 'w#1']
    """
    seen: Counter[str] = Counter()
    names = []
    for variable in variables:
        name = str(getattr(variable, "path", None) or getattr(variable, "name", None) or "gradient")
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name] - 1}")
    return names


def names_among(names: Sequence[str], variables: Sequence[Any], chosen: Iterable[Any]) -> list[str]:
    """The names of those variables that are among the chosen ones, themselves, not equals of theirs."""
    ids = {id(each) for each in chosen}
    return [name for name, variable in zip(names, variables, strict=True) if id(variable) in ids]
