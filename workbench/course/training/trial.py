"""Run a learner's training on threads that are ranks, alone and together, and look at what it does: lessons 10, 13."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.course.judging.judge import told
from workbench.course.training import behaviour
from workbench.errors import NotInitializedError

DEADLINE_S = 10.0
Property = Callable[[Callable[..., Any]], str]
Runner = Callable[[int, Callable[..., Any]], list[behaviour.Seen]]


@dataclass
class Job:
    """What a training needs, on one rank. The sets are the same on all ranks; weights and momentum are not.

    Attributes:
        model, optimizer: a network for the digits, SGD with momentum. On rank 0 they come from a checkpoint.
        train_set, test_set: images and labels.
        batch, epochs: samples per step of all ranks together, and how often each is seen.
        taken, files, lines: what :meth:`pin`, :meth:`save` and :meth:`log` were given.
    """

    model: Any
    optimizer: Any
    train_set: Any
    test_set: Any
    batch: int = 24
    epochs: int = 3
    taken: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def pin(self, number: int) -> None:
        """Take the GPU of that number on this machine; stands for ``torch.cuda.set_device(number)``."""
        self.taken.append(number)

    def save(self) -> None:
        """Write the checkpoint of model and optimizer."""
        self.files.append("checkpoint")

    def log(self, text: str) -> None:
        """Print a line."""
        self.lines.append(text)


def train_alone(job: Any) -> Any:
    """Train in one process; return the accuracy on the test digits."""
    import torch
    from torch.utils.data import DataLoader

    job.pin(0)
    train_loader = DataLoader(job.train_set, batch_size=job.batch, shuffle=True)
    test_loader = DataLoader(job.test_set, batch_size=job.batch)
    optimizer, loss = job.optimizer, torch.nn.CrossEntropyLoss()
    for _ in range(job.epochs):
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss(job.model(images), labels).backward()
            optimizer.step()
    right, seen = 0, 0
    with torch.no_grad():
        for images, labels in test_loader:
            right += (job.model(images).argmax(dim=1) == labels).sum().item()
            seen += len(labels)
    accuracy = right / seen
    job.save()
    job.log(f"{accuracy:.1%} of the test digits are read right")
    return accuracy


class Gate:
    """``workbench.torch`` as a script finds it: nothing works before init(); each rank is on a machine of its own."""

    def __init__(self) -> None:
        self.open = False

    def init(self) -> None:
        """Rendezvous with the other ranks."""
        self.open = True

    def __getattr__(self, name: str) -> Any:
        import workbench.torch as hvd

        alone = {"local_rank": lambda: 0, "local_size": lambda: 1}
        moved = {"cross_rank": "rank", "cross_size": "size"}
        value = alone.get(name) or getattr(hvd, moved.get(name, name))
        if callable(value) and not self.open:
            raise NotInitializedError(f"hvd.{name}() before hvd.init().")
        return value


class Trial:
    """The runs of a learner's function that all its properties look at.

    Args:
        runner: runs it on so many ranks.
        sizes: on how many, besides one alone.
    """

    def __init__(self, runner: Runner, sizes: Sequence[int]) -> None:
        self._runner, self._sizes = runner, sizes
        self._alone = behaviour.Seen()
        self._together: dict[int, list[behaviour.Seen]] = {}

    def runs(self, function: Callable[..., Any]) -> str:
        """It runs, alone and together."""
        try:
            self._alone = self._runner(1, function)[0]
        except NotImplementedError:
            raise
        except Exception as error:  # noqa: BLE001 - the learner's
            return f"on one rank: {told(error)}"
        for n in self._sizes:
            try:
                self._together[n] = self._runner(n, function)
            except Exception as error:  # noqa: BLE001 - the learner's
                return f"on {n} ranks: {told(error)}"
        return ""

    def sees(self, light: behaviour.Light) -> Property:
        """A light, as a property of the function that has just run."""

        def holds(function: Callable[..., Any]) -> str:
            for n in self._sizes:
                if wrong := light(self._alone, self._together[n]):
                    return f"{n} ranks: {wrong}" if len(self._sizes) > 1 else wrong
            return ""

        holds.__doc__ = light.__doc__
        return holds


def run_job(n: int, function: Callable[..., Any]) -> list[behaviour.Seen]:
    """What ``function(hvd, job)`` does on n ranks."""
    from workbench import data

    digits = data.digits().limit(240, 101)
    jobs = [_job(rank, digits) for rank in range(n)]
    recorders = [behaviour.Recorder(digits.train_x) for _ in jobs]
    for job, recorder in zip(jobs, recorders, strict=True):
        recorder.attach(job.model, job.optimizer)
    found = _on_threads(
        n, lambda rank, gate: function(gate, jobs[rank]), recorders, [job.model for job in jobs], digits
    )
    for seen, job in zip(found, jobs, strict=True):
        seen.epochs, seen.files, seen.lines = job.epochs, job.files, job.lines
        seen.device = job.taken[-1] if job.taken else None
    return found


def run_capstone(n: int, function: Callable[..., Any]) -> list[behaviour.Seen]:
    """What ``function(hvd, model, digits, batch, epochs)`` does on n ranks."""
    from workbench import data

    digits, batch, epochs = data.digits().limit(1433), 72, 3
    models = [make_model(rank) for rank in range(n)]
    recorders = [behaviour.Recorder(digits.train_x) for _ in models]
    for model, recorder in zip(models, recorders, strict=True):
        recorder.attach(model)
        recorder.seen.epochs = epochs
    return _on_threads(
        n, lambda rank, gate: function(gate, models[rank], digits, batch, epochs), recorders, models, digits
    )


def _on_threads(
    n: int,
    train: Callable[[int, Gate], Any],
    recorders: Sequence[behaviour.Recorder],
    models: Sequence[Any],
    digits: Any,
) -> list[behaviour.Seen]:
    import torch

    import workbench.torch as hvd
    from workbench.course.training.conversion import accuracy

    def on_a_rank() -> behaviour.Seen:
        torch.set_num_threads(1)  # the ranks are threads already
        rank, gate = hvd.rank(), Gate()
        seen = recorders[rank].seen
        seen.reported = train(rank, gate)
        seen.rank, seen.size = (rank, n) if gate.open else (0, 1)
        seen.end, seen.measured = behaviour.weights(models[rank]), accuracy(models[rank], digits)
        return seen

    threads = torch.get_num_threads()
    try:
        return hvd.run_threads(n, on_a_rank, DEADLINE_S)
    finally:
        torch.set_num_threads(threads)


def make_model(seed: int) -> Any:
    """A small network for 8 × 8 pixels, in float64; the weights depend on the seed alone."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten()]
        model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 10)).double()
    torch.optim.SGD(model.parameters(), lr=0.1)  # loads what torch loads with its first optimizer: not in a rank's time
    return model


def _job(rank: int, digits: Any) -> Job:
    import torch
    from torch.utils.data import TensorDataset

    model = make_model(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if rank == 0:  # it goes on from a checkpoint
        for param in model.parameters():
            param.grad = 0.1 * param.detach().clone()
        optimizer.step()
        optimizer.zero_grad()
    sets = [TensorDataset(torch.from_numpy(x).double(), torch.from_numpy(y)) for x, y in map(digits.arrays, _PARTS)]
    return Job(model, optimizer, sets[0], sets[1])


_PARTS = ("train", "test")
