"""What a training step computes, layer by layer, as recorded on this rank: for :func:`workbench.predict`.

A copy of the model is trained, so weights, statistics and hooks of the model itself are left alone. Hooks note the time
at which a layer's forward ends, and at which a parameter's gradient is there.
"""

from __future__ import annotations

import copy
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from workbench.simulate.steps import Span

Loss = Callable[[Any, Any], torch.Tensor]
MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
_WARM, _FEWEST, _MOST = 3, 5, 100  # steps


class Recording:
    """Steps of a copy of a model.

    Args:
        model: on the device on which it is trained.
        batch: inputs and targets of one step.
        loss: of the model's output and the targets; cross entropy if None.
        optimizer: makes one from the parameters; SGD if None.
        wire: dtype on the wire. As in a job, a gradient that is ready is copied to a bucket, and cast there and back.

    Attributes:
        layers: of each module with parameters of its own, its name and these, in the order of their forward.
        batch, loss, make: of the steps; ``make`` makes the optimizer.

    Raises:
        ValueError: no parameter is trained, or a gradient did not come.

    Example:
        >>> inputs, targets = torch.ones(2, 3), torch.zeros(2, dtype=torch.long)
        >>> layers = Recording(torch.nn.Linear(3, 4), (inputs, targets)).spans(seconds=0.01)
        >>> [(layer.name, layer.values) for layer in layers]
        [('update', 0), ('model', 16), ('loss', 0)]
    """

    def __init__(
        self,
        model: torch.nn.Module,
        batch: tuple[Any, Any],
        loss: Loss | None = None,
        optimizer: MakeOptimizer | None = None,
        wire: str = "float32",
    ) -> None:
        self._wire = getattr(torch, wire)
        self._bucket = dict[torch.nn.Parameter, tuple[torch.Tensor, torch.Tensor]]()  # a gradient's place, and its cast
        self._model, self.batch = copy.deepcopy(model).train(), batch
        self.loss: Loss = loss or torch.nn.functional.cross_entropy
        self.layers = dict[str, list[torch.nn.Parameter]]()
        self._forward, self._ready = dict[str, float](), dict[str, float]()
        self._watch()
        if not self.layers:
            raise ValueError(f"No parameter of {type(model).__name__} is trained, so there is nothing to reduce.")
        self.make: MakeOptimizer = optimizer or torch.optim.SGD
        self._optimizer = self.make(self._model.parameters())
        for _ in range(_WARM):
            self.step()

    def spans(self, seconds: float = 3.0) -> list[Span]:
        """Of some steps, the median of each span.

        Returns:
            The optimizer's update, then a span for each module with parameters of its own, then the loss.
        """
        begin, rows = time.perf_counter(), list[list[float]]()
        while len(rows) < _FEWEST or (len(rows) < _MOST and time.perf_counter() - begin < seconds):
            rows.append(self.step())
        times = np.median(np.array(rows), axis=0)
        times *= np.median(np.sum(rows, axis=1)) / times.sum()
        names = ["update", *self.layers, "loss"]
        values = [0, *(sum(param.numel() for param in own) for own in self.layers.values()), 0]
        pairs = times.reshape(-1, 2).tolist()
        return [
            Span(name, forward_s, backward_s, count)
            for name, (forward_s, backward_s), count in zip(names, pairs, values, strict=True)
        ]

    def _watch(self) -> None:
        seen, me = set[torch.nn.Parameter](), weakref.proxy(self)  # hooks live in torch's C++, where no cycle is found
        for name, module in self._model.named_modules():
            own = [one for one in module.parameters(recurse=False) if one.requires_grad and one not in seen]
            seen.update(own)
            if own:
                name = name or "model"
                self.layers[name] = own
                module.register_forward_hook(lambda *_, name=name: me._forward.update({name: _now()}))
                for one in own:
                    one.register_post_accumulate_grad_hook(lambda param, name=name: me._is_ready(name, param))

    def _is_ready(self, name: str, param: torch.nn.Parameter) -> None:
        grad = param.grad
        if grad is not None and grad.layout is torch.strided:
            if param not in self._bucket:  # where nothing is cast, both are one tensor: its copy to itself is nothing
                self._bucket[param] = (place := param.detach().clone()), place.to(self._wire)
            place, sent = self._bucket[param]
            param.grad = place.copy_(grad)
            sent.copy_(place)
        self._ready[name] = _now()

    def step(self) -> list[float]:
        """The spans' seconds, forward and backward in turn."""
        self._forward, self._ready = {}, {}
        begin = _now()
        self._optimizer.zero_grad()
        zeroed = _now()
        lost = self.loss(self._model(self.batch[0]), self.batch[1])
        turned = _now()
        lost.backward()
        backward_ended = _now()
        for place, sent in self._bucket.values():
            place.copy_(sent)
        self._optimizer.step()
        update_s = zeroed - begin + _now() - backward_ended
        if missing := [name for name in self.layers if name not in self._ready or name not in self._forward]:
            raise ValueError(f"{missing[0]} is not used in forward, or has no gradient after backward. Freeze it.")
        self.layers = {name: self.layers[name] for name in sorted(self.layers, key=self._forward.__getitem__)}
        return self._spans(update_s, zeroed, turned, backward_ended)

    def _spans(self, update_s: float, zeroed: float, turned: float, backward_ended: float) -> list[float]:
        """A gradient that is ready before that of a later layer counts as ready with it."""
        ready, latest = dict[str, float](), turned
        for name in reversed(self.layers):
            ready[name] = latest = max(latest, self._ready[name])
        found, before = [update_s, backward_ended - latest], zeroed
        names = list(self.layers)
        for name, after in zip(names, [*names[1:], ""], strict=True):
            found += [self._forward[name] - before, ready[name] - ready.get(after, turned)]
            before = self._forward[name]
        return [*found, turned - before, 0.0]


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
