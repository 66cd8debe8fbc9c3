"""What a training does on its ranks, and whether that is what it should do: recorded by hooks, judged as values.

A :class:`BehaviourRecorder` is attached to a model and an optimizer, or to a whole process. It looks at what goes into
the model while gradients are on, and at what the optimizer has before its first step; the training itself need not say
anything.
The functions of :data:`LIGHTS` compare what N ranks did with what one process alone did: "" is right, else what is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
TOLERANCE = 1e-9
"""Of equal numbers, relative to the largest. The trainings run in float64."""


@dataclass
class Seen:
    """What one rank did.

    Args:
        rank, size: as the training itself knew them.
        cores: of the machine.
        threads: that this rank computes with.
        batches: of each training pass, the numbers of its samples.
        samples: how many there are to train on.
        epochs: how many there were to be.
        start: the weights that the first pass found.
        state: the optimizer's state before its first step.
        gradient: of the first step.
        end: the weights at the end.
        reported: accuracy on the test data, as the training says.
        measured: accuracy of this rank's model on all test data.
        files: that this rank wrote.
        lines: that it printed.
        device: the GPU that it took; None if it took none.
    """

    rank: int = 0
    size: int = 1
    cores: int = 1
    threads: int = 1
    batches: list[Array] = field(default_factory=list)
    samples: int = 0
    epochs: int = 1
    start: Array | None = None
    state: Array | None = None
    gradient: Array | None = None
    end: Array | None = None
    reported: float | None = None
    measured: float = 0.0
    files: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    device: int | None = None


class BehaviourRecorder:
    """Fills a :class:`Seen`; its methods are hooks of torch.

    Args:
        images: all training images; a row of a batch is known by its pixels, so no two may be equal.
        passing: called when a training pass begins.
    """

    def __init__(self, images: Array, passing: Callable[[], None] = lambda: None) -> None:
        self.seen, self._passing = Seen(samples=len(images)), passing
        self._numbers = {row.tobytes(): i for i, row in enumerate(_rows(images))}
        self._depth = 0

    def before_forward(self, module: Any, args: Any) -> None:
        """A forward pre-hook; of the modules within a module the outermost counts."""
        import torch

        self._depth += 1
        if self._depth > 1 or not args or not torch.is_grad_enabled():
            return
        found = [self._numbers.get(row.tobytes()) for row in _rows(args[0].detach().cpu().numpy())]
        if None in found:
            return  # not training data
        if self.seen.start is None:
            self.seen.start = weights(module)
        self.seen.batches.append(np.array(found))
        self._passing()

    def after_forward(self, module: Any, args: Any, output: Any) -> None:
        """A forward hook, always called."""
        self._depth -= 1

    def before_step(self, optimizer: Any, args: Any, options: Any) -> None:
        """A pre-hook of the optimizer's step."""
        if self.seen.gradient is None:
            params = [param for group in optimizer.param_groups for param in group["params"]]
            values = [value for param in params for _, value in sorted(optimizer.state.get(param, {}).items())]
            self.seen.state = _flat([value for value in values if hasattr(value, "detach")])
            self.seen.gradient = _flat([param.grad for param in params if param.grad is not None])

    def attach(self, model: Any, optimizer: Any = None) -> None:
        """Look at this model and this optimizer only."""
        model.register_forward_pre_hook(self.before_forward)
        model.register_forward_hook(self.after_forward, always_call=True)
        if optimizer is not None:
            optimizer.register_step_pre_hook(self.before_step)


def weights(model: Any) -> Array:
    """All parameters, one after the other."""
    return _flat(list(model.parameters()))


def _flat(tensors: Sequence[Any]) -> Array:
    parts = [_whole(tensor).detach().cpu().numpy().astype(np.float64).reshape(-1) for tensor in tensors]
    return np.concatenate(parts) if parts else np.empty(0)


def _whole(tensor: Any) -> Any:
    """A tensor that is cut over the ranks is gathered: all of them ask for it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _rows(images: Array) -> Array:
    return np.ascontiguousarray(images.reshape(len(images), -1), dtype=np.float32)


# --- lights: alone is the run of one process, ranks are the runs of N -------------------------------------


def they_know_each_other(alone: Seen, ranks: Sequence[Seen]) -> str:
    """The ranks know each other."""
    for i, one in enumerate(ranks):
        if (one.rank, one.size) != (i, len(ranks)):
            return f"rank {i} of {len(ranks)} is rank {one.rank} of {one.size} to itself; init() makes them meet"
    return ""


def threads_fit(alone: Seen, ranks: Sequence[Seen]) -> str:
    """The ranks share the cores."""
    total, cores = sum(one.threads for one in ranks), max(ranks[0].cores, len(ranks))
    return "together the ranks have more threads than the machine has cores" if total > cores else ""


def own_device(alone: Seen, ranks: Sequence[Seen]) -> str:
    """Each rank has the device of its local rank."""
    for i, one in enumerate(ranks):
        if one.device is None:
            return f"rank {i} took no device"
        if one.device != 0:
            return f"rank {i} took GPU {one.device}, but its machine has only GPU 0: take that of its local_rank()"
    return ""


def each_sample_once(alone: Seen, ranks: Sequence[Seen]) -> str:
    """Each sample once per epoch, in a new order."""
    epochs = ranks[0].epochs
    for i, one in enumerate(ranks):
        if not one.batches or len(one.batches) % epochs:
            return f"rank {i} made {len(one.batches)} training passes in {epochs} epochs"
    parts = [[_epoch(one, epoch) for one in ranks] for epoch in range(epochs)]
    for epoch, part in enumerate(parts):
        counts = np.bincount(np.concatenate(part), minlength=ranks[0].samples)
        if (wrong := np.flatnonzero(counts != 1)).size:
            never, often = np.flatnonzero(counts == 0), np.flatnonzero(counts > 1)
            if never.size and often.size:
                told = f"sample {often[0]} was seen {_times(int(counts[often[0]]))}, and sample {never[0]} by no rank"
                return f"epoch {epoch}: {told}: do all ranks deal from one order?"
            return f"epoch {epoch}: sample {wrong[0]} was seen {_times(int(counts[wrong[0]]))}"
    if epochs > 1 and np.array_equal(parts[0][0], parts[1][0]):
        return "epoch 1 has the order of epoch 0: call the sampler's set_epoch(epoch) before each epoch"
    return ""


def same_global_batch(alone: Seen, ranks: Sequence[Seen]) -> str:
    """The global batch is that of one process."""
    steps = [len(one.batches) for one in ranks]
    if len(set(steps)) > 1:
        return f"rank 0 makes {steps[0]} steps, rank {_odd(steps)} {steps[_odd(steps)]}"
    for step, batch in enumerate(alone.batches):
        total = sum(len(one.batches[step]) for one in ranks) if step < steps[0] else 0
        if total != len(batch):
            return f"step {step} takes {total} samples on all ranks, {len(batch)} in one process"
    return "" if steps[0] == len(alone.batches) else f"{steps[0]} steps, {len(alone.batches)} in one process"


def same_start(alone: Seen, ranks: Sequence[Seen]) -> str:
    """The ranks begin with the same weights."""
    return _alike([one.start for one in ranks], "begins with other weights than rank 0")


def same_state(alone: Seen, ranks: Sequence[Seen]) -> str:
    """The ranks begin with the same optimizer state."""
    return _alike([one.state for one in ranks], "begins with another optimizer state (momentum) than rank 0")


def same_gradients(alone: Seen, ranks: Sequence[Seen]) -> str:
    """Every step takes the average of the gradients."""
    wrong = _alike([one.gradient for one in ranks], "makes its first step with another gradient than rank 0")
    mine, wanted = ranks[0].gradient, alone.gradient
    if wrong or mine is None or wanted is None or distance(ranks[0].start, alone.start) > TOLERANCE:
        return wrong
    size = len(ranks)
    if size > 1 and distance(mine, wanted) > TOLERANCE >= distance(mine, size * wanted):
        return f"the first gradient is {size} times that of one process: a sum, not an average"
    return ""


def same_accuracy(alone: Seen, ranks: Sequence[Seen]) -> str:
    """All ranks report the accuracy on all test data."""
    for i, one in enumerate(ranks):
        if not isinstance(one.reported, (int, float)):
            return f"rank {i} reports {one.reported!r}, not a number"
        if not math.isclose(one.reported, one.measured, rel_tol=0.0, abs_tol=5e-7):  # a sum in float32 will do
            return f"rank {i} reports {one.reported:.4f}; on all test data its model has {one.measured:.4f}"
    values = [one.reported for one in ranks]
    odd = _odd(values)
    return f"rank 0 reports {values[0]:.4f}, rank {odd} {values[odd]:.4f}" if odd else ""


def one_rank_writes(alone: Seen, ranks: Sequence[Seen]) -> str:
    """Rank 0 saves and prints, and nobody else."""
    for what, by_rank in (("saves", [one.files for one in ranks]), ("prints", [one.lines for one in ranks])):
        who = [i for i, words in enumerate(by_rank) if words]
        if who != [0]:
            several = f"ranks {' and '.join(map(str, who))} {what[:-1]}; rank 0 alone should"
            return several if len(who) > 1 else f"rank {who[0]} {what}, not rank 0" if who else f"no rank {what}"
    return ""


def same_result(alone: Seen, ranks: Sequence[Seen]) -> str:
    """The weights at the end are those of one process."""
    for i, one in enumerate(ranks):
        if (apart := distance(one.end, alone.end)) > TOLERANCE:
            return f"rank {i}: a weight differs by {apart:.2g} of the largest"
    return ""


Light = Callable[[Seen, Sequence[Seen]], str]
LIGHTS: tuple[Light, ...] = (
    they_know_each_other,
    threads_fit,
    each_sample_once,
    same_global_batch,
    same_start,
    same_state,
    same_gradients,
    same_accuracy,
    one_rank_writes,
    same_result,
)
"""In the order of the nine steps; the last is what they come to."""


def title(light: Light) -> str:
    """What a light says when it is green."""
    return (light.__doc__ or "").splitlines()[0].rstrip(".")


def _epoch(one: Seen, epoch: int) -> Array:
    steps = len(one.batches) // one.epochs
    return np.concatenate(one.batches[epoch * steps : (epoch + 1) * steps])


def _times(count: int) -> str:
    return {0: "by no rank", 1: "once"}.get(count, f"{count} times")


def _odd(values: Sequence[Any]) -> int:
    """The first whose value is not that of rank 0; 0 if there is none."""
    return next((i for i, value in enumerate(values) if value != values[0]), 0)


def _alike(arrays: Sequence[Array | None], otherwise: str) -> str:
    for i, array in enumerate(arrays):
        if array is None:
            return f"rank {i} made no training step"
        if distance(array, arrays[0]) > 0:
            return f"rank {i} {otherwise}"
    return ""


def distance(a: Array | None, b: Array | None) -> float:
    """The largest difference, as a part of the largest number."""
    if a is None or b is None or a.shape != b.shape:
        return float("inf")
    if not a.size:
        return 0.0
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-300))
