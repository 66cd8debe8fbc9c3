"""What a converted script for PyTorch must not have, with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from workbench.convert import randomness
from workbench.convert.pytorch.training import Optimizer
from workbench.convert.script import Script, last
from workbench.convert.source import Reason

_CALLS = {
    "torch.nn.DataParallel": "DataParallel splits a batch over GPUs itself: remove it, a rank has one GPU.",
    "torch.nn.parallel.DataParallel": "DataParallel splits a batch over GPUs itself: remove it, a rank has one GPU.",
    "torch.cuda.set_device": "this chooses a GPU, which would be the same on all ranks: remove it.",
    "torch.multiprocessing.spawn": "the script starts processes: call the function once, a launcher starts ranks.",
    "torch.autograd.grad": "gradients of torch.autograd.grad() do not pass the optimizer: average them by hand.",
}
_BASES = {
    "torch.utils.data.IterableDataset": "an IterableDataset has no indices: share it by rank in __iter__, by hand."
}


def found(script: Script) -> Iterator[Reason]:
    """All that are there."""
    for call in script.all(cst.Call):
        if text := _CALLS.get(script.meaning(call.func)):
            yield script.reason(call, text)
    for each in script.all(cst.ClassDef):
        for base in each.bases:
            if text := _BASES.get(script.meaning(base.value)):
                yield script.reason(each, text)
    yield from randomness.refused(script)


def weights_after(script: Script, optimizer: Optimizer) -> Iterator[Reason]:
    """Weights that are drawn after the optimizer was made would be drawn after the broadcast."""
    place, line = script.function(optimizer.made), script.line(optimizer.made)
    for call in script.all(cst.Call):
        meaning = script.meaning(call.func)
        draws = meaning.startswith("torch.nn.init.") or last(call.func) in ("apply", "reset_parameters")
        if draws and script.function(call) is place and script.line(call) > line:
            yield script.reason(call, "this changes weights after their broadcast: move it before the optimizer.")
