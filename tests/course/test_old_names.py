"""Notebooks handed out before the course's files got rooms still run."""

from __future__ import annotations

from importlib import import_module

import pytest

from workbench.course import MOVED


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_name_has_what_the_new_module_has(old: str, new: str) -> None:
    """Using it warns, and gives the very object."""
    now, then = import_module(f"workbench.course.{new}"), import_module(f"workbench.course.{old}")
    name = next(each for each, value in vars(now).items() if getattr(value, "__module__", "") == now.__name__)
    with pytest.warns(DeprecationWarning, match=f"workbench.course.{old} is workbench.course.{new} now"):
        assert getattr(then, name) is getattr(now, name)


def test_the_warning_points_at_the_importing_line() -> None:
    """So that a notebook shows it, and the line can be changed."""
    with pytest.warns(DeprecationWarning, match="training.timing") as seen:
        from workbench.course.timing import speedup_table  # type: ignore[import-not-found]
    assert seen[0].filename == __file__
    assert callable(speedup_table)


def test_other_names_are_still_missing() -> None:
    """Only what has moved is found."""
    with pytest.raises(ModuleNotFoundError):
        import_module("workbench.course.nothing")
