"""``workbench.measure()``: the ranks that run, and a training step on them.

::

    %%px
    found = workbench.measure(model, (images, labels))      # all ranks: links, layers, contention
    workbench.predict(found, ranks=[4, 8, 16], hosts=2)
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.calibration.contention import measure_contention
from workbench.calibration.links import measure_links
from workbench.job import api
from workbench.job.context import HOLDER
from workbench.job.report import StepTimes
from workbench.simulate.measured.fit import DOUBT
from workbench.simulate.measured.prediction import Measured, predict
from workbench.training.memory import bucket_bytes
from workbench.training.planned import keep

if TYPE_CHECKING:
    import torch

    from workbench.calibration.spans import Loss, MakeOptimizer

_TRIED = 6  # steps take so long as a measurement at most: a trial makes five of them, in each of two ways


def measure(
    model: torch.nn.Module | None = None,
    batch: tuple[Any, Any] | None = None,
    loss: Loss | None = None,
    optimizer: MakeOptimizer | None = None,
    seconds: float = 8.0,
    doubt: float = DOUBT,
    wire: str = "float32",
) -> Measured:
    """Measure the ranks that run, and a training step on them; all ranks call it.

    The job keeps the last result of each ``wire``: for ``DistributedOptimizer(..., plan="auto")``.

    The step is that of a copy of the model, without communication; where it is short enough, copies are then trained
    for some steps with it (:mod:`workbench.calibration.trials`). The model itself is left alone, and so are the random
    states, of which dropout takes numbers.

    Args:
        model: PyTorch's; without one, only the links are measured.
        batch: (inputs, targets) of one step of this rank.
        loss: of the output and the targets; cross entropy if None.
        optimizer: makes one from the parameters; SGD if None.
        seconds: how long, about; the trial takes besides 10 steps at least, 22 of short ones.
        doubt: how much of the links' times is allowed, see :class:`~workbench.simulate.measured.fit.Fit`.
        wire: dtype of the gradients on the wire: float16 or bfloat16 with ``compression=``.

    Returns:
        The same on all ranks.

    Raises:
        WorkbenchError: there is one rank, or the hosts have different numbers of ranks.
        ValueError: a model without parameters, or without a batch.
        NoisyError: the doubt is larger: something else keeps the machine or the link busy.

    Example:
        >>> import torch
        >>> def found():
        ...     batch = torch.ones(2, 3), torch.zeros(2).long()
        ...     return measure(torch.nn.Linear(3, 4), batch, seconds=0.5, doubt=10)
        >>> [one.links.per_host for one in api.run_threads(2, found)]
        [2, 2]
    """
    if model is None:
        return keep(Measured(measure_links(seconds, doubt, wire), bucket_bytes=bucket_bytes()))
    if batch is None:
        raise ValueError("measure(model) needs the batch of one step: measure(model, (inputs, targets)).")
    from workbench.calibration.spans import Recording

    with _states_kept():
        recording = Recording(model, batch, loss, optimizer, wire)
        links = measure_links(seconds / 2, doubt, wire)
        api.barrier()
        mine = recording.spans(seconds / 4)
        contention = measure_contention(recording.step, seconds / 4, wire)
    times = np.array([[span.forward_s, span.backward_s] for span in mine])
    slowest = float(api.allreduce(np.array([times.sum()]), "workbench.measure.slowest", op=api.Max)[0])
    times = api.allreduce(times, "workbench.measure.spans")  # a layer's share of the step, on average
    times *= slowest / times.sum()
    layers = tuple(replace(s, forward_s=float(f), backward_s=float(b)) for s, (f, b) in zip(mine, times, strict=True))
    found = Measured(links, layers, contention, bucket_bytes())
    if _TRIED * predict(found, [api.size()]).rows[0].step_s < seconds and next(model.parameters()).device.type == "cpu":
        from workbench.calibration.trials import try_ways

        with _states_kept():
            found = replace(found, steps_s=try_ways(model, recording, wire, seconds / 4))
    return keep(found)


@contextmanager
def _states_kept() -> Iterator[None]:
    """Random numbers that are drawn within it come again: torch's, numpy's, Python's. Its steps are not the job's."""
    import torch

    pythons, numpys, context = random.getstate(), np.random.get_state(), HOLDER.find()
    steps = vars(context.part(StepTimes)) if context else {}
    before = copy.deepcopy(steps)
    try:
        with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):  # type: ignore[no-untyped-call]
            yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)
        steps.update(before)
