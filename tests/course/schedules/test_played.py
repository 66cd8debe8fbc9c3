"""A schedule is played by the simulator's rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from workbench.course.schedules.bound import least_step
from workbench.course.schedules.messages import Messages, in_turn, nbytes
from workbench.course.schedules.played import STEPS, on_the_network, play, waits
from workbench.course.tasks.t16a_step_time import Network, line
from workbench.simulate.published import MODELS, pascal, reduction
from workbench.simulate.steps import Overlap, Policy, Span, simulate, spans


def cases(count: int = 150) -> Iterator[tuple[list[Span], Network, np.random.Generator]]:
    """Random models, and networks with a latency and a bandwidth."""
    chance = np.random.default_rng(3)
    for _ in range(count):
        layers = [
            Span(f"{i}", *(float(each) for each in chance.uniform(0.0, 2.0, 2)), int(chance.integers(0, 60)))
            for i in range(int(chance.integers(1, 7)))
        ]
        if any(layer.values for layer in layers):
            yield layers, line(float(chance.choice([0.0, 0.3])), float(chance.uniform(0.0, 0.03))), chance


def random_schedule(layers: list[Span], chance: np.random.Generator) -> Messages:
    """Any pieces, in any order, some together."""
    pieces = []
    for i, layer in enumerate(layers):
        cuts = sorted({0, layer.values, *chance.integers(0, layer.values + 1, 2).tolist()})
        pieces += [(i, begin, end) for begin, end in itertools.pairwise(cuts)]
    messages: Messages = []
    for number in chance.permutation(len(pieces)).tolist():
        if messages and chance.random() < 0.3:
            messages[-1].append(pieces[number])
        else:
            messages.append([pieces[number]])
    return messages


def test_a_list_and_a_policy_that_say_the_same_send_the_same() -> None:
    """Whole layers in backward's order, and the front layers first, whole and in pieces: the same step to rounding."""
    for layers, reduce_s, _ in cases():
        turn = simulate(layers, reduce_s, Policy(Overlap.FORWARD, fusion_bytes=0), steps=STEPS)
        assert play(layers, in_turn(layers), reduce_s).step_s == pytest.approx(turn.step_s)
        for piece in (8, 1000):
            policy = Policy(Overlap.FORWARD, fusion_bytes=0, priority=True, piece_bytes=4 * piece)
            first = [
                [(i, begin, min(begin + piece, layer.values))]
                for i, layer in enumerate(layers)
                for begin in range(0, layer.values, piece)
            ]
            found = play(layers, first, reduce_s).step_s
            assert found == pytest.approx(simulate(layers, reduce_s, policy, steps=STEPS).step_s)


def test_no_schedule_beats_the_bound() -> None:
    """Random pieces, orders and messages, on random models and networks."""
    tight = 0
    for layers, reduce_s, chance in cases(400):
        least_s = least_step(layers, reduce_s)
        for _ in range(5):
            step_s = play(layers, random_schedule(layers, chance), reduce_s).step_s
            assert step_s >= least_s * (1 - 1e-9)
            tight += step_s <= least_s * (1 + 1e-9)
    assert tight > 50  # and some reach it, so it is not merely small


def test_one_message_is_never_slower_than_two_on_the_paper_s_cluster() -> None:
    """What the bound needs of a network, for sizes from a byte to all of VGG-16."""
    reduce_s = reduction(pascal(hosts=8))
    sizes = [10.0**power for power in range(9)]
    assert all(reduce_s(a + b) <= reduce_s(a) + reduce_s(b) for a in sizes for b in sizes)


def test_computing_and_waits_make_the_step() -> None:
    """Without a gap and without an overlap; the network carries all bytes once a step."""
    for layers, reduce_s, chance in cases(60):
        messages = random_schedule(layers, chance)
        played = play(layers, messages, reduce_s, steps=40)
        last_s = played.events[2 * len(layers) - 1].end_s - played.events[0].begin_s
        computed = sum(layer.forward_s + layer.backward_s for layer in layers)
        waited = sum(wait.end_s - wait.begin_s for wait in waits(played.events, played.step_s))
        assert computed + waited == pytest.approx(max(played.step_s, last_s), abs=1e-6)
        carried = sum(event.end_s - event.begin_s for event in on_the_network(played.events, played.step_s))
        assert carried == pytest.approx(sum(map(reduce_s, map(nbytes, messages))), abs=1e-6)


def test_the_contest_can_be_won() -> None:
    """Front layers first beats backward's order by a quarter for VGG-16 on 512 GPUs."""
    paper = MODELS["VGG-16"]
    layers, reduce_s = spans(paper.model(), paper.step_s), reduction(pascal())
    turn = in_turn(layers)
    assert play(layers, turn[::-1], reduce_s).step_s < 0.85 * play(layers, turn, reduce_s).step_s


def test_what_is_no_schedule_is_refused() -> None:
    """With the reason; and a single step would only be the first one."""
    layers = [Span("a", 1.0, 2.0, 10)]
    with pytest.raises(ValueError, match="gradients 5 to 10 of layer 0"):
        play(layers, [[(0, 0, 5)]], lambda nbytes: 0.0)
    with pytest.raises(ValueError, match="1 steps: at least two"):
        play(layers, in_turn(layers), lambda nbytes: 0.0, steps=1)
