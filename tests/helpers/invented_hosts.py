"""Hosts of invented names, without ssh: a job's agents are commands of this machine, each with a name and an address.

In a test ``with invented():`` and then ``run(…, hosts="a:1,b:1")``; where the launcher is to be a process of its own,
``LAUNCHER`` takes the words of ``workbench run``.

Processes, files, memory and network are this machine's: what ssh does, and what tells machines apart, is shown on the
hosts of tests/testbed.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from workbench.launch.hosts import agent, agent_connections, facts, remote_shell
from workbench.launch.hosts.remote_shell import LocalShell, Ssh

ADDRESSES = {"a": "127.77.0.1", "b": "127.77.0.2"}
LAUNCHER = (sys.executable, __file__, "run")
_NOBODY = "echo 'ssh: Could not resolve hostname' >&2; exit 255"


def serve(name: str) -> None:
    """Be the agent of such a host."""
    its = {"host": name, "machine": name, "interfaces": [("lo", ADDRESSES[name], 8)]}
    real = facts.facts
    with (
        mock.patch.object(facts, "facts", lambda words: real(words) | its),
        mock.patch.object(facts, "source", return_value=ADDRESSES[name]),
    ):
        agent.main()


def _command(ssh: Ssh, host: str, script: str) -> list[str]:
    there = f'sys.path.insert(1, "{Path(__file__).parent}"); from invented_hosts import serve; serve("{host}")'
    script = script.replace(remote_shell._AGENT, there) if host in ADDRESSES else _NOBODY
    return ["sh", "-c", script]


@contextlib.contextmanager
def invented() -> Iterator[None]:
    """Within the block there are hosts a and b, and no other that needs ssh."""
    real = socket.getaddrinfo

    def find(host: Any, *words: Any, **options: Any) -> Any:
        if host in ADDRESSES:
            raise socket.gaierror(socket.EAI_NONAME, "an invented name")
        return real(host, *words, **options)

    with (
        mock.patch.object(Ssh, "command", _command),
        mock.patch.object(socket, "getaddrinfo", find),
        # As an agent of this machine, it is no part of the launcher's own tree, and cleans up after itself.
        mock.patch.object(agent_connections, "LocalShell", (LocalShell, Ssh)),
    ):
        yield


if __name__ == "__main__":
    from workbench.cli.main import main

    with invented():
        sys.exit(main(sys.argv[1:]))
