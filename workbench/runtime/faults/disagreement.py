"""What ranks disagree about, in words: what failed, the value on each rank, what to do.

The first line is in the words of Horovod's coordinator, which people search for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.common.text import by_rank, count
from workbench.core.agreement import Requests
from workbench.core.messages import Kind
from workbench.core.verbs import verb

_SAME_RATES = (
    "A scheduler that goes by a loss or a metric needs the same number on every rank: give ReduceLROnPlateau the "
    "average, loss = hvd.allreduce(loss) before scheduler.step(loss)."
)
_SAME_NUMBERS = "Give the optimizer the same numbers on every rank."
_SAME_WEIGHTS = (
    "Then load a checkpoint on every rank, or make the ranks equal by broadcast_parameters(model.state_dict(), 0) and "
    "broadcast_optimizer_state(optimizer, 0)."
)
_WORDS = {
    "operations": (
        "One rank did an {0}, but another rank did an {1}.",
        "Call the same function under this name on every rank.",
    ),
    "data types": (
        "One rank had type {0}, but another rank had type {1}.",
        "Convert the tensor to one dtype on every rank.",
    ),
    "process sets": ("One rank gave the ranks {0}, but another rank gave {1}.", "Give the same ranks on every rank."),
    "optimizers": (
        "Two optimizers have parameters of this name. By (number in use, number made), one rank sent the gradient of "
        "optimizer {0}, but another rank that of optimizer {1}.",
        "Step the optimizers in the same order on every rank, or give their parameters different names. In a search, "
        "begin each trial on all ranks together: a value that ends it early must be equal on every rank, such as an "
        "averaged metric.",
    ),
    "steps": (
        "In a cell that failed, one rank made {0}, but another rank made {1}: their weights may differ; "
        "fingerprint(model) shows whether they do.",
        "Make them equal by broadcast_parameters(model.state_dict(), 0) and broadcast_optimizer_state(optimizer, 0) "
        "in PyTorch, broadcast_variables([*model.weights, *optimizer.variables], 0) in Keras and TensorFlow, "
        "broadcast_parameters((params, state), 0) in JAX, or load a checkpoint on every rank. This error comes once: "
        "if you run the cell again, it trains with the present weights.",
    ),
    "steps made": (
        "With the same number of averaged gradients one rank made {0}, but another rank made {1}: their weights "
        "differ.",
        "Decide by the same number on every rank whether to step, such as loss = hvd.allreduce(loss), and look at "
        f"gradients for inf and nan after synchronize(). {_SAME_WEIGHTS}",
    ),
    "learning rates": (
        "One rank steps with a learning rate of {0}, but another rank with {1}: their weights drift apart.",
        f"{_SAME_RATES} {_SAME_WEIGHTS}",
    ),
    "hyperparameters": (
        "One rank steps with {0}, but another rank with {1}: their weights drift apart.",
        f"{_SAME_NUMBERS} {_SAME_WEIGHTS}",
    ),
    "weights": (
        "Two sums of some weights are {0} on one rank, but {1} on another: each gradient is an average over different "
        "models.",
        "Something was done on some ranks only: broadcast_parameters() is missing, a rank has loaded a checkpoint or "
        f"changed a weight, or its optimizer has other numbers. Do it on all ranks. {_SAME_WEIGHTS} "
        "WORKBENCH_COMPARE_STEPS=0 switches this comparison off.",
    ),
    "device selection": (
        "One rank specified device {0}, but another rank specified device {1}.",
        "Put the tensor on the same kind of device on every rank.",
    ),
    "groups": (
        "One rank submitted it in the group (name, size) {0}, but another rank in {1}.",
        "Group the same tensors on every rank.",
    ),
    "tensor shapes": (
        "One rank sent a tensor of shape {0}, but another rank sent a tensor of shape {1}.",
        "Send the same shape on every rank.",
    ),
    "reduction operation": (
        "One rank asked for {0}, but another rank asked for {1}.",
        "Give the same op= on every rank.",
    ),
    "prescale and/or postscale factors": (
        "One rank gave {0}, but another rank gave {1}.",
        "Give the same prescale_factor= and postscale_factor= on every rank.",
    ),
    "root ranks": (
        "One rank specified root rank {0}, but another rank specified root rank {1}.",
        "Give the same root_rank= on every rank.",
    ),
}
"""By the end of what differs: Horovod's sentence, and what to do."""
_PROGRESS = {
    "steps made": "steps made",
    "lr": "learning rates",
    "learning_rate": "learning rates",
    "weights": "weights",
}
"""What differs in the ranks' progress; all else are hyperparameters."""
_RAGGED = (
    "All dimensions but the first must be equal (dimensions, shape after the first): {0} and {1}.",
    "Only the first dimension may differ between ranks.",
)
_MOST_NUMBERS = 6  # of one rank, in a text
_ALLREDUCE = "Send the same shape on every rank, or use allgather for different numbers of rows."


def explain(what: str, requests: Requests, values: dict[int, Any]) -> str:
    """See :data:`workbench.core.agreement.Explain`.

    Example:
        >>> from workbench.core.messages import Request
        >>> requests = {rank: Request("x", Kind.BROADCAST, root=rank) for rank in range(2)}
        >>> print(explain("broadcast root ranks", requests, {0: 0, 1: 1}))
        Mismatched broadcast root ranks: One rank specified root rank 0, but another rank specified root rank 1.
          in 'x':
          rank 0: 0
          rank 1: 1
        Give the same root_rank= on every rank.
    """
    request = next(iter(requests.values()))
    about = what
    if what in dict(request.progress):
        what = _PROGRESS.get(what, "hyperparameters")
    phrase, cure = next(words for end, words in _WORDS.items() if what.endswith(end))
    if what.endswith("tensor shapes"):
        if verb(request.kind).ragged:
            phrase, cure = _RAGGED
        elif request.kind is Kind.ALLREDUCE:
            cure = _ALLREDUCE
    shown: dict[int, Any] = {rank: list(value) if isinstance(value, tuple) else value for rank, value in values.items()}
    if what == "steps":
        shown = {rank: _steps(*value) for rank, value in values.items()}
    if what == "steps made":
        shown = {rank: count(int(steps), "step") for rank, (steps,) in values.items()}
    if what in ("learning rates", "hyperparameters", "weights"):
        shown = _numbers(values, f"{about}=" if what == "hyperparameters" else "")
    one, *others = dict.fromkeys(map(str, shown.values()))
    other = others[0] if others else one  # all ranks have interrupted a step, each at a place of its own
    lines = [f"Mismatched {what}: {phrase.format(one, other)}", f"  in {request.name!r}:"]
    return "\n".join([*lines, *by_rank({rank: str(value) for rank, value in shown.items()}), cure])


def _numbers(values: Mapping[int, Sequence[float]], before: str) -> dict[int, str]:
    """By rank, those that not every rank has: with more digits than they may differ by."""
    written = {rank: [f"{before}{number:.7g}" for number in numbers] for rank, numbers in values.items()}
    common = set.intersection(*map(set, written.values()))
    own = {rank: [number for number in numbers if number not in common] for rank, numbers in written.items()}
    return {
        rank: ", ".join([*r[:_MOST_NUMBERS], *["…"] * (len(r) > _MOST_NUMBERS)]) or "no other"
        for rank, r in own.items()
    }


def cure_of(what: str) -> str:
    """What to do where the ranks' progress differs in this."""
    return {"lr": _SAME_RATES, "weights": f"A rank alone has changed them. {_SAME_WEIGHTS}"}.get(what, _SAME_NUMBERS)


def _steps(made: int = 0, failed: int = 0, torn: int = 0) -> str:
    """In words; ``torn`` is a number of the rank's own."""
    more = [f"{count(failed, 'step')} that raised"] * bool(failed) + ["one that was interrupted halfway"] * bool(torn)
    return " and ".join([count(made, "step"), *more])
