"""What each rank of a ``TorchEstimator`` does."""

from __future__ import annotations

import inspect
import io
import itertools
import json
import posixpath
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pickle import loads
from typing import Any

import torch

import workbench.torch as hvd
from workbench.errors import WorkbenchError
from workbench.spark.common.shards import Batch, Share
from workbench.spark.common.spec import Spec
from workbench.spark.torch.predicting import dtype_of


@dataclass(frozen=True)
class Parts:
    """What is the user's and of torch.

    Args:
        losses: one for each output, or one for all.
        constructors: functions that make them; then there are none.
        metrics: groups of functions: one for each output, or one for all.
        shapes: of the features.
        step: in place of forward, loss, backward and step; or None.
    """

    losses: Sequence[Callable[..., Any]]
    constructors: Sequence[Callable[..., Any]]
    metrics: Sequence[Sequence[Callable[..., Any]]]
    shapes: Sequence[Sequence[int]]
    step: Callable[..., Any] | None


def train(spec: Spec, parts: Parts, content: bytes, checkpoint: bytes | None) -> tuple[list[Any], bytes] | None:
    """Train one rank.

    Args:
        spec, parts: what is trained, and how.
        content: model and optimizer, pickled by the driver; it came inside the job's own files.
        checkpoint: to go on from, if there is one.

    Returns:
        On rank 0 the history, and the state at the end as :func:`load` takes it.
    """
    hvd.init()
    if spec.random_seed is not None:
        torch.manual_seed(spec.random_seed + hvd.rank())
    model, optimizer = loads(content)
    device = _device(spec.use_gpu)
    model.to(device)
    if checkpoint is not None:
        load(checkpoint, model, optimizer)
    for group in optimizer.param_groups:
        group["lr"] *= hvd.size()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    more = {} if spec.gradient_compression is None else {"compression": spec.gradient_compression}
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        backward_passes_per_step=spec.backward_passes_per_step,
        **more,
    )
    trainer = _Trainer(spec, parts, model, optimizer, device)
    share, held_out = spec.training(hvd.rank(), hvd.size()), spec.validation(hvd.rank(), hvd.size())
    batches, others = share.batches(), held_out.batches() if held_out else None
    history, state = list[Any](), b""
    for epoch in range(spec.epochs):
        found: dict[str, Any] = {"epoch": epoch, "train": trainer.train(share, batches)}
        if held_out and others:
            found["validation"] = trainer.validate(held_out, others)
        history.append(found)
        if hvd.rank() == 0:
            state = _state(model, optimizer, hvd.size())
            _keep(spec, state, history)
            if spec.verbose:
                print(found)
    return (history, state) if hvd.rank() == 0 else None


def load(checkpoint: bytes, model: Any, optimizer: Any) -> None:
    """Take over the state of a model and its optimizer. A checkpoint holds tensors and numbers, no code."""
    state = torch.load(io.BytesIO(checkpoint), weights_only=True, map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def _device(use_gpu: bool) -> torch.device:
    if not (use_gpu and torch.cuda.is_available()):
        return torch.device("cpu")
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def _state(model: Any, optimizer: Any, size: int) -> bytes:
    """With the learning rate of one rank: the next training may have another number of them."""
    state = optimizer.state_dict()
    groups = [{**group, "lr": group["lr"] / size} for group in state["param_groups"]]
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": {**state, "param_groups": groups}}, file)
    return file.getvalue()


def _keep(spec: Spec, state: bytes, history: list[Any]) -> None:
    store = spec.store
    folder, logs = store.get_checkpoint_path(spec.run_id), store.get_logs_path(spec.run_id)
    if folder and logs:
        store.write(posixpath.join(folder, store.get_checkpoint_filename()), state)
        store.write_text(posixpath.join(logs, "history.json"), json.dumps(history))


class _Trainer:
    """One rank's model at work."""

    def __init__(self, spec: Spec, parts: Parts, model: Any, optimizer: Any, device: torch.device) -> None:
        self._spec, self._parts, self._model, self._optimizer, self._device = spec, parts, model, optimizer, device
        self._dtype = getattr(torch, dtype_of(model))
        given = {"model": model, "optimizer": optimizer}
        losses = [_called(make, given) for make in parts.constructors] or list(parts.losses)
        n = len(spec.label_cols)
        self._losses = losses * n if len(losses) == 1 else losses
        self._weights = list(spec.loss_weights or [1.0 / n] * n)
        if len(self._losses) != n:
            raise WorkbenchError(f"{len(self._losses)} losses for the labels {', '.join(spec.label_cols)}.")

    def train(self, share: Share, batches: Iterator[Batch]) -> dict[str, Any]:
        """One epoch; returns its metrics, averaged over all samples of all ranks."""
        self._model.train()
        passes, sums = self._spec.backward_passes_per_step, _Sums()
        number = share.steps.number
        for i, batch in enumerate(itertools.islice(batches, number)):
            inputs, labels, weights = self._tensors(batch)
            scale = share.steps.weight(i) / passes
            if self._parts.step is not None:
                outputs, loss = self._parts.step(
                    self._model, self._optimizer, self._shaped, self._loss, inputs, labels, weights
                )
                outputs, labels = self._shaped(outputs, labels)
            else:
                outputs, labels = self._shaped(self._model(*inputs), labels)
                loss = self._loss(outputs, labels, weights)
                (loss * scale).backward()
                if (i + 1) % passes == 0 or i + 1 == number:
                    self._optimizer.step()
                    self._optimizer.zero_grad()
            sums.add(len(inputs[0]), [loss, *self._metrics(outputs, labels)])
        return self._named("train", sums)

    def validate(self, share: Share, batches: Iterator[Batch]) -> dict[str, Any]:
        """The same without learning."""
        self._model.eval()
        sums = _Sums()
        with torch.no_grad():
            for batch in itertools.islice(batches, share.steps.number):
                inputs, labels, weights = self._tensors(batch)
                outputs, labels = self._shaped(self._model(*inputs), labels)
                sums.add(len(inputs[0]), [self._loss(outputs, labels, weights), *self._metrics(outputs, labels)])
        return self._named("validation", sums)

    def _tensors(self, batch: Batch) -> tuple[list[Any], list[Any], Any]:
        def tensor(name: str) -> Any:
            return torch.as_tensor(batch[name]).to(self._device, self._dtype)

        spec = self._spec
        shapes = zip(spec.feature_cols, self._parts.shapes, strict=True)
        weights = tensor(spec.sample_weight_col) if spec.sample_weight_col else None
        return [tensor(name).reshape(*shape) for name, shape in shapes], [tensor(n) for n in spec.label_cols], weights

    def _shaped(self, outputs: Any, labels: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Outputs as a list, and labels of their shape: of ``label_shapes``, or of an output with as many numbers."""
        found = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        if len(found) != len(labels):
            raise WorkbenchError(f"The model has {len(found)} outputs for {len(labels)} labels.")
        if shapes := self._spec.label_shapes:
            return found, [label.reshape(*shape) for label, shape in zip(labels, shapes, strict=True)]
        return found, [
            label.reshape(output.shape) if label.numel() == output.numel() else label
            for label, output in zip(labels, found, strict=True)
        ]

    def _loss(self, outputs: Sequence[Any], labels: Sequence[Any], weights: Any = None) -> Any:
        total: Any = 0.0
        for output, label, loss, share in zip(outputs, labels, self._losses, self._weights, strict=True):
            if weights is None:
                total = total + share * loss(output, label)
            else:  # by samples, and not by the sum of the weights, so that a sample counts the same in any batch
                total = total + share * (loss(output, label, reduction="none").flatten() * weights).mean()
        return total

    def _metrics(self, outputs: Sequence[Any], labels: Sequence[Any]) -> list[Any]:
        found = []
        for group in self._parts.metrics:
            each = list(group) * len(outputs) if len(group) == 1 else group
            found += [metric(out, label) for metric, out, label in zip(each, outputs, labels, strict=False)]
        return found

    def _named(self, what: str, sums: _Sums) -> dict[str, Any]:
        loss, *values = sums.averages(what)
        n, groups = len(self._spec.label_cols), []
        for i in range(len(self._parts.metrics)):
            names = [f"group_{i}_{label}" for label in self._spec.label_cols]
            groups.append(dict(zip(names, values[i * n : (i + 1) * n], strict=False)))
        return {"loss": loss, "all_metrics": groups}


class _Sums:
    """Of values that are means over samples."""

    def __init__(self) -> None:
        self._total: Any = None

    def add(self, samples: int, values: Sequence[Any]) -> None:
        """The means of so many samples."""
        values = [torch.as_tensor(each) for each in values]
        now = torch.tensor([samples * float(each.detach()) for each in values] + [samples], dtype=torch.float64)
        self._total = now if self._total is None else self._total + now

    def averages(self, name: str) -> list[float]:
        """Over all samples of all ranks, which call this together."""
        total = hvd.allreduce(self._total, name=f"estimator.{name}", op=hvd.Sum)
        return [float(each / total[-1]) for each in total[:-1]]


def _called(make: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Call a function with those of the arguments that it takes."""
    takes = inspect.signature(make).parameters
    anything = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes.values())
    return make(**{name: value for name, value in given.items() if anything or name in takes})
