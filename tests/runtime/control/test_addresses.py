"""Which address rank 0 listens at, seen from the interfaces of this host and of others."""

from __future__ import annotations

import socket

from workbench.runtime.control.addresses import addresses, facing, interfaces


def test_every_interface_is_a_candidate_and_loopback_the_last_one() -> None:
    """Also where no name leads to it, and no route leads out of its network."""
    assert {*interfaces()} <= {*addresses()[:-1]}
    assert addresses()[-1] == "127.0.0.1"
    for address in interfaces():
        socket.create_server((address, 0)).close()


def test_an_interface_faces_all_hosts_or_there_is_none() -> None:
    """A host with our own addresses says nothing; one to which there is no way leaves none; a way is an interface."""
    mine = interfaces()
    assert facing([]) == facing([mine, mine]) == (mine[0] if mine else "")
    assert facing([["256.0.0.1"], mine]) == ""
    assert facing([["192.0.2.7"], ["192.0.2.8"]]) in {*mine, ""}
