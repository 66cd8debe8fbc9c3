"""A Ray cluster on the two hosts of the test bed; tests are skipped, with the reason, where there can be none."""

from __future__ import annotations

import contextlib
import faulthandler
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from hosts import Hosts
from namespaces import CannotMakeHosts
from ray_nodes import Nodes


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    """Two nodes with 2 CPUs each. A test that takes one away brings it back."""
    if not find_spec("ray"):
        pytest.skip("Ray is not installed here: make setup EXTRAS=torch,lessons,dev,ray")
    faulthandler.cancel_dump_traceback_later()  # a cluster takes a while on a busy machine; each step has a deadline
    with contextlib.ExitStack() as undo:
        hosts = Hosts(2)
        try:
            hosts.up()
        except CannotMakeHosts as reason:
            pytest.skip(str(reason))
        undo.callback(hosts.down)
        cluster = Nodes(hosts)
        undo.callback(cluster.down)
        cluster.start(0)
        cluster.start(1)
        yield cluster
