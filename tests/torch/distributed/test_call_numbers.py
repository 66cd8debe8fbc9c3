"""Numbers of calls without a name: from the calls before alone, and again where these come again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workbench.torch.distributed.call_numbers import CallNumbers

CALLS = st.lists(st.sampled_from("abc"), max_size=60)


@given(before=CALLS, step=st.lists(st.sampled_from("abc"), min_size=1, max_size=30), at_once=st.integers(2, 8))
def test_steps_use_the_same_numbers(before: list[str], step: list[str], at_once: int) -> None:
    """After some equal steps no new number is used, whatever was called before."""
    numbers = CallNumbers(at_once)
    for call in before:
        numbers.next(call)
    known = {numbers.next(call) for _ in range(60) for call in step}
    for _ in range(5):
        known |= {numbers.next(call) for _ in range(60) for call in step}
    assert {numbers.next(call) for _ in range(60) for call in step} <= known


@given(calls=st.lists(st.sampled_from("ab"), min_size=1, max_size=400), at_once=st.integers(2, 8))
def test_one_is_free_before_it_comes_again(calls: list[str], at_once: int) -> None:
    """As many may be in flight as were promised."""
    numbers = CallNumbers(at_once)
    found = [numbers.next(call) for call in calls]
    for i in range(len(found)):
        assert len({*found[i : i + at_once]}) == len(found[i : i + at_once])


@given(same=st.lists(st.sampled_from("ab"), max_size=200), one=st.sampled_from("ab"), other=st.sampled_from("cd"))
def test_ranks_whose_calls_differ_use_one_number(same: list[str], one: str, other: str) -> None:
    """So that they meet there, and are told what differs."""
    here, there = CallNumbers(2), CallNumbers(2)
    for call in same:
        assert here.next(call) == there.next(call)
    assert here.next(one) == there.next(other)
