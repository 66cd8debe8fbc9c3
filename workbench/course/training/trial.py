"""Run a learner's training on threads that are ranks, alone and together, and look at what it does: lessons 10, 13."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from workbench import config
from workbench.course.judging.judge import described
from workbench.course.simulator.deadline import MOST_TIMES
from workbench.course.training import behaviour
from workbench.errors import NotInitializedError

DEADLINE_S = 10.0
Property = Callable[[Callable[..., Any]], str]


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
        training: of :data:`TRAININGS`.
        sizes: on how many, besides one alone.
    """

    def __init__(self, training: str, sizes: Sequence[int]) -> None:
        self._training, self._sizes = training, sizes
        self._alone = behaviour.Seen()
        self._together: dict[int, list[behaviour.Seen]] = {}

    def runs(self, function: Callable[..., Any]) -> str:
        """It runs, alone and together."""
        try:
            self._alone = run(self._training, 1, function)[0]
        except NotImplementedError:
            raise
        except Exception as error:  # noqa: BLE001 - the learner's
            return f"on one rank: {described(error)}"
        for n in self._sizes:
            try:
                self._together[n] = run(self._training, n, function)
            except Exception as error:  # noqa: BLE001 - the learner's
                return f"on {n} ranks: {described(error)}"
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


class JobRank:
    """One rank's part of ``function(hvd, job)``.

    Args:
        seed: of its weights.
        digits: see :meth:`data`; the rank's own.
        first: it goes on from a checkpoint, as rank 0 does.
    """

    epochs = Job.epochs

    def __init__(self, seed: int, digits: Any, first: bool) -> None:
        self.digits, self.job = digits, _job(seed, digits, first)
        self.model, self.optimizer = self.job.model, self.job.optimizer
        self.watched = (self.model, self.optimizer)

    @staticmethod
    def data() -> Any:
        """The digits that it trains on and is tested with."""
        from workbench import data

        return data.digits().limit(240, 101)

    def train(self, function: Callable[..., Any], hvd: Any) -> Any:
        return function(hvd, self.job)

    def tell(self, seen: behaviour.Seen) -> None:
        """Add what only the job knows."""
        job = self.job
        seen.epochs, seen.files, seen.lines = job.epochs, job.files, job.lines
        seen.device = job.taken[-1] if job.taken else None


class CapstoneRank:
    """One rank's part of ``function(hvd, model, digits, batch, epochs)``; see :class:`JobRank`."""

    batch, epochs = 72, 3

    def __init__(self, seed: int, digits: Any, first: bool) -> None:
        self.digits, self.model = digits, make_model(seed)
        self.watched = (self.model,)

    @property
    def optimizer(self) -> Any:
        """The one that the exercise asks for; a new one each time."""
        import torch

        return torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)

    @staticmethod
    def data() -> Any:
        """The digits that it trains on and is tested with."""
        from workbench import data

        return data.digits().limit(1433)

    def train(self, function: Callable[..., Any], hvd: Any) -> Any:
        return function(hvd, self.model, self.digits, self.batch, self.epochs)

    def tell(self, seen: behaviour.Seen) -> None:
        """How often each sample was to be seen."""
        seen.epochs = self.epochs


TRAININGS: dict[str, type[JobRank] | type[CapstoneRank]] = {"job": JobRank, "capstone": CapstoneRank}


@runtime_checkable
class Elsewhere(Protocol):
    """A function that runs in other processes, see ``course/grading/live``."""

    def seen(self, training: str, n: int) -> list[behaviour.Seen]:
        """What it does on n ranks, each with a part of this training of :data:`TRAININGS`."""


def run(training: str, n: int, function: Callable[..., Any]) -> list[behaviour.Seen]:
    """What a function does on n ranks, each with a part of this training of :data:`TRAININGS`.

    They are threads of this process, unless it is to run elsewhere. The judge compares the ranks by itself.
    """
    with config.changed_environment(WORKBENCH_COMPARE_STEPS="0"):
        return function.seen(training, n) if isinstance(function, Elsewhere) else _run_here(training, n, function)


def _run_here(training: str, n: int, function: Callable[..., Any]) -> list[behaviour.Seen]:
    import torch

    import workbench.torch as hvd

    kind = TRAININGS[training]
    digits = kind.data()
    parts = [kind(rank, digits, first=rank == 0) for rank in range(n)]
    threads = torch.get_num_threads()
    try:
        most_s = MOST_TIMES * DEADLINE_S  # by the clock; the judge counts without the time that other programs take
        return hvd.run_threads(n, lambda: one_rank(parts[hvd.rank()], hvd.rank(), n, function), most_s)
    finally:
        torch.set_num_threads(threads)


def one_rank(
    part: Any, rank: int, size: int, function: Callable[..., Any], passing: Callable[[], None] = lambda: None
) -> behaviour.Seen:
    """What a learner's function does on this rank.

    Args:
        part: a :class:`JobRank` or :class:`CapstoneRank`.
        rank, size: of the world that this thread or process is a rank of.
        function: the learner's.
        passing: called when a training pass begins.
    """
    import torch

    from workbench.course.training.conversion import accuracy

    torch.set_num_threads(1)  # the ranks share the cores already
    recorder, gate = behaviour.BehaviourRecorder(part.digits.train_x, passing), Gate()
    recorder.attach(*part.watched)
    seen = recorder.seen
    seen.reported = part.train(function, gate)
    seen.rank, seen.size = (rank, size) if gate.open else (0, 1)
    seen.end, seen.measured = behaviour.weights(part.model), accuracy(part.model, part.digits)
    part.tell(seen)
    return seen


def make_model(seed: int) -> Any:
    """A small network for 8 × 8 pixels, in float64; the weights depend on the seed alone."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten()]
        model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 10)).double()
    torch.optim.SGD(model.parameters(), lr=0.1)  # loads what torch loads with its first optimizer: not in a rank's time
    return model


def _job(seed: int, digits: Any, first: bool) -> Job:
    import torch
    from torch.utils.data import TensorDataset

    model = make_model(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if first:  # it goes on from a checkpoint
        for param in model.parameters():
            param.grad = 0.1 * param.detach().clone()
        optimizer.step()
        optimizer.zero_grad()
    sets = [TensorDataset(torch.from_numpy(x).double(), torch.from_numpy(y)) for x, y in map(digits.arrays, _PARTS)]
    return Job(model, optimizer, sets[0], sets[1])


_PARTS = ("train", "test")
