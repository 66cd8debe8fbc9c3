"""Lesson 08, is it faster? A ring's time, an honest speed-up, and where N ranks begin to pay."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from statistics import median
from typing import Any

import numpy as np

from workbench.collectives import ring
from workbench.course.judging.ratio import Factor, of_numbers
from workbench.course.judging.task import PlainTask, stated
from workbench.course.simulator import simulate


def ring_time(n: Any, nbytes: Any, alpha_s: Any, beta_s: Any) -> Any:
    """Return how long a ring allreduce of nbytes takes on n ranks, in seconds.

    It is 2(n - 1) steps one after the other. In each, every rank sends an n-th of nbytes.
    A message of m bytes takes alpha_s + beta_s * m seconds. m need not be a whole number.
    """
    ### BEGIN SOLUTION
    return 2 * (n - 1) * (alpha_s + beta_s * nbytes / n)
    ### END SOLUTION


def speedup(alone: Any, together: Any) -> Any:
    """Return (speed-up, efficiency) of n ranks over one, from measured seconds.

    alone[i], together[i]: the seconds of every rank in round i, as lists.
    alone[i] has one item, together[i] has n.
    The two of a round were measured one after the other,
    so what disturbs the machine mostly disturbs both.
    Of the rounds, take the median.
    """
    ### BEGIN SOLUTION
    ratios = sorted(max(one) / max(many) for one, many in zip(alone, together, strict=True))
    half = len(ratios) // 2
    middle = ratios[half] if len(ratios) % 2 else (ratios[half - 1] + ratios[half]) / 2
    return middle, middle / len(together[0])
    ### END SOLUTION


def break_even(n: Any, nbytes: Any, alpha_s: Any, beta_s: Any) -> Any:
    """Return G, with which a step takes as long on n ranks as on one.

    G: how long a step computes on one rank, in seconds.
    T(n) = G/n + C(n), where C(n) is the time of a ring allreduce of nbytes, and C(1) = 0.
    n is at least 2. With a larger G, n ranks are faster than one.
    """
    ### BEGIN SOLUTION
    communicate = 2 * (n - 1) * (alpha_s + beta_s * nbytes / n)
    return communicate * n / (n - 1)
    ### END SOLUTION


def _close(mine: Any, wanted: float) -> bool:
    return isinstance(mine, (int, float, np.number)) and math.isclose(float(mine), wanted, rel_tol=1e-9, abs_tol=1e-15)


def _wrong(call: str, mine: Any, wanted: Any) -> str:
    missing = ". Is there a return?" if mine is None else ""
    return f"{call}: your result is {_short(mine)}, expected {_short(wanted)}{missing}"


def _short(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_short, value))})"
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else repr(value)


# --- 08.ring_time -----------------------------------------------------------------------------------------


_UNIT = Factor("1,000 times", lambda case: 1e3, "seconds are asked for, not milliseconds")
_RING_FACTORS = (
    _UNIT,
    Factor("n times", lambda case: case.n, "each of the 2(n - 1) steps sends an n-th of the array, not all of it"),
    Factor("half of", lambda case: 0.5, "the ring has two halves of n - 1 steps: to add up, and to pass on the sums"),
)
_BREAK_FACTORS = (
    _UNIT,
    Factor("(n - 1)/n of", lambda case: (case.n - 1) / case.n, "that is C(n) alone; solve G/n + C(n) = G for G"),
    Factor("n - 1 times", lambda case: case.n - 1, "that is n C(n); what is saved is G - G/n, not all of G"),
)


def _seconds(function: Callable[..., Any], cases: Sequence[tuple[int, float, float, float]]) -> str:
    for n, nbytes, alpha_s, beta_s in cases:
        mine, wanted = function(n, nbytes, alpha_s, beta_s), ring_time(n, nbytes, alpha_s, beta_s)
        if not _close(mine, wanted):
            call = f"n = {n}, {nbytes:,.0f} bytes, alpha_s = {alpha_s:g}, beta_s = {beta_s:g}"
            answers = [(case[0], function(*case), ring_time(*case)) for case in cases]
            return _wrong(call, mine, wanted) + of_numbers(answers, _RING_FACTORS)
    return ""


def bandwidth(function: Callable[..., Any]) -> str:
    """Without latency, each rank sends 2(n - 1)/n of the bytes."""
    whole = _seconds(function, [(n, 1200, 0.0, 1.0) for n in (2, 3, 4, 16)])
    broken = _seconds(function, [(n, 1000, 0.0, 1.0) for n in (3, 16)])
    return whole or (f"{broken}. An n-th of the bytes need not be a whole number" if broken else "")


def as_simulated(function: Callable[..., Any]) -> str:
    """The simulator's clock says the same."""

    def add_up(comm: Any) -> None:
        ring.ring_allreduce(comm, np.ones(96_000))

    for n, (alpha_s, beta_s) in product((2, 4, 8), ((2e-5, 1e-9), (1e-3, 1e-10))):
        wanted = simulate(n, add_up, alpha_s=alpha_s, beta_s=beta_s).time_s
        mine = function(n, 768_000, alpha_s, beta_s)
        if not _close(mine, wanted):
            return _wrong(f"n = {n}, 768,000 bytes, alpha_s = {alpha_s:g}, beta_s = {beta_s:g}", mine, wanted)
    return ""


# --- 08.speedup -------------------------------------------------------------------------------------------


def _ratio(function: Callable[..., Any], alone: list[list[float]], together: list[list[float]]) -> str:
    middle = median(max(one) / max(many) for one, many in zip(alone, together, strict=True))
    wanted = middle, middle / len(together[0])
    mine = function([list(one) for one in alone], [list(many) for many in together])
    if isinstance(mine, np.ndarray):
        mine = mine.tolist()
    pair = isinstance(mine, (tuple, list)) and len(mine) == 2
    if pair and all(map(_close, mine, wanted)):
        return ""
    asked = "" if pair or mine is None else ". Two numbers are asked for"
    return _wrong(f"alone = {alone}, together = {together}", mine, wanted) + asked


_ROUNDS = [
    ([[6.0], [9.0], [60.0], [8.0]], [[4.0, 3.0, 2.0], [2.0, 5.0, 1.0], [4.0, 7.0, 3.0], [3.0, 4.0, 6.0]]),
    ([[7.0], [20.0], [9.0]], [[3.0, 2.0], [4.0, 5.0], [6.0, 7.0]]),
]


def each_round_for_itself(function: Callable[..., Any]) -> str:
    """A busy moment counts on both sides: compare within a round."""
    busy = _ratio(function, [[6.0], [18.0], [6.0]], [[4.0, 3.0], [12.0, 9.0], [4.0, 4.0]])
    return busy or _ratio(function, [[9.0], [4.0], [12.0]], [[3.0, 2.0], [8.0, 5.0], [6.0, 4.0]])


def any_rounds(function: Callable[..., Any]) -> str:
    """Any number of rounds and ranks."""
    for rounds, n in product((2, 4, 5, 7), (2, 3, 8)):
        random = np.random.default_rng([rounds, n])
        alone = [[float(s)] for s in random.integers(8, 17, rounds)]
        together = [[float(s) for s in random.integers(2, 9, n)] for _ in range(rounds)]
        if wrong := _ratio(function, alone, together):
            return wrong
    return ""


# --- 08.break_even ----------------------------------------------------------------------------------------

_LINKS = ((1e-5, 0.0), (0.0, 1e-9), (2e-5, 1e-9), (1e-3, 1e-10))


_TELLING = [(n, nbytes, *link) for n in (2, 4) for nbytes in (1000, 100_000_000) for link in _LINKS]


def just_as_long(function: Callable[..., Any]) -> str:
    """With this G, n ranks take as long as one."""
    for n, nbytes, (alpha_s, beta_s) in product((2, 3, 4, 64), (1000, 100_000_000), _LINKS):
        mine = function(n, nbytes, alpha_s, beta_s)
        case = f"n = {n}, {nbytes:,} bytes, alpha_s = {alpha_s:g}, beta_s = {beta_s:g}"
        wanted = break_even(n, nbytes, alpha_s, beta_s)
        if not isinstance(mine, (int, float, np.number)):
            return _wrong(case, mine, wanted)
        many = float(mine) / n + ring_time(n, nbytes, alpha_s, beta_s)
        if not _close(many, float(mine)) or not _close(mine, wanted):
            told = f"one rank takes {_short(float(mine))} s, {n} ranks take {_short(many)} s"
            answers = [
                (k, function(k, nbytes, *link), break_even(k, nbytes, *link)) for k in (2, 3, 4) for link in _LINKS
            ]
            factor = of_numbers(answers, _BREAK_FACTORS)
            return f"{case}: with your G, {told}; expected G = {_short(wanted)}{factor}"
    return ""


def on_both_sides(function: Callable[..., Any]) -> str:
    """With a little more to compute, n ranks are faster; with a little less, one rank is."""
    for n, (alpha_s, beta_s) in product((2, 8), _LINKS):
        middle = function(n, 4_000_000, alpha_s, beta_s)
        for factor in (0.99, 1.01):
            wins = factor * middle / n + ring_time(n, 4_000_000, alpha_s, beta_s) < factor * middle
            if wins != (factor > 1):
                return f"n = {n}, G = {factor:g} times your result: {n} ranks are {'' if wins else 'not '}faster"
    return ""


TASKS = [
    PlainTask(
        "08.ring_time",
        "how long does a ring allreduce take?",
        ring_time,
        probes=lambda: [(3, 1000, 0.5, 0.25), (1, 1000, 0.1, 0.1), *_TELLING[::2]],
        properties=[
            *stated(
                ("One rank has nobody to wait for.", lambda f: _seconds(f, [(1, 0, 1.0, 1.0), (1, 1000, 2e-5, 1e-9)])),
                ("Without a byte, latency is left.", lambda f: _seconds(f, [(n, 0, 1.0, 1.0) for n in (2, 3, 4, 16)])),
            ),
            bandwidth,
            as_simulated,
        ],
    ),
    PlainTask(
        "08.speedup",
        "speed-up and efficiency, honestly",
        speedup,
        probes=lambda: _ROUNDS,
        properties=[
            *stated(
                (
                    "One round, ranks that are equally fast.",
                    lambda f: _ratio(f, [[6.0]], [[4.0, 4.0]]) or _ratio(f, [[6.0]], [[2.0, 2.0, 2.0, 2.0]]),
                ),
                (
                    "The slowest rank counts.",
                    lambda f: _ratio(f, [[6.0]], [[3.0, 4.0]]) or _ratio(f, [[6.0]], [[4.0, 2.0, 3.0]]),
                ),
            ),
            each_round_for_itself,
            *stated(
                (
                    "One round that went wrong changes nothing.",
                    lambda f: _ratio(f, [[6.0], [6.0], [60.0]], [[4.0, 3.0], [4.0, 3.0], [4.0, 3.0]]),
                )
            ),
            any_rounds,
        ],
        points=2,
    ),
    PlainTask(
        "08.break_even",
        "from which size on do n ranks pay?",
        break_even,
        probes=lambda: _TELLING,
        properties=[just_as_long, on_both_sides],
    ),
]
