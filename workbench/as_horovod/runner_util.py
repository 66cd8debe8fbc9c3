"""What scripts take from ``horovod.runner``'s helpers: threads, timeouts, secrets, and who this rank is."""

from __future__ import annotations

import hashlib
import hmac
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from workbench import config
from workbench.data.registry import TimeoutException as TimeoutException

HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
DIGEST_LENGTH = 32
SECRET_LENGTH = 32


def in_thread(
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start a function in a thread.

    Args:
        target, args, name, daemon: as ``threading.Thread`` has them.
        silent: swallow what it raises.

    Raises:
        ValueError: ``args`` is no sequence: ``(x)`` was written where ``(x,)`` was meant.
    """
    if not isinstance(args, (tuple, list)):
        raise ValueError(f"args must be a tuple, not {args!r}: write a single argument as (arg,).")

    def run() -> None:
        try:
            target(*args)
        except Exception:
            if not silent:
                raise

    thread = threading.Thread(target=run, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Call a function once, when an event is set; never, if ``stop`` comes first."""

    def run() -> None:
        while not event.wait(check_stop_interval_s if stop else None):
            if stop is not None and stop.is_set():
                return
        func(*args)

    return in_thread(run, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Call a function for each tuple of arguments, many at once.

    Returns:
        The results by their number in ``args_list``; None if they are not waited for.
    """
    work: queue.SimpleQueue[tuple[int, Sequence[Any]]] = queue.SimpleQueue()
    results: dict[int, Any] = {}
    for item in enumerate(args_list):
        work.put(item)

    def run() -> None:
        while True:
            try:
                index, args = work.get_nowait()
            except queue.Empty:
                return
            results[index] = fn(*args)

    threads = [in_thread(run) for _ in range(min(max_concurrent_executions, len(args_list)))]
    if not block_until_all_done:
        return None
    for thread in threads:
        thread.join()
    return results


class Timeout:
    """A deadline, and the text that says what was late.

    Args:
        timeout: seconds from now.
        message: has ``{activity}`` and may have ``{timeout}``.

    Example:
        >>> Timeout(5, "no time left for {activity}").remaining() <= 5
        True
    """

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout, self._until, self._message = timeout, time.time() + timeout, message

    def remaining(self) -> float:
        """Seconds; 0 when it is over."""
        return max(0.0, self._until - time.time())

    def timed_out(self) -> bool:
        return time.time() > self._until

    def check_time_out_for(self, activity: str) -> None:
        """Raise if the time is over.

        Raises:
            TimeoutException: the time is over; the text is ``message`` with this ``activity``.
        """
        if self.timed_out():
            raise TimeoutException(self._message.format(activity=activity, timeout=self._timeout))


def make_secret_key() -> bytes:
    """Random bytes."""
    return secrets.token_bytes(SECRET_LENGTH)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """A keyed hash, SHA-256."""
    return hmac.new(key, message, hashlib.sha256).digest()


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    """Was it made with this key?

    Example:
        >>> check_digest(b"key", b"message", compute_digest(b"key", b"message"))
        True
    """
    return hmac.compare_digest(compute_digest(key, message), digest)


def get_env_rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of ranks, as its launcher has told it.

    In an elastic job both may change: until ``init()`` they are what is likely.
    """
    return config.rank_and_size()


def host_hash(salt: str | None = None) -> str:
    """A name for this host that does not show it."""
    name = socket.gethostname()
    return f"{name.split('.')[0]}-{hashlib.sha256(f'{name}-{salt}'.encode()).hexdigest()[:16]}"


def parse_hosts(hosts_string: str) -> list[Any]:
    """``host:slots,…`` as a list of :class:`HostInfo`."""
    return [HostInfo.from_string(each) for each in hosts_string.split(",")]


class HostInfo:
    """A host and how many ranks it takes.

    Example:
        >>> HostInfo.from_string("node1:4").slots
        4
    """

    def __init__(self, hostname: str, slots: int) -> None:
        self.hostname, self.slots = hostname, slots

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Parse ``host:slots``."""
        hostname, _, slots = host_string.strip().rpartition(":")
        return HostInfo(hostname, int(slots)) if hostname else HostInfo(slots, 1)
