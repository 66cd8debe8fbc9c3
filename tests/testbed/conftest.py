"""Hosts for tests; a test is skipped, with the reason, where they cannot be made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import slurm as slurm_cluster
from hosts import Hosts
from namespaces import CannotMakeHosts


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Two hosts, with links as fast as the machine can."""
    yield from _made(Hosts(2))


@pytest.fixture(scope="module")
def slurm() -> Iterator[Hosts]:
    """Two hosts with Slurm, each with 4 cores and 2 GPUs: the tests of a module share them, and cut no link."""
    yield from _made(Hosts(2), with_slurm=True)


def _made(hosts: Hosts, with_slurm: bool = False) -> Iterator[Hosts]:
    try:
        try:
            hosts.up()
            if with_slurm:
                slurm_cluster.start(hosts)
        except CannotMakeHosts as reason:
            pytest.skip(str(reason))
        yield hosts
    finally:
        hosts.down()
