"""A schedule on ranks that run: its messages leave in the order that was worked out, each when its gradients are there.

The order is that of :func:`workbench.course.schedules.played.play`, from the same layers, so it is the same on all
ranks. If each rank sent what it has at the moment, one could wait for a message that another holds back behind its own,
and so on for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.course.schedules.messages import Messages

Gradient = NDArray[np.float32]


class Sender:
    """Sums one step's gradients over the ranks, in place.

    Args:
        hvd: the workbench.
        gradients: of each layer, in forward order, one-dimensional.
        messages: the schedule.
        order: the messages' numbers, the same on all ranks.

    Raises:
        ValueError: a message is missing in the order, or stands there twice.

    Example:
        >>> import workbench
        >>> def one_step():
        ...     gradients = [np.full(3, 1.0, np.float32), np.full(2, 2.0, np.float32)]
        ...     sender = Sender(workbench, gradients, [[(0, 0, 3), (1, 0, 1)], [(1, 1, 2)]], order=[1, 0])
        ...     sender.ready(1), sender.ready(0)
        ...     sender.wait()
        ...     return [gradient.tolist() for gradient in gradients]
        >>> workbench.run_threads(2, one_step)[0]
        [[2.0, 2.0, 2.0], [4.0, 4.0]]
    """

    def __init__(self, hvd: Any, gradients: Sequence[Gradient], messages: Messages, order: Sequence[int]) -> None:
        if sorted(order) != list(range(len(messages))):
            raise ValueError(f"The order is {list(order)}: each of {len(messages)} messages is needed in it, once.")
        self._hvd, self._gradients, self._messages = hvd, gradients, messages
        self._left, self._ready = list(order), set[int]()
        self._handles: list[tuple[int, Any]] = []

    def ready(self, layer: int) -> None:
        """This rank has a layer's gradients: whatever stands first in the order and is complete, leaves."""
        self._ready.add(layer)
        while self._left and all(each in self._ready for each, _, _ in self._messages[self._left[0]]):
            number = self._left.pop(0)
            packed = np.concatenate([self._gradients[each][begin:end] for each, begin, end in self._messages[number]])
            self._handles.append(
                (number, self._hvd.allreduce_async(packed, name=f"message {number}", op=self._hvd.Sum))
            )

    def wait(self) -> None:
        """Until all messages are back and the sums stand in the gradients.

        Raises:
            RuntimeError: some layers were never ready.
        """
        if self._left:
            missing = sorted({each for number in self._left for each, _, _ in self._messages[number]} - self._ready)
            raise RuntimeError(f"Layers {missing} were never ready, so {len(self._left)} messages have not left.")
        for number, handle in self._handles:
            summed, at = self._hvd.synchronize(handle), 0
            for layer, begin, end in self._messages[number]:
                self._gradients[layer][begin:end] = summed[at : at + end - begin]
                at += end - begin
        self._handles.clear()
