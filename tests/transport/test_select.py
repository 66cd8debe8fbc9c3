"""The table of backends is all that a new one needs besides its file."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from workbench.config import BACKENDS, Launch, Settings
from workbench.errors import LaunchError
from workbench.transport import select
from workbench.transport.bootstrap.base import SingleBootstrap
from workbench.transport.host.threads import ThreadBootstrap


@pytest.mark.parametrize("name", [*BACKENDS, SingleBootstrap.backend, ThreadBootstrap.backend])
def test_every_name_has_its_factory(name: str) -> None:
    """The module of that name connects the ranks of a bootstrap by rank 0's settings."""
    module = import_module(f"workbench.transport.host.{name}")
    assert [*inspect.signature(module.connect).parameters] == ["bootstrap", "settings"]


def test_an_unknown_backend_is_refused_with_all_names() -> None:
    """Those of the table, and the two that are no backend of their own."""
    *most, last = ("auto", "shm", *BACKENDS)
    with pytest.raises(LaunchError, match=f"WORKBENCH_BACKEND='ccl': choose {', '.join(most)} or {last}"):
        select.find_ranks(Launch("none"), Settings(backend="ccl"))
