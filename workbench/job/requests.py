"""Checks of a call on this rank, before anything is sent; a call that passes becomes a named Request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import index
from time import perf_counter_ns
from typing import Any

from workbench.core.messages import Kind, Progress, ReduceOp, Request
from workbench.core.verbs import MOVED, VERBS, verb
from workbench.errors import UnsupportedTensorError
from workbench.job.context import HOLDER, Context
from workbench.job.process_sets import NOT_REGISTERED, ProcessSet, global_process_set

_LONGEST_NAME = 4096


def checked(
    kind: Kind,
    name: str | None,
    dtype: str,
    shape: tuple[int, ...],
    splits: Sequence[int] | None,
    process_set: ProcessSet,
    context: Context,
    fields: dict[str, Any],
) -> Request:
    """What the coordinator is told of a tensor.

    Raises:
        UnsupportedTensorError: dtype or shape cannot be sent.
        ValueError: an unknown process set or root, splits that do not fit, or a name that is too long.
        TypeError: an argument of another kind, such as ``op=1``.
    """
    set_id = _set_id(process_set, context)
    full_name = f"{kind.value}.{'noname' if name is None else name}"
    if len(full_name) > _LONGEST_NAME:
        raise ValueError(
            f"A name of {len(full_name)} characters is too long; {_LONGEST_NAME} are allowed: {full_name[:50]}…"
        )
    ranks = context.sets.members[set_id]
    fields = {field: _as_sent(full_name, field, value) for field, value in fields.items()}
    _check(kind, full_name, dtype, shape, ranks, fields)
    rows = _splits(full_name, shape, splits, len(ranks)) if verb(kind).splits else tuple(splits or ())
    if name is None:  # not before the checks: a call that is refused must not use up a number
        full_name = context.names.next(kind.value, set_id)
    return Request(full_name, kind, dtype, shape, process_set=set_id, splits=rows, **fields)


_ARGUMENTS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "op": ("op", "one of Average, Sum, Min, Max, Product and Adasum", ReduceOp),
    "root": ("root_rank", "a whole number", index),
    "prescale": ("prescale_factor", "a number", lambda value: float(value + 0)),  # not of a text
    "postscale": ("postscale_factor", "a number", lambda value: float(value + 0)),
}


def _as_sent(name: str, field: str, value: Any) -> Any:
    """In the type that is sent: all ranks must be told a wrong one at the call. NumPy's numbers become Python's."""
    if field not in _ARGUMENTS:
        return value
    argument, wanted, convert = _ARGUMENTS[field]
    try:
        return convert(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name!r}: {argument} must be {wanted}, and is {value!r}.") from None


def _set_id(process_set: ProcessSet, context: Context) -> int:
    set_id = process_set.process_set_id
    if set_id is None or set_id not in context.sets.members:
        raise ValueError(NOT_REGISTERED.format(process_set))
    if context.sets.backend(set_id) is None:
        raise ValueError(
            f"Rank {context.world.rank} does not belong to {process_set}. Call the collective on its members only: "
            "if process_set.included(): ..."
        )
    return set_id


def _check(kind: Kind, name: str, dtype: str, shape: tuple[int, ...], ranks: Sequence[int], fields: Any) -> None:
    one = verb(kind)
    if not one.moves:
        return
    if dtype not in one.dtypes:
        raise UnsupportedTensorError(_refused(kind, name, dtype))
    if one.by_rows and not shape:
        raise UnsupportedTensorError(f"{name!r}: {kind.value} needs at least one dimension. Give it shape (1,).")
    op = fields.get("op")
    if dtype == "bool" and op in (ReduceOp.AVERAGE, ReduceOp.ADASUM):
        raise UnsupportedTensorError(
            f"{name!r}: {op.value} of bool is not defined. Use op=Sum (or), Product (and), or floats."
        )
    if op is ReduceOp.ADASUM:
        _check_adasum(kind, name, dtype, len(ranks))
    root = fields.get("root", ranks[0])
    if root not in ranks:
        raise ValueError(f"{name!r}: root rank {root} does not take part. Ranks that do: {', '.join(map(str, ranks))}.")


def _refused(kind: Kind, name: str, dtype: str) -> str:
    known = ", ".join(sorted(verb(kind).dtypes))
    text = f"{name!r}: {kind.value} does not take dtype {dtype}. Convert it to one of {known}."
    if dtype.startswith("complex"):
        text += " In PyTorch torch.view_as_real(tensor) has the same numbers as pairs of floats; keep a parameter so."
    *most, last = sorted(other.value for other, one in VERBS.items() if one.moves and not one.reduces)
    return f"{text} Without conversion, {', '.join(most)} and {last} take it." if dtype in MOVED else text


def _check_adasum(kind: Kind, name: str, dtype: str, n: int) -> None:
    if kind is not Kind.ALLREDUCE or "float" not in dtype:
        raise UnsupportedTensorError(f"{name!r}: Adasum works only with allreduce of floating-point tensors.")
    if n & (n - 1):
        raise NotImplementedError(f"Running Adasum with non-power of 2 ranks is not supported yet; there are {n}.")


def _splits(name: str, shape: tuple[int, ...], splits: Sequence[int] | None, n: int) -> tuple[int, ...]:
    if splits is None:
        if shape[0] % n:
            raise ValueError(f"{name!r}: {shape[0]} rows cannot be split evenly over {n} ranks. Give splits=.")
        return (shape[0] // n,) * n
    rows = tuple(int(part) for part in splits)
    if len(rows) != n or min(rows) < 0 or sum(rows) != shape[0]:
        raise ValueError(
            f"{name!r}: splits {list(rows)} do not match {shape[0]} rows and {n} ranks: give {n} numbers, none "
            "negative, whose sum is the number of rows."
        )
    return rows


def auto_name(kind: Kind, process_set: ProcessSet = global_process_set) -> str:
    """A numbered name, for a group that the caller did not name."""
    return HOLDER.get().names.next(kind.value, process_set.process_set_id or 0).partition(".")[2]


@contextmanager
def group_name(kind: Kind, name: str | None, process_set: ProcessSet = global_process_set) -> Iterator[str]:
    """The caller's name for a group, or a numbered one, which is given back if the block refuses the group."""
    if name is not None:
        yield name
        return
    try:
        yield auto_name(kind, process_set)
    except BaseException:
        HOLDER.get().names.give_back(kind.value, process_set.process_set_id or 0)
        raise


_FIRST = {"user": (1, 1)}


class OrderOfUse:
    """Tells an object from others of this rank that use the same names, by the order in which they come.

    Two optimizers of one job may have parameters of the same names and shapes. If the ranks step them in unlike order,
    the gradients of one would be summed with those of the other. The numbers of a second object are not those of
    another rank's second object then, and this is seen. Objects that are not used do not count: a notebook's cell,
    which makes one, may have been run more often on one rank.

    Args:
        made: which object it is, and before or after which others it was made; by default it is made now. Two of equal
            ``made`` are one.
        names: all that it uses, where they are known: with the first of them it has come for each, also for one that a
            rank does not use.

    Attributes:
        steps: the steps that it has made, where the ranks are to compare them; see ``training/step_count.py``.
        read_progress: what must be equal on all ranks, as it is now; see ``training/progress.py``.

    Example:
        >>> from workbench.job.joining import run_threads
        >>> def two(swapped):
        ...     first, second = OrderOfUse(), OrderOfUse()
        ...     return [one.among("weight") for one in ((second, first) if swapped else (first, second))]
        >>> run_threads(1, lambda: two(swapped=False)), run_threads(1, lambda: two(swapped=True))
        ([[(1, 1), (2, 2)]], [[(1, 1), (2, 1)]])
    """

    def __init__(self, made: tuple[int, ...] | None = None, names: Iterable[str] = ()) -> None:
        self._names = names
        self.made = (1, perf_counter_ns()) if made is None else (0, *made)
        self.steps: tuple[int, ...] = ()
        self.read_progress: Callable[[], Progress] = tuple

    def among(self, name: str, process_set: ProcessSet = global_process_set) -> tuple[int, int]:
        """The object's number among those that use the name in this job, by use, and by when they were made."""
        # It begins anew with another job, and when a cell has failed, for then not all ranks have come as far.
        everything, where = HOLDER.get().names.users, process_set.process_set_id or 0
        if self.made not in everything.get((name, where), ()):
            for each in {name: None, **dict.fromkeys(self._names)}:
                came = everything.setdefault((each, where), {})
                came.setdefault(self.made, (len(came) + 1, sum(other < self.made for other in came) + 1))
        return everything[name, where][self.made]

    def about(self, name: str, process_set: ProcessSet) -> dict[str, Any]:
        """Fields of a :class:`~workbench.core.messages.Request`: ``user``, and if it carries it, ``progress``."""
        rounds = HOLDER.get().names.rounds[self.made]
        rounds.first = min(name, rounds.first or name)
        found: dict[str, Any] = {"user": self.among(name, process_set) + self.steps}
        if name == rounds.carrier:
            found["progress"] = (("steps made", rounds.steps), *self.read_progress())
        return found

    def fields(self, name: str, process_set: ProcessSet) -> dict[str, Any]:
        """As :meth:`about`, but none for the first object, as most are."""
        found = self.about(name, process_set)
        return {} if found == _FIRST else found

    def note_round(self) -> None:
        """All gradients of a step are reduced. After some of these rounds one of the next one's requests has progress.

        The coordinator compares it where that of all ranks comes. So nothing is compared, and nobody waits, where
        ranks have counted unlike, as those do of which one has begun later.
        """
        context = HOLDER.get()
        rounds = context.names.rounds[self.made]
        rounds.number += 1
        compared = _compared_after(rounds.number, context.settings.compare_steps)
        rounds.first, rounds.carrier = "", rounds.first if compared else ""

    def note_step(self) -> None:
        """A step is made, with gradients of the last round."""
        HOLDER.get().names.rounds[self.made].steps += 1

    def begin_anew(self) -> None:
        """The ranks have heard of a difference, which is told once, or have the same weights now."""
        HOLDER.get().names.rounds.pop(self.made, None)


def _compared_after(rounds: int, every: int) -> bool:
    """Seldom, for a request that differs from the one before is announced in full; but soon after the first steps.

    Example:
        >>> [rounds for rounds in range(1, 200) if _compared_after(rounds, every=64)]
        [4, 8, 16, 32, 64, 128, 192]
        >>> _compared_after(4, every=0)
        False
    """
    return every > 0 and (rounds % every == 0 or (2 < rounds < every and rounds & (rounds - 1) == 0))
