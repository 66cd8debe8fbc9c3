"""Ranks send by a schedule: the sums are right, and each message leaves when it may."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import workbench
from workbench.course.schedules.on_ranks import Sender

MESSAGES = [[(0, 0, 5), (1, 0, 3)], [(1, 3, 7), (2, 4, 6)], [(2, 0, 4)]]
LENGTHS = 5, 7, 6


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_sums_are_right_in_any_order(order: list[int], n: int) -> None:
    """Small whole numbers, so to the bit; layers become ready in an order of each rank's own."""

    def one_step() -> list[Any]:
        rank = workbench.rank()
        gradients = [np.arange(length, dtype=np.float32) * (rank + 1) + i for i, length in enumerate(LENGTHS)]
        sender = Sender(workbench, gradients, MESSAGES, order)
        for layer in np.roll([0, 1, 2], rank).tolist():
            sender.ready(layer)
        sender.wait()
        return gradients

    for gradients in workbench.run_threads(n, one_step):
        for i, (length, found) in enumerate(zip(LENGTHS, gradients, strict=True)):
            assert np.array_equal(found, np.arange(length) * n * (n + 1) / 2 + n * i)


class _Noted:
    """Notes which messages were sent."""

    Sum = "sum"

    def __init__(self) -> None:
        self.names: list[str] = []

    def allreduce_async(self, array: Any, name: str, op: str) -> Any:
        self.names.append(name)
        return array

    def synchronize(self, handle: Any) -> Any:
        return handle


def test_a_message_leaves_when_its_turn_has_come_and_its_gradients_are_there() -> None:
    """Not before either."""
    noted = _Noted()
    sender = Sender(noted, [np.zeros(length, np.float32) for length in LENGTHS], MESSAGES, [2, 1, 0])
    sender.ready(0)
    assert noted.names == []
    sender.ready(2)
    assert noted.names == ["message 2"]
    with pytest.raises(RuntimeError, match=r"Layers \[1\] were never ready, so 2 messages have not left"):
        sender.wait()
    sender.ready(1)
    assert noted.names == ["message 2", "message 1", "message 0"]
    sender.wait()


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3], []])
def test_an_order_that_is_none_is_refused(order: list[int]) -> None:
    """Each message once."""
    with pytest.raises(ValueError, match="each of 3 messages is needed in it, once"):
        Sender(_Noted(), [], MESSAGES, order)
