"""States of plain objects: what is restored, what is synced, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench import elastic
from workbench.elastic.state import ObjectState, State

unhurried = settings(deadline=None)  # a busy machine is no failure

values = st.recursive(
    st.none() | st.integers() | st.sampled_from(["", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)


@unhurried
@given(values, values)
def test_restore_undoes_any_change(before: Any, after: Any) -> None:
    """Any number of restores gives back what was committed, whatever happens to the attributes in between."""
    state = ObjectState(lambda obj: obj, lambda: 0, x=copy.deepcopy(before), y=0)
    for _ in range(2):
        if isinstance(state.x, list):
            state.x.append(1)
        elif isinstance(state.x, dict):
            state.x["new"] = 1
        state.y = 1
        state.restore()
        assert (state.x, state.y) == (before, 0)
    state.x = copy.deepcopy(after)
    state.commit()
    state.x, state.y = None, 3
    state.restore()
    assert (state.x, state.y) == (after, 0)


def test_sync_takes_what_rank_0_has_now_and_saves_it() -> None:
    """A value set after the constructor travels, too; a restore then gives it back."""
    rank0 = ObjectState(copy.deepcopy, lambda: 0, x=0)
    rank0.x = [5]
    rank1 = ObjectState(lambda mine: copy.deepcopy(rank0._values()), lambda: 1, x=1)
    for state in (rank0, rank1):
        state.sync()
        state.x.append(6)
        state.restore()
        assert state.x == [5]


def test_shared_objects_stay_shared() -> None:
    """Two attributes that are one object are one object after a restore."""
    both: list[int] = []
    state = ObjectState(lambda obj: obj, lambda: 0, a=both, b=both)
    state.restore()
    assert state.a is state.b


@pytest.mark.parametrize("name", ["sync", "check_host_updates", "save", "_saved"])
def test_names_of_the_state_itself_are_refused(name: str) -> None:
    """An attribute must not hide a method."""
    with pytest.raises(ValueError, match=f"'{name}' is used by ObjectState itself"):
        ObjectState(lambda obj: obj, lambda: 0, **{name: 1})


def test_only_horovods_own_names_are_refused() -> None:
    """Scripts name their attributes freely: any word goes that is no method of Horovod's State; all are kept."""
    horovods = {"check_host_updates", "commit", "on_hosts_updated", "on_reset", "register_reset_callbacks", "reset"}
    horovods |= {"restore", "save", "sync"}
    words = {name for name in dir(ObjectState) if not name.startswith("_")} - horovods
    for name in sorted(words | {"commits", "resume", "settle", "on_leave", "steps"}):
        state = ObjectState(lambda obj: obj, lambda: 0, **{name: [1]})
        getattr(state, name).append(2)
        state.commit()
        getattr(state, name).append(3)
        state.restore()
        assert getattr(state, name) == [1, 2], name
        elastic.run_fn(lambda state: None, lambda: None)(state)


def test_the_base_class_says_what_to_write() -> None:
    """A subclass that forgets a method is told so."""
    bare = State(lambda obj: obj, lambda: 0)
    for method in (bare.save, bare.restore, bare.sync):
        with pytest.raises(NotImplementedError):
            method()
