"""A schedule is one if each gradient is in one piece of one message; everything else is named."""

from __future__ import annotations

import itertools

import numpy as np

from workbench.course.schedules.messages import in_turn, mistake, nbytes
from workbench.simulate.steps import Span

LAYERS = [Span("front", 1.0, 2.0, 10), Span("none", 1.0, 2.0, 0), Span("back", 1.0, 2.0, 20)]


def test_any_partition_is_a_schedule_and_losing_or_doubling_one_piece_is_not() -> None:
    """For 200 random partitions, packed into random messages in random order; bytes add up to all gradients."""
    chance = np.random.default_rng(0)
    for _ in range(200):
        pieces = []
        for i, layer in enumerate(LAYERS):
            cuts = sorted({0, layer.values, *chance.integers(0, layer.values + 1, 3).tolist()})
            pieces += [(i, begin, end) for begin, end in itertools.pairwise(cuts)]
        order = chance.permutation(len(pieces)).tolist()
        edge = int(chance.integers(1, len(pieces)))
        messages = [[pieces[i] for i in order[:edge]], [pieces[i] for i in order[edge:]]]
        assert mistake(LAYERS, messages) == ""
        assert sum(map(nbytes, messages)) == 4 * 30
        lost = [message for message in (messages[0][1:], messages[1]) if message]
        assert "in no message" in mistake(LAYERS, lost)
        assert "in two messages, or twice in one" in mistake(LAYERS, [*messages, messages[0][:1]])


def test_what_is_no_schedule_is_named() -> None:
    """Its place and its value are in the text."""
    for messages, words in [
        (None, "Is there a return?"),
        (3, "int and no list"),
        ([[]], "message 0 is []"),
        ([(0, 0, 10)], "three whole numbers"),
        ([[(0, 0)]], "three whole numbers"),
        ([[(0, 0.0, 10.0)]], "three whole numbers"),
        ([[(3, 0, 1)]], "there are layers 0 to 2"),
        ([[(-1, 0, 1)]], "there are layers 0 to 2"),
        ([[(0, 0, 11)]], "layer 0 has gradients 0 to 10"),
        ([[(0, 5, 5)]], "a piece at least one of them"),
        ([[(1, 0, 0)]], "a piece at least one of them"),
    ]:
        assert words in mistake(LAYERS, messages)


def test_in_turn_is_backward_s_order() -> None:
    """The last layer first, and none without gradients."""
    assert in_turn(LAYERS) == [[(2, 0, 20)], [(0, 0, 10)]]
