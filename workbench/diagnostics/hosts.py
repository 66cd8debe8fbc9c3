"""``workbench doctor --hosts``: the rehearsal of a job, without a job."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from workbench import config
from workbench.common.text import count
from workbench.launch.hosts.agent_connections import Connections, Target
from workbench.launch.hosts.rehearsal import rehearse
from workbench.launch.ranks.process_tree import ProcessTree


def examine_hosts(targets: Sequence[Target], networks: Sequence[str] = ()) -> Iterator[str]:
    """The lines of the report.

    Args:
        targets: the hosts.
        networks: names of interfaces, of which one is to be used.

    Raises:
        LaunchError: the rehearsal fails.
    """
    processes = ProcessTree(os.environ)
    connections = Connections(targets, processes, os.getcwd())
    try:
        endpoints, warnings = rehearse(connections, [], networks, config.ports(os.environ))
    finally:
        connections.close()
        processes.stop()
    yield f"✓ the rehearsal with {count(len(endpoints), 'host')}"
    yield from (f"! {line}" for line in warnings)
    yield from (f"  {endpoint.name}: by {endpoint.interface} {endpoint.address}" for endpoint in endpoints)
