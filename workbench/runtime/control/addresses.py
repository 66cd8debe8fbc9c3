"""Where can rank 0 be reached? Asked once, in init(), when the ranks are on several hosts."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence

from workbench.common.ports import family_of
from workbench.errors import DeadlineError

_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05  # between two attempts


def connect(address: tuple[str, int] | str, timeout_s: float) -> socket.socket:
    """A connection to rank 0; where many ranks come at once, in turn.

    Args:
        address: host and port, or the name of a socket of this machine.
        timeout_s: deadline.

    Raises:
        DeadlineError: nobody answers there.
    """
    deadline, pause_s = time.monotonic() + timeout_s, _PAUSE_S
    while True:
        try:
            return _connection(address, timeout_s)
        except BlockingIOError as error:  # a socket of this machine whose queue is full says so at once
            if time.monotonic() + pause_s > deadline:
                raise _no_answer(
                    address, f"its queue of connections has been full for {timeout_s:g} s ({error})"
                ) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except OSError as error:
            raise _no_answer(address, str(error)) from None


def _connection(address: tuple[str, int] | str, timeout_s: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else family_of(address[0]))
    sock.settimeout(timeout_s)
    try:
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _no_answer(address: tuple[str, int] | str, why: str) -> DeadlineError:
    if isinstance(address, str):
        return DeadlineError(f"init(): rank 0 does not answer on this machine: {why}. Has its process ended?")
    return DeadlineError(
        f"init(): rank 0 does not answer at {address[0]}:{address[1]}: {why}. Is its port reachable from all hosts? "
        "WORKBENCH_CONTROL_ADDRESS sets the address that it listens on."
    )


def reachable(candidates: list[str], port: int, timeout_s: float = 2.0) -> str:
    """The first address on which the port answers; the last candidate if none does."""
    for host in candidates[:-1]:
        try:
            socket.create_connection((host, port), timeout_s).close()
        except OSError:
            continue
        return host
    return candidates[-1]


def addresses() -> list[str]:
    """This host's addresses as others may see them, the likeliest first, loopback last."""
    found = interfaces()[:1]
    with contextlib.suppress(OSError):
        found += socket.gethostbyname_ex(socket.gethostname())[2]
    return [*dict.fromkeys(host for host in found + interfaces() if not host.startswith("127.")), "127.0.0.1"]


def interfaces() -> list[str]:
    """The addresses of this host's own interfaces, first the one on the way to the rest of the world."""
    import psutil  # not at the top: ranks of one machine, and a browser, need none of it

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        each.address
        for name, all_of_it in psutil.net_if_addrs().items()
        for each in all_of_it
        if name in up and each.family is socket.AF_INET and not each.address.startswith("127.")
    ]
    first = _source("192.0.2.1")  # nobody has this address
    return sorted(found, key=lambda address: address != first)


def facing(peers: Sequence[Sequence[str]]) -> str:
    """The interface of this host from which packets to all of these hosts leave; "" if there is no one such.

    Args:
        peers: the interfaces of each host. One that has an address of ours, too, is not reached by that: it belongs to
            a bridge for containers, which is the same everywhere.
    """
    mine = interfaces()
    ways = [{_source(address) for address in peer if address not in mine} for peer in peers if {*peer} - {*mine}]
    return next((address for address in mine if all(address in way for way in ways)), "")


def _source(address: str) -> str:
    """The address that packets to ``address`` come from; "" if there is no way."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing: it only asks the routing table
        return str(probe.getsockname()[0])
    return ""
