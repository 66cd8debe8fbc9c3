"""Where can rank 0 be reached? Asked once, in init(), when the ranks are on several hosts."""

from __future__ import annotations

import contextlib
import socket

from workbench.errors import DeadlineError


def connect(address: tuple[str, int] | str, timeout_s: float) -> socket.socket:
    """A connection to rank 0.

    Args:
        address: host and port, or the name of a socket of this machine.

    Raises:
        DeadlineError: nobody answers there.
    """
    sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    sock.settimeout(timeout_s)
    try:
        sock.connect(address)
    except OSError as error:
        sock.close()
        where = "on this machine" if isinstance(address, str) else "at {}:{}".format(*address)
        raise DeadlineError(
            f"init(): rank 0 does not answer {where}: {error}. Is its port reachable from all hosts? "
            "WORKBENCH_CONTROL_ADDRESS sets the address that it listens on."
        ) from None
    return sock


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
    found = []
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks the routing table
            found.append(probe.getsockname()[0])
        except OSError:
            pass
    with contextlib.suppress(OSError):
        found += socket.gethostbyname_ex(socket.gethostname())[2]
    return [*dict.fromkeys(host for host in found if not host.startswith("127.")), "127.0.0.1"]
