"""Ranks find each other at a board that strangers may read and write, with a secret that only the ranks know.

1. Each rank writes a *hello* with a number that it has just drawn, sealed with the secret.
2. From all hellos each rank derives the *session's* key. It says that it has, sealed with that key, and waits until
   all have. So all have seen the same hellos, each its own fresh number among them: an old hello that is played back
   leads to a key that nobody else has.
3. Whatever follows is sealed with the session's key, together with the name under which it stands. So it can be
   neither made up nor moved nor played back. It is verified before it is decoded.

A stranger who overwrites or deletes can delay a job or end it, with an error that says so; nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from workbench.errors import LaunchError

_SHORTEST_S, _LONGEST_S = 1e-3, 2e-2  # between two looks at the board
_DOUBT_S = 3.0  # what is sealed wrongly for so long stays so: whoever wrote it is none of the ranks
_MAC = 32


class Board(Protocol):
    """Where values stand under names."""

    where: str
    """For error texts."""

    def read(self, name: str) -> bytes | None:
        """What stands there, or None; never waits."""

    def write(self, name: str, value: bytes) -> None:
        """Overwrites what stood there. Nothing is ever removed: an empty value is none."""


def seal(key: bytes, name: str, body: bytes) -> bytes:
    """The body, and before it a proof that whoever has the key wrote it under this name.

    Example:
        >>> opened(b"key", "a", seal(b"key", "a", b"body")), opened(b"key", "b", seal(b"key", "a", b"body"))
        (b'body', None)
    """
    return _mac(key, name, body) + body


def opened(key: bytes, name: str, message: bytes) -> bytes | None:
    """The body; None if it is not sealed with this key for this name."""
    body = message[_MAC:]
    return body if hmac.compare_digest(message[:_MAC], _mac(key, name, body)) else None


def derived(key: bytes, purpose: str, *parts: bytes) -> bytes:
    """Another key, from which nobody finds the first one or those for other purposes."""
    return _mac(key, purpose, b"".join(hashlib.blake2b(part).digest() for part in parts))


def _mac(key: bytes, name: str, body: bytes) -> bytes:
    named = name.encode()
    key = key if len(key) <= hashlib.blake2b.MAX_KEY_SIZE else hashlib.blake2b(key).digest()
    mac = hashlib.blake2b(len(named).to_bytes(4, "big"), key=key, digest_size=_MAC)
    mac.update(named)
    mac.update(body)
    return mac.digest()


@dataclass(frozen=True)
class Session:
    """Ranks that have found each other.

    Args:
        board: where they write.
        key: theirs alone, in this session alone.
        name: before the names of all that they write.
        hellos: what each has said about itself, by rank.
        timeout_s: deadline of one wait.
    """

    board: Board
    key: bytes
    name: str
    hellos: Sequence[Mapping[str, Any]]
    timeout_s: float

    def write(self, name: str, body: bytes) -> None:
        """For the others to :meth:`read`."""
        self.board.write(f"{self.name}/{name}", seal(self.key, f"{self.name}/{name}", body))

    def seen(self, name: str) -> bytes | None:
        """What one of them has written; None if nobody has. Never waits."""
        name = f"{self.name}/{name}"
        return opened(self.key, name, self.board.read(name) or b"")

    def read(self, names: Sequence[str], tick: Callable[[], None]) -> list[bytes]:
        """Wait until all are there; what they say.

        Args:
            names: as written.
            tick: called between two looks; it may raise to end the wait.

        Raises:
            LaunchError: something never came, or a stranger has written it.
        """
        found: dict[str, bytes] = {}
        doubts = Doubts(self.board)
        for _ in looks(self.timeout_s, tick):
            for name in [name for name in names if name not in found]:
                body = doubts.ask(self.key, f"{self.name}/{name}")
                if body is not None:
                    found[name] = body
            if len(found) == len(names):
                return [found[name] for name in names]
        missing = [name for name in names if name not in found]
        raise LaunchError(
            f"init(): not all {len(self.hellos)} ranks came within {self.timeout_s:g} s (WORKBENCH_INIT_TIMEOUT_S): "
            f"{self.board.where} has nothing under {', '.join(missing)}."
        )


class Doubts:
    """Reads from a board. What is sealed wrongly gets some seconds, for its rank may still overwrite it."""

    def __init__(self, board: Board) -> None:
        self._board, self._since = board, dict[str, float]()

    def ask(self, key: bytes, name: str) -> bytes | None:
        """What is written under a name; None if nothing is, or nothing to believe.

        Raises:
            LaunchError: it has been wrong for long.
        """
        message = self._board.read(name) or None
        body = None if message is None else opened(key, name, message)
        if message is None or body is not None:
            self._since.pop(name, None)
        elif time.monotonic() - self._since.setdefault(name, time.monotonic()) > _DOUBT_S:
            raise LaunchError(
                f"init(): what stands under {name} at {self._board.where} is not sealed with the job's secret, so it "
                "is not believed. Somebody else writes there, or WORKBENCH_SECRET is not the same on all ranks. Start "
                "the job again, at another MASTER_PORT."
            )
        return body


def looks(timeout_s: float, tick: Callable[[], None] = lambda: None) -> Any:
    """Count from 0, with ever longer pauses, until the deadline."""
    until, pause, count = time.monotonic() + timeout_s, _SHORTEST_S, 0
    while True:
        yield count
        if time.monotonic() > until:
            return
        tick()
        time.sleep(pause)
        pause, count = min(2 * pause, _LONGEST_S), count + 1


def find(
    board: Board,
    secret: bytes,
    rank: int,
    size: int,
    about: Mapping[str, Any],
    timeout_s: float,
    tick: Callable[[Sequence[Mapping[str, Any] | None]], None] = lambda hellos: None,
) -> Session:
    """Find the other ranks. All call it; one that gave up before may call it again.

    Args:
        board: the same for all.
        secret: the job's.
        rank, size: who this is among how many.
        about: what this rank says about itself.
        timeout_s: deadline.
        tick: called between two looks with the hellos that have come; it may raise to end the wait.

    Raises:
        LaunchError: not all came in time, or a stranger wrote in a rank's stead.
    """
    names = [f"hello/{each}" for each in range(size)]
    mine = json.dumps({**about, "number": secrets.token_hex(16)}).encode()
    board.write(names[rank], seal(secret, names[rank], mine))
    bodies: list[bytes | None] = [None] * size
    session: Session | None = None
    doubts, acks = Doubts(board), [f"here/{each}" for each in range(size)]
    for _ in looks(timeout_s, lambda: tick([json.loads(body) if body else None for body in bodies])):
        if session and all(opened(session.key, *_at(board, f"{session.name}/{ack}")) is not None for ack in acks):
            board.write(names[rank], b"")  # nobody takes it for the hello of a later bootstrap
            return session
        for each, name in enumerate(names):
            if each == rank:
                bodies[each] = mine
            elif (body := doubts.ask(secret, name)) is not None:
                bodies[each] = body
        known = [body for body in bodies if body is not None]
        if len(known) == size:
            key = derived(secret, "session", *known)
            if session is None or session.key != key:
                name = derived(key, "name").hex()[:16]
                session = Session(board, key, name, [json.loads(body) for body in known], timeout_s)
                session.write(acks[rank], b"")
    missing = [str(each) for each, body in enumerate(bodies) if body is None]
    who = f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(missing)} did not come to {board.where}"
    if not missing:
        who = f"at {board.where} they did not see the same of each other (does somebody else write there?)"
    raise LaunchError(
        f"init(): not all {size} ranks came within {timeout_s:g} s (WORKBENCH_INIT_TIMEOUT_S): {who}. "
        "Call init() on every rank."
    )


def _at(board: Board, name: str) -> tuple[str, bytes]:
    return name, board.read(name) or b""


__all__ = ["Board", "Doubts", "Session", "derived", "find", "looks", "opened", "seal"]
